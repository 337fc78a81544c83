"""A broker of the demo's own: `clarion serve` in a process and a folder that end with the demo."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clarion.cli.errors import CliError
from clarion.compiled import VARIABLE as COMPILED

_START_SECONDS_MAX = 60.0  # one on a quiet machine
_STOP_SECONDS_MAX = 15.0
_READY = re.compile(r"listens on (\S+:\d+)")


@contextmanager
def own_broker(folder: Path) -> Iterator[str]:
    """Gives the address; the broker is stopped, by force if need be, when the block ends."""
    errors = folder / "broker.log"
    with errors.open("wb") as log:
        broker = subprocess.Popen(_command(folder), stdout=subprocess.PIPE, stderr=log, env=_environment(),
                                  start_new_session=True)  # fmt: skip  # Ctrl-C is for us: the broker drains last
    try:
        yield _address(broker, errors)
    finally:
        _stop(broker)


def _command(folder: Path) -> list[str]:
    serve = [sys.executable, "-m", "clarion.cli.main", "serve", "--listen", "127.0.0.1:0"]
    return [*serve, "--data-dir", str(folder / "data"), "--set", "group.initial.rebalance.delay.ms=0"]


def _environment() -> dict[str, str]:
    """The demo's broker has the demo's settings, whatever the shell says."""
    settings = {name for name in os.environ if name.startswith("CLARION_")} - {COMPILED}
    return {name: value for name, value in os.environ.items() if name not in settings}


def _address(broker: subprocess.Popen[bytes], errors: Path) -> str:
    assert broker.stdout is not None
    is_ready, _, _ = select.select([broker.stdout], [], [], _START_SECONDS_MAX)
    line = broker.stdout.readline().decode() if is_ready else ""
    found = _READY.search(line)
    if found is None:
        last = errors.read_text(errors="replace").strip().splitlines()[-1:] or ["it says nothing"]
        raise CliError(f"the broker did not start: {last[0]}")
    return found.group(1)


def _stop(broker: subprocess.Popen[bytes]) -> None:
    broker.terminate()
    try:
        broker.wait(_STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        broker.kill()
        broker.wait()
    if broker.stdout is not None:
        broker.stdout.close()
