"""`make cluster`: what it starts beside the brokers comes back when it dies, and goes with them."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tools.cluster import kept_running, serve

from tests.waiting import wait_for


def test_a_process_that_is_killed_is_started_anew_and_ends_with_the_block(tmp_path: Path):
    noted = tmp_path / "pids"
    noted.touch()
    program = "import os, sys, time; open(sys.argv[1], 'a').write(f'{os.getpid()}\\n'); time.sleep(600)"

    def lives() -> list[int]:
        return [int(line) for line in noted.read_text().splitlines()]

    with kept_running([sys.executable, "-c", program, str(noted)]):
        wait_for(lambda: len(lives()) == 1)
        os.kill(lives()[0], signal.SIGKILL)
        wait_for(lambda: len(lives()) == 2)
    assert not any(Path(f"/proc/{one}").exists() for one in lives())


def test_the_supervisor_comes_back_too_and_waits_for_brokers_that_are_still_stopping(tmp_path: Path):
    """Killed, then refused because its folder is taken, then at work until it ends by itself."""
    noted = tmp_path / "lives"
    program = (
        "import os, pathlib, signal, sys; lives = pathlib.Path(sys.argv[1]); lives.open('a').write('.');"
        "life = len(lives.read_text()); life == 1 and os.kill(os.getpid(), signal.SIGKILL); sys.exit(life == 2)"
    )
    assert serve([sys.executable, "-c", program, str(noted)]) == 0
    assert noted.read_text() == "..."


def test_a_supervisor_that_cannot_start_says_so_once(tmp_path: Path):
    assert serve([sys.executable, "-c", "raise SystemExit(1)"]) == 1
