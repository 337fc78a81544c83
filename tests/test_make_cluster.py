"""`make cluster`: what it starts beside the brokers comes back when it dies, and goes with them."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tools.cluster import kept_running

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
