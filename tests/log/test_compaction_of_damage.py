"""Compaction of batches that lie, are bombs or cannot be read: they stay as they are, and delete nothing."""

import pytest

from clarion.log import batch_filter
from clarion.log.batch_filter import RECORDS_MAX
from clarion.wire.batch import read_header
from clarion.wire.compression import Codec
from clarion.wire.records import assemble_batch, decode_batch, encode_batch
from clarion.wire.varints import put
from tests.log.keys import COMPACT, GRACE, HOUR, write
from tests.log.partitions import NOW, append_bytes, clean, topic
from tests.wire.test_records import reseal

POLICY = COMPACT


# ------------------------------------------------------------------------------------------------ lies and bombs


def lie(log, *pairs):
    batch = encode_batch([(key, value, (), NOW) for key, value in pairs], base_offset=log.next_offset)
    batch[-1] = 40  # the last record now claims to have twenty headers
    reseal(batch)
    return batch


def test_a_batch_that_lies_is_kept_as_it_is_and_deletes_nothing(log):
    write(log, "a=1", "b=1")
    liar = lie(log, (b"a", b"2"), (b"b", b"2"))
    append_bytes(log, liar)
    write(log, "c=1")
    _, result = clean(log, COMPACT, NOW)
    assert len(result.unreadable) == 1
    batches = list(log.batches(0))
    assert [one.key for one in decode_batch(batches[0])] == [b"a", b"b"]
    assert batches[1] == liar


def test_a_bomb_is_kept_as_it_is(log):
    bomb = encode_batch([(b"a", bytes(80 << 20), (), NOW)], compression=Codec.ZSTD)
    append_bytes(log, bomb)
    write(log, "a=2")
    clean(log, COMPACT, NOW)
    assert next(iter(log.batches(0))) == bomb


def test_a_batch_of_very_many_records_is_kept_as_it_is(log):
    count = RECORDS_MAX + 1
    header = read_header(encode_batch([(b"", b"", (), NOW)]))._replace(
        attributes=int(Codec.ZSTD), record_count=count, last_offset_delta=count - 1
    )
    crowd = assemble_batch(header, b"x" * 100)
    append_bytes(log, crowd)
    write(log, "a=2")
    _, result = clean(log, COMPACT, NOW)
    assert len(result.unreadable) == 1
    assert next(iter(log.batches(0))) == crowd


def test_a_batch_with_a_wrong_checksum_is_kept_as_it_is(log, tmp_path):
    write(log, "a=1", "b=1")
    write(log, "a=2")
    path = tmp_path / "t-0" / "00000000000000000000.log"
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 0xFF
    path.write_bytes(damaged)
    _, result = clean(log, COMPACT, NOW)
    assert len(result.unreadable) == 1
    assert next(iter(log.batches(0))) == damaged


@pytest.mark.parametrize("what", ["unreadable", "transactional"])
def test_no_tombstone_goes_while_a_batch_before_it_may_hold_an_older_value(log, what):
    if what == "unreadable":
        append_bytes(log, lie(log, (b"a", b"old")))
    else:
        write(log, "a=old", transactional=True, producer_id=1, producer_epoch=0, base_sequence=0, roll=False)
    write(log, "a", "b=1")
    for later in (0, HOUR, 2 * HOUR):
        _, result = clean(log, GRACE, NOW + later)
        assert result.next_horizon_ms is None, "nothing is to be done when the time comes"
    assert [(one.offset, one.key, one.value) for one in decode_batch(list(log.batches(0))[-1])] == [
        (1, b"a", None),
        (2, b"b", b"1"),
    ]


def test_a_tombstone_whose_grace_is_over_stays_if_a_batch_before_it_became_unreadable(log, tmp_path):
    write(log, "x=1")
    write(log, "a", "b=1")
    clean(log, topic(cleanup_policy="compact", delete_retention_ms=HOUR, segment_bytes=1024), NOW)
    path = tmp_path / "t-0" / "00000000000000000000.log"
    damaged = bytearray(path.read_bytes())
    damaged[68] ^= 0xFF  # in the records of the first batch
    path.write_bytes(damaged)
    clean(log, GRACE, NOW + 2 * HOUR, first_dirty=3)
    last = decode_batch(list(log.batches(1))[-1])
    assert [(one.key, one.value) for one in last] == [(b"a", None), (b"b", b"1")]


@pytest.mark.uncompiled
def test_what_could_not_be_read_is_not_unpacked_again(log, monkeypatch):
    header = read_header(encode_batch([(b"a", None, (), NOW)]))
    headers_count = 1_000_001
    record = b"\x00\x00\x00\x02a\x01" + varint(headers_count) + bytes(2 * headers_count)
    for offset in range(3):
        bomb = header._replace(attributes=int(Codec.ZSTD), base_offset=offset)
        append_bytes(log, assemble_batch(bomb, varint(len(record)) + record))
    write(log, "a=2")
    unpacked = []
    original = batch_filter.records_data
    monkeypatch.setattr(
        batch_filter, "records_data", lambda *batch: unpacked.append(batch[1].base_offset) or original(*batch)
    )
    _, result = clean(log, COMPACT, NOW)
    assert unpacked == [0, 1, 2, 3, 3], "the honest one for its keys and for its records, the others once"
    clean(log, COMPACT, NOW, unreadable=result.unreadable)
    assert unpacked[5:] == [3, 3]


def varint(number):
    out = bytearray()
    put(out, number)
    return bytes(out)
