"""A real `clarion serve` for the whole room, and a shell to type commands into without starting a process for each."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from clarion.cli.main import main
from clarion.compiled import VARIABLE


@dataclass(frozen=True)
class Result:
    status: int
    out: str
    err: str
    raw: bytes

    def one_line_error(self, *statuses: int) -> str:
        """What every mistake must end in: one line on stderr, and status 1 (or 2, for wrong words)."""
        assert self.status in (statuses or (1, 2)), (self.status, self.out, self.err)
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("clarion: ")
        return lines[0].removeprefix("clarion: ")


class Shell:
    def __init__(self, bootstrap: str | None) -> None:
        self.bootstrap = bootstrap

    def __call__(self, *words: str, stdin: bytes = b"") -> Result:
        raw, err = io.BytesIO(), io.StringIO()
        out = io.TextIOWrapper(raw, write_through=True)
        before = sys.stdin, sys.stdout, sys.stderr
        sys.stdin, sys.stdout, sys.stderr = io.TextIOWrapper(io.BytesIO(stdin)), out, err
        options = ["--bootstrap", self.bootstrap] if self.bootstrap else []
        status = 0
        try:
            main([*options, *words])
        except SystemExit as end:
            status = int(end.code or 0)
        finally:
            sys.stdin, sys.stdout, sys.stderr = before
        return Result(status, raw.getvalue().decode(errors="replace"), err.getvalue(), raw.getvalue())


class Broker:
    """`clarion serve` in a process of its own."""

    def __init__(self, data_dir: Path, *flags: str) -> None:
        self.data_dir = data_dir
        command = [sys.executable, "-m", "clarion.cli.main", "serve", "--data-dir", str(data_dir), *flags]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment(), text=True
        )
        self.line = self.process.stdout.readline()
        found = re.search(r"listens on (\S+:\d+)", self.line)
        assert found, self.process.stderr.read()
        self.address = found[1]

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        status = self.process.wait(20)
        self.rest_of_output = self.process.stdout.read()
        self.process.stdout.close()
        self.process.stderr.close()
        return status


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not _is_setting(name)}


def _is_setting(name: str) -> bool:
    return name.startswith("CLARION_") and name != VARIABLE


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "no-profiles"))
    for name in os.environ:
        if _is_setting(name):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    running = Broker(
        tmp_path_factory.mktemp("serve") / "data",
        "--listen",
        "127.0.0.1:0",
        "--set",
        "group.initial.rebalance.delay.ms=0",
        "--set",
        "offsets.topic.num.partitions=2",
    )
    yield running
    assert running.stop() == 0


@pytest.fixture
def clarion(broker: Broker) -> Shell:
    return Shell(broker.address)


@pytest.fixture(scope="session")
def empty_topic(broker: Broker) -> str:
    """A topic that nobody writes to, for tests of what is refused."""
    assert Shell(broker.address)("topic", "create", "empty", "--partitions", "3").status == 0
    return "empty"


@pytest.fixture
def topic(clarion: Shell) -> str:
    """A topic of the test's own, with three partitions."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    assert clarion("topic", "create", name, "--partitions", "3").status == 0
    return name
