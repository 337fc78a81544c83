"""The pipeline's decoder against the broker's own codec, and against bytes that lie."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.model.errors import KafkaError
from clarion.pipeline.kafka import decode as decoding
from clarion.pipeline.kafka.batches import BatchRun, find_batches
from clarion.pipeline.kafka.errors import CorruptDataError
from clarion.wire.batch import BatchHeader, read_header
from clarion.wire.records import assemble_batch, decode_batch, encode_batch
from tests.pipeline.kafka.messages import EVERYTHING, compression, few_messages, read, read_runs, unhurried

PLAIN = [(b"k%d" % n, b"value %d" % n, (), 1000 + n) for n in range(10)]
NAMED = "t-0: the batch at offset"


def as_read(rows: list, base_offset: int = 0) -> list:
    return [(base_offset + n, stamp, key, value, headers) for n, (key, value, headers, stamp) in enumerate(rows)]


@unhurried
@given(st.lists(st.tuples(few_messages, compression), max_size=4), st.binary(max_size=70))
def test_several_batches_and_a_cut_one_come_out_as_the_broker_would_read_them(batches, cut):
    frame, expected = bytearray(), []
    for rows, code in batches:
        batch = encode_batch(rows, base_offset=len(expected), compression=code)
        expected += [tuple(record) for record in decode_batch(batch)]
        frame += batch
    frame += encode_batch(PLAIN, base_offset=len(expected))[: len(cut)]
    assert read(bytes(frame)) == expected


@unhurried
@given(few_messages, compression, st.integers(0, 12), st.integers(0, 12))
def test_only_the_wanted_offsets_come_out(rows, code, start, end):
    frame = bytes(encode_batch(rows, base_offset=0, compression=code))
    assert read(frame, start=start, end=end) == as_read(rows)[start:end]


@unhurried
@given(st.lists(few_messages, min_size=2, max_size=4))
def test_runs_of_several_partitions_are_decoded_together(partitions):
    frame, runs = bytearray(b"head"), []
    for nth, rows in enumerate(partitions):
        batch = encode_batch(rows, base_offset=100 * nth)
        runs.append(BatchRun(f"t-{nth}", len(frame), len(batch), 100 * nth, EVERYTHING))
        frame += batch + b"between"
    expected = [row for nth, rows in enumerate(partitions) for row in as_read(rows, 100 * nth)]
    plain, following = read_runs(bytes(frame), runs)
    assert plain == expected
    assert following == [100 * nth + len(rows) for nth, rows in enumerate(partitions)]


def test_log_append_time_is_the_batchs_and_says_so():
    frame = bytes(encode_batch(PLAIN, log_append_time=True))
    assert {row[1] for row in read(frame)} == {1009}
    run = [BatchRun("t-0", 0, len(frame), 0, EVERYTHING)]
    (rows,) = decoding.decode(frame, find_batches(frame, run), run)
    assert set(rows.timestamp_type.to_pylist()) == {1}
    assert str(rows.timestamp.type) == "timestamp[us, tz=UTC]"


def test_control_batches_are_skipped_and_passed():
    marker = encode_batch([(b"\0\0\0\1", b"\0" * 6, (), 1)], base_offset=10, control=True, transactional=True)
    frame = bytes(encode_batch(PLAIN) + marker)
    plain, following = read_runs(frame, [BatchRun("t-0", 0, len(frame), 0, EVERYTHING)])
    assert plain == as_read(PLAIN)
    assert following == [11]


def test_aborted_transactions_are_hidden_until_their_marker():
    def batch(at: int, producer: int, **how: bool) -> bytearray:
        return encode_batch(PLAIN[:1], base_offset=at, producer_id=producer, producer_epoch=0, base_sequence=0, **how)

    frame = bytes(
        batch(0, 7, transactional=True)  # aborted
        + batch(1, 8, transactional=True)  # committed
        + batch(2, 7)  # the same producer outside of any transaction
        + batch(3, 7, transactional=True, control=True)  # abort
        + batch(4, 7, transactional=True)  # its next transaction
    )
    assert [row[0] for row in read(frame, aborted=((7, 0),))] == [1, 2, 4]
    assert [row[0] for row in read(frame)] == [0, 1, 2, 4]


def test_gaps_of_compaction_are_kept_and_an_emptied_batch_is_passed():
    whole = encode_batch(PLAIN)
    header = read_header(whole)
    spans = list(_spans(bytes(whole)))
    kept = b"".join(spans[n] for n in (2, 5))
    sparse = assemble_batch(header._replace(record_count=2), kept)
    empty = assemble_batch(header._replace(record_count=0, base_offset=10), b"")
    plain, following = read_runs(bytes(sparse + empty), [BatchRun("t-0", 0, len(sparse) + len(empty), 0, EVERYTHING)])
    assert [row[0] for row in plain] == [2, 5]
    assert following == [20]


def _spans(batch: bytes):
    at = 61
    while at < len(batch):
        size = 1 + (batch[at] >> 1)
        yield batch[at : at + size]
        at += size


def test_headers_that_are_not_text_are_replaced_and_many_of_them_are_read():
    odd = (("\udcff", b"x"), ("ok", None))
    many = tuple((f"h{n}", b"%d" % n) for n in range(500))
    rows = read(bytes(encode_batch([(None, b"v", odd, 1), (None, b"w", many, 2), (b"k", None, (), 3)])))
    assert rows[0][4] == (("�", b"x"), ("ok", None))
    assert rows[1][4] == many
    assert rows[2][4] == ()


def test_a_timestamp_beyond_a_microsecond_column_is_held_at_its_edge():
    (row,) = read(bytes(encode_batch([(b"k", b"v", (), 2**60)])))
    assert row[1] == 2**63 // 1000 - 1


# ------------------------------------------------------------------------------------------------ lies


@unhurried
@given(few_messages, compression, st.data())
def test_a_flipped_byte_is_found_by_the_crc(rows, code, data):
    batch = bytearray(encode_batch(rows, base_offset=5, compression=code))
    at = data.draw(st.integers(61, len(batch) - 1))
    batch[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptDataError, match=f"{NAMED} 5 is damaged: it does not match its CRC"):
        read(bytes(batch))


@unhurried
@given(few_messages, st.data())
def test_damage_under_a_good_crc_is_either_harmless_or_named(rows, data):
    """The broker's codec and ours agree on what is damaged, except that ours reads no headers it is not asked for."""
    batch = bytearray(encode_batch(rows))
    records = bytearray(batch[61:])
    for _ in range(data.draw(st.integers(1, 3))):
        records[data.draw(st.integers(0, len(records) - 1))] = data.draw(st.integers(0, 255))
    header = read_header(batch)
    lying = bytes(assemble_batch(header, records))
    try:
        expected = [tuple(record) for record in decode_batch(lying)]
    except KafkaError:
        with pytest.raises(CorruptDataError, match=NAMED):
            read(lying)
        return
    ours = read(lying)
    assert [row[:1] + row[2:4] for row in ours] == [row[:1] + row[2:4] for row in expected]


