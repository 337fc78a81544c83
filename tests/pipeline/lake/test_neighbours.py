"""Processes that write, replay, compact, vacuum and die beside each other: in the end every message is there once."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clarion.pipeline.lake.commits import WriterBatch
from clarion.pipeline.lake.compaction import compact, vacuum
from clarion.pipeline.lake.delta import exists
from clarion.pipeline.lake.options import TableOptions, read_options
from tests.pipeline.lake.rows import SOURCE, messages, offsets_in, write

ROOT = Path(__file__).parents[3]


def stream(path: str, partition: int, batches: int) -> None:
    """A query's driver: it plays from the first batch on, whatever is there already."""
    table = options(path)
    for number in range(batches):
        write(
            table,
            messages(number * 10, 10, partition=partition, day=1 + number % 3),
            batch=WriterBatch(f"q{partition}", number),
        )


def tidy(path: str) -> None:
    """Compact and vacuum until killed."""
    while True:
        if exists(path):
            compact(path, files_min=2)
            vacuum(path, retention_hours=1)
        time.sleep(0.01)


def options(path: str) -> TableOptions:
    return read_options({"path": path, "partitionBy": "date", "sourceColumns": ",".join(SOURCE)})


def start(what: str) -> subprocess.Popen:
    code = f"from tests.pipeline.lake.test_neighbours import *; {what}"
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)


def play(path: str, *, streams: int, batches: int, kills: int) -> None:
    helper = start(f"tidy({path!r})")
    commands = [f"stream({path!r}, {each}, {batches})" for each in range(streams)]
    running = [start(each) for each in [*commands, commands[-1]]]  # the last one has a twin
    for number in range(kills):
        time.sleep(0.3 + 0.1 * number)
        victim = number % streams
        os.kill(running[victim].pid, signal.SIGKILL)
        running[victim].wait()
        running[victim] = start(commands[victim])
    assert [each.wait(900) for each in running] == [0] * (streams + 1)
    assert helper.poll() is None, "compaction beside writers failed"
    helper.kill()
    helper.wait()
    assert offsets_in(options(path)) == sorted([*range(batches * 10)] * streams)


def test_writers_and_compaction_beside_each_other(tmp_path: Path) -> None:
    play(str(tmp_path / "t"), streams=2, batches=6, kills=0)


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_writers_that_are_killed_beside_compaction(tmp_path: Path) -> None:
    play(str(tmp_path / "t"), streams=3, batches=60, kills=8)


@pytest.mark.campaign
@pytest.mark.timeout(1200)
def test_writers_that_are_killed_in_an_object_store(s3, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of uploads, of conditional puts, and of a compaction's commit."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    play(f"{s3.bucket()}/t", streams=2, batches=12, kills=8)
