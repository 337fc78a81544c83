"""A search by time among batches whose headers claim a time that none of their records has."""

from __future__ import annotations

from clarion.log import times
from clarion.wire import records
from clarion.wire.batch import read_header
from clarion.wire.records import assemble_batch
from tests.log.batches import append, open_log
from tests.sim.disk import SimDisk


def append_lie(log, claimed_ms: int, count: int = 3) -> None:
    honest = records.encode_batch([(b"k", b"v", (), 1000)] * count, base_offset=log.next_offset)
    header = read_header(honest)._replace(max_timestamp=claimed_ms)
    data = assemble_batch(header, bytes(honest[61:]))
    log.append(data, header, 1000)


def test_one_lie_ends_the_search_instead_of_one_decoding_after_the_other(monkeypatch):
    decoded = []
    original = records.iter_records
    monkeypatch.setattr(records, "iter_records", lambda batch: decoded.append(1) or original(batch))
    log = open_log(SimDisk())
    for _ in range(50):
        append_lie(log, claimed_ms=9000)
    assert log.offset_for_time(8000) == (9000, 0), "found by its header"
    assert len(decoded) == 1


def test_a_batch_of_too_many_records_is_found_by_its_header(monkeypatch):
    monkeypatch.setattr(times, "RECORDS_SEARCHED_MAX", 5)
    log = open_log(SimDisk())
    append(log, count=3, time_ms=1000)
    append(log, count=6, time_ms=2000)
    assert log.offset_for_time(1002) == (1002, 2)
    assert log.offset_for_time(2004) == (2005, 3), "its first record, and the time its header says"