LIES = {
    "record_count": (11, 9, 0x7FFFFFFF, -1),
    "last_offset_delta": (8, -1),
    "magic": (1, 3),
    "base_timestamp": (2**62, -(2**62)),
    "base_offset": (-5,),
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in LIES.items() for value in values])
def test_a_header_that_lies_is_refused(field, value):
    batch = encode_batch(PLAIN)
    lying = bytes(assemble_batch(read_header(batch)._replace(**{field: value}), batch[61:]))
    with pytest.raises(CorruptDataError, match=NAMED):
        read(lying)


def test_a_length_too_small_for_a_header_is_refused():
    batch = bytearray(encode_batch(PLAIN, base_offset=3))
    struct.pack_into(">i", batch, 8, 20)
    with pytest.raises(CorruptDataError, match="t-0: after offset 3 comes a batch that says it has 20 bytes"):
        read_runs(bytes(batch), [BatchRun("t-0", 0, len(batch), 3, EVERYTHING)])


@pytest.mark.parametrize("code", [1, 2, 3, 4])
def test_a_bomb_is_defused(code):
    batch = bytes(encode_batch([(None, bytes(3_000_000), (), 1)], compression=code))
    run = [BatchRun("t-0", 0, len(batch), 0, EVERYTHING)]
    with pytest.raises(CorruptDataError, match="decompresses to more than 1000000 bytes"):
        list(decoding.decode(batch, find_batches(batch, run), run, decompressed_bytes_max=1_000_000))


@pytest.mark.parametrize("code", [1, 2, 3, 4, 5])
def test_garbage_that_says_it_is_compressed_is_refused(code):
    batch = encode_batch(PLAIN)
    header = read_header(batch)
    lying = bytearray(assemble_batch(header, batch[61:]))
    struct.pack_into(">h", lying, 21, code)
    fixed = bytes(_with_crc(lying))
    with pytest.raises(CorruptDataError, match=NAMED):
        read(fixed)


def _with_crc(batch: bytearray) -> bytearray:
    from crc32c import crc32c

    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return batch


@pytest.mark.parametrize("length", [2**31 - 1, 2**40, 2**62, -(2**62), -2])
@pytest.mark.parametrize("field", ["key", "value", "header name", "header value"])
def test_a_length_that_points_out_of_its_record_is_refused(field, length):
    def varint(number: int) -> bytes:
        folded, out = (number << 1) ^ (number >> 63), bytearray()
        while folded > 0x7F:
            out.append(folded & 0x7F | 0x80)
            folded >>= 7
        return bytes([*out, folded])

    fields = {"key": b"\2k", "value": b"\2v", "header name": b"\2h", "header value": b"\2w"}
    fields[field] = varint(length) + b"x"
    body = b"\0\0\0" + fields["key"] + fields["value"] + b"\2" + fields["header name"] + fields["header value"]
    record = varint(len(body)) + body
    header = BatchHeader(0, 0, 0, 2, 0, 0, 0, 0, 0, -1, -1, -1, 1)
    with pytest.raises(CorruptDataError, match=NAMED):
        read(bytes(assemble_batch(header, record)))


def test_large_compressed_batches_come_in_parts():
    rows = [(None, bytes(100_000), (), 1)] * 50
    frame = b"".join(encode_batch(rows, base_offset=50 * n, compression=4) for n in range(4))
    run = [BatchRun("t-0", 0, len(frame), 0, EVERYTHING)]
    parts = list(decoding.decode(frame, find_batches(frame, run), run))
    assert [part.count for part in parts] == [100, 100]
    assert np.array_equal(np.concatenate([part.offset.to_numpy() for part in parts]), np.arange(200))
