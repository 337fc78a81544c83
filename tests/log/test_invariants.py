"""What must be true of a log whoever uses it: a mistake of ours stops at the first sign of it, before it is on disk."""

from __future__ import annotations

import pytest

from clarion.log.log import Log
from clarion.wire.batch import read_header
from tests.log.batches import append, batch, open_log
from tests.sim.disk import SimDisk


@pytest.fixture
def log() -> Log:
    log = open_log(SimDisk())
    for _ in range(8):
        append(log, size=200, epoch=3)
    log.flush()
    return log


def refused(log: Log, data: bytes, reason: str) -> None:
    before = log.end
    with pytest.raises(AssertionError, match=reason):
        log.append(data, read_header(data), 1000)
    assert log.end == before


def test_offsets_and_epochs_never_fall(log: Log) -> None:
    refused(log, batch(7, epoch=3), "offsets grow")
    refused(log, batch(8, epoch=2), "leader epoch 2 comes after 3")


def test_no_batch_is_written_over_another(log: Log) -> None:
    log.segments[-1]._size -= 1
    refused(log, batch(8, epoch=3, size=1), "where the one before it ends")


def test_a_start_stays_inside_the_log(log: Log) -> None:
    with pytest.raises(AssertionError, match="behind the log's end"):
        log.raise_start(9)


def test_a_flush_that_was_not_run_or_says_more_than_there_is_does_not_count(log: Log) -> None:
    append(log, epoch=3)
    ticket = log.begin_flush()
    with pytest.raises(AssertionError, match="never run"):
        log.finish_flush(ticket)
    ticket.run()
    ticket.sizes = [(segment, size + 1) for segment, size in ticket.sizes]
    with pytest.raises(AssertionError, match="are synced, which has"):
        log.finish_flush(ticket)


def test_a_segment_begins_behind_the_one_before_it(log: Log) -> None:
    with pytest.raises(AssertionError, match="does not come behind"):
        log._segments.roll(log.segments[-1].base_offset, 1000)
