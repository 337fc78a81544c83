"""A search by time among batches whose headers claim a time that none of their records has."""

from __future__ import annotations

import tracemalloc

import pytest

from clarion.log import times
from clarion.wire import records
from clarion.wire.batch import read_header
from clarion.wire.compression import Codec
from clarion.wire.records import assemble_batch
from clarion.wire.varints import put
from tests.log.batches import append, open_log
from tests.sim.disk import SimDisk


def append_lie(log, claimed_ms: int, count: int = 3) -> None:
    honest = records.encode_batch([(b"k", b"v", (), 1000)] * count, base_offset=log.next_offset)
    header = read_header(honest)._replace(max_timestamp=claimed_ms)
    data = assemble_batch(header, bytes(honest[61:]))
    log.append(data, header, 1000)


@pytest.mark.uncompiled
def test_one_lie_ends_the_search_instead_of_one_decoding_after_the_other(monkeypatch):
    decoded = []
    original = records.records_data
    monkeypatch.setattr(records, "records_data", lambda *batch: decoded.append(1) or original(*batch))
    log = open_log(SimDisk())
    for _ in range(50):
        append_lie(log, claimed_ms=9000)
    assert log.offset_for_time(8000) == (9000, 0), "found by its header"
    assert len(decoded) == 1


@pytest.mark.uncompiled
def test_a_batch_of_too_many_records_is_found_by_its_header(monkeypatch):
    monkeypatch.setattr(times, "RECORDS_SEARCHED_MAX", 5)
    log = open_log(SimDisk())
    append(log, count=3, time_ms=1000)
    append(log, count=6, time_ms=2000)
    assert log.offset_for_time(1002) == (1002, 2)
    assert log.offset_for_time(2004) == (2005, 3), "its first record, and the time its header says"


def test_a_batch_that_unpacks_to_too_much_is_found_by_its_header():
    log = open_log(SimDisk())
    append(log, count=1, time_ms=1000)
    large = [(None, bytes(times.UNPACKED_BYTES_MAX), (), 2000), (None, b"x", (), 2010)]
    data = records.encode_batch(large, base_offset=log.next_offset, compression=Codec.ZSTD)
    log.append(data, read_header(data), 2000)
    assert log.offset_for_time(2005) == (2010, 1), "its first record, and the time its header says"
    assert log.max_timestamp() == (2010, 1)


def test_a_search_makes_nothing_of_the_headers_of_a_record():
    """One packed message of two kilobytes may have millions of them."""
    log = open_log(SimDisk())
    count = 300_000
    record = b"\x00\x00\x00\x01\x01" + varint(count) + bytes(2 * count)
    spans = varint(len(record)) + record + b"\x0c\x00\x14\x02\x01\x01\x00"
    honest = read_header(records.encode_batch([(None, None, (), 1000), (None, None, (), 1010)]))
    data = assemble_batch(honest._replace(attributes=Codec.ZSTD), spans)
    assert len(records.decode_batch(data)[0].headers) == count
    log.append(data, read_header(data), 1000)
    tracemalloc.start()
    try:
        assert log.offset_for_time(1005) == (1010, 1)
        assert log.max_timestamp() == (1010, 1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * len(spans), "what was unpacked, a few times over"


def varint(number: int) -> bytes:
    out = bytearray()
    put(out, number)
    return bytes(out)


def test_messages_without_a_time_are_not_found_by_time():
    """Clients leave the greatest time of such a batch at 0."""
    log = open_log(SimDisk())
    for _ in range(3):
        honest = records.encode_batch([(b"k", b"v", (), -1)], base_offset=log.next_offset)
        header = read_header(honest)._replace(max_timestamp=0)
        log.append(assemble_batch(header, bytes(honest[61:])), header, 1000)
    assert log.offset_for_time(0) is None
    assert log.max_timestamp() == (-1, -1)
    append(log, count=1, time_ms=1000)
    assert log.offset_for_time(0) == (1000, 3)
