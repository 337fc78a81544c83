"""`kill -9` while retention and compaction take files away: nothing that should have stayed goes with them."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.crash.load import PATIENCE_S, History, Overtaken, Publisher, Reader, make_topic
from tests.history import Outcome, Poll, Send, anomalies, check
from tests.servers import ClarionProcess
from tests.waiting import wait_for

PARTITIONS = 2
KEYS = 20
SWEEPS_MAX = 20  # that still find something to delete when nobody writes any more
BUSY_CLEANERS = {
    "CLARION_RETENTION_CHECK_SECONDS": "0.05",
    "CLARION_COMPACTION_CHECK_SECONDS": "0.05",
    "CLARION_CHECKPOINT_SECONDS": "0.2",
}
RETENTION = {"segment_bytes": "16384", "retention_bytes": "65536", "file_delete_delay_ms": "0"}
COMPACTION = {
    "segment_bytes": "16384",
    "cleanup_policy": "compact",
    "min_cleanable_dirty_ratio": "0.01",
    "file_delete_delay_ms": "0",
}


def test_retention_and_a_kill_leave_an_unbroken_end_of_the_log(tmp_path: Path):
    _retain(tmp_path, kills=3)


def test_compaction_and_a_kill_leave_the_newest_value_of_every_key(tmp_path: Path):
    _compact(tmp_path, kills=3)


@pytest.mark.campaign
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("story", ["retain", "compact"])
def test_fifty_kills_during_cleaning(tmp_path: Path, story: str):
    {"retain": _retain, "compact": _compact}[story](tmp_path, kills=50)


def _retain(tmp_path: Path, kills: int) -> None:
    history, _, starts = _run(tmp_path, kills, RETENTION)
    assert any(starts.values()), "retention has deleted nothing"
    check(history.operations, start_offsets=starts)


def _compact(tmp_path: Path, kills: int) -> None:
    """A consumer that folds what it reads ends with the last acknowledged value of every key, or one sent after it."""
    history, reader, _ = _run(tmp_path, kills, COMPACTION, keys=KEYS)
    left = sum(len(one.messages) for one in history.operations if isinstance(one, Poll) and one.consumer == reader.name)
    sent = [one for one in history.operations if isinstance(one, Send)]
    assert left < len(sent) / 2, "compaction has removed next to nothing"
    allowed = ("lost-write", "poll-skip")  # what compaction is for
    assert [one for one in anomalies(history.operations, dense=False) if one.kind not in allowed] == []
    _check_newest(history, reader.name)


def _check_newest(history: History, reader: str) -> None:
    newest: dict[str, str] = {}
    for one in history.operations:
        if isinstance(one, Poll) and one.consumer == reader:
            for _, value in one.messages:
                newest[_key(value)] = value
    for one in history.operations:
        if isinstance(one, Send):
            assert one.outcome is Outcome.ACKED
            expected = newest.get(_key(one.value), "")
            assert _number(expected) >= _number(one.value), f"{one.value} is newer than {expected!r}"


def _key(value: str) -> str:
    return value.split("=")[0]


def _number(value: str) -> int:
    return int(value.split("=")[1].split("/")[2].rstrip("x")) if value else -1


def _run(tmp_path: Path, kills: int, settings: dict[str, str], keys: int = 0) -> tuple[History, Reader, dict[str, int]]:
    history, chance = History(), random.Random(kills)
    with ClarionProcess(tmp_path / "data", env=BUSY_CLEANERS) as server:
        make_topic(server.bootstrap, "t", PARTITIONS, **settings)
        publishers = [
            Publisher(history, server.bootstrap, f"p{number}", "t", PARTITIONS, seed=number, keys=keys)
            for number in range(2)
        ]
        for one in publishers:
            one.start()
        for _ in range(kills):
            enough = sum(one.acked for one in publishers) + 2000
            wait_for(lambda least=enough: sum(one.acked for one in publishers) > least, seconds=PATIENCE_S)
            time.sleep(chance.uniform(0, 0.1))
            server.kill9()
            server.start()
        for one in publishers:
            one.stop()
        reader = _read_all(history, server.bootstrap)
        assert "Traceback" not in server.stderr, server.stderr[-4000:]
    return history, reader, dict(reader.start_offsets)


def _read_all(history: History, bootstrap: str) -> Reader:
    """A last sweep may take away what a reader was about to read: then another one begins where the log begins now."""
    for number in range(SWEEPS_MAX):
        reader = Reader(history, bootstrap, f"reader-{number}", "t", PARTITIONS)
        try:
            reader.read_on()
        except Overtaken:
            continue
        return reader
    raise AssertionError(f"{SWEEPS_MAX} readers were overtaken, though nobody writes any more")
