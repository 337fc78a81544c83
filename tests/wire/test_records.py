"""Records inside a batch: the same as other libraries read and write them, and no lie gets through."""

import struct

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as PyBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as PyBuilder

from clarion.model.errors import ErrorCode, KafkaError
from clarion.wire.batch import HEADER_BYTES, check_produced_batch, read_header, stamp_log_append_time
from clarion.wire.compression import Codec
from clarion.wire.limits import WorkBudget
from clarion.wire.records import (
    RECORDS_NAMED_MAX,
    Record,
    assemble_batch,
    check_deep,
    decode_batch,
    encode_batch,
    iter_records,
    put_shifted,
    records_data,
    scan_spans,
)
from clarion.wire.varints import length_of, put, read_long

NOW = 1_700_000_000_000
maybe_bytes = st.none() | st.binary(max_size=200)
headers = st.lists(st.tuples(st.text(max_size=10), maybe_bytes), max_size=3).map(tuple)
timestamps = st.integers(0, 2**50)
new_records = st.lists(st.tuples(maybe_bytes, maybe_bytes, headers, timestamps), min_size=1, max_size=80)
codecs = st.sampled_from(list(Codec))


def as_records(new, base_offset=0):
    return [
        Record(base_offset + delta, timestamp, key, value, head)
        for delta, (key, value, head, timestamp) in enumerate(new)
    ]


# ------------------------------------------------------------------------------------------------ round trips


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_number_comes_back_and_is_as_long_as_foretold(number):
    out = bytearray()
    put(out, number)
    assert read_long(bytes(out), 0) == (number, len(out))
    assert len(out) == length_of(number)


def test_a_number_of_more_than_64_bits_is_refused():
    for data in (b"\xff" * 10 + b"\x01", b"\xff" * 9 + b"\x02", b"\x80" * 20):
        with pytest.raises(KafkaError):
            read_long(data, 0)


@given(new_records, codecs, st.integers(0, 2**50))
def test_records_come_back_as_they_went_in(new, codec, base_offset):
    batch = encode_batch(new, base_offset=base_offset, compression=codec)
    assert decode_batch(batch) == as_records(new, base_offset)
    header = check_produced_batch(memoryview(batch))
    check_deep(batch, header, keys_required=False)
    assert header.max_timestamp == max(record[3] for record in new)


@settings(max_examples=60)
@given(new_records, codecs)
def test_aiokafka_reads_what_we_write(new, codec):
    batch = AioBatch(bytes(encode_batch(new, compression=codec)))
    assert batch.validate_crc()
    assert [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch] == as_records(new)


@settings(max_examples=60)
@given(new_records, codecs)
def test_we_read_what_aiokafka_writes(new, codec):
    builder = AioBuilder(2, int(codec), 0, -1, -1, -1, 10**8)
    for delta, (key, value, head, timestamp) in enumerate(new):
        builder.append(delta, timestamp, key, value, list(head))
    batch = bytes(builder.build())
    assert decode_batch(batch) == as_records(new)
    check_deep(batch, check_produced_batch(memoryview(batch)), keys_required=False)


@settings(max_examples=60)
@given(new_records, st.sampled_from([Codec.NONE, Codec.GZIP]))
def test_kafka_python_reads_what_we_write_and_the_other_way_round(new, codec):
    batch = PyBatch(bytes(encode_batch(new, compression=codec)))
    assert batch.validate_crc()
    assert [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch] == as_records(new)
    builder = PyBuilder(2, int(codec), False, -1, -1, -1, 10**8)
    for delta, (key, value, head, timestamp) in enumerate(new):
        builder.append(delta, timestamp, key, value, list(head))
    assert decode_batch(bytes(builder.build())) == as_records(new)


def test_our_bytes_are_aiokafkas_bytes():
    new = [(b"k%d" % i, b"v" * i, (("h", b"1"),), NOW + i * 37) for i in range(200)]
    builder = AioBuilder(2, 0, 0, 7, 1, 5, 10**8)
    for delta, (key, value, head, timestamp) in enumerate(new):
        builder.append(delta, timestamp, key, value, list(head))
    assert encode_batch(new, producer_id=7, producer_epoch=1, base_sequence=5, leader_epoch=-1) == builder.build()


def test_a_batch_stamped_with_append_time_gives_that_time_to_every_record():
    batch = encode_batch([(b"k", b"v", (), NOW), (b"k", b"v", (), NOW + 5)])
    stamp_log_append_time(batch, NOW + 99)
    assert [record.timestamp for record in iter_records(batch)] == [NOW + 99, NOW + 99]


def test_a_header_name_that_is_not_utf8_comes_out_as_it_went_in():
    new = [(None, None, ((b"\xff\xfe".decode("utf-8", "surrogateescape"), b"1"),), NOW)]
    assert decode_batch(encode_batch(new)) == as_records(new)


def test_a_batch_without_records_is_legal_on_disk():
    header = read_header(encode_batch([(b"k", b"v", (), NOW)]))._replace(record_count=0, last_offset_delta=9)
    assert decode_batch(assemble_batch(header, b"")) == []


@given(new_records, st.integers(-(2**40), 2**40))
def test_a_record_moved_to_another_base_timestamp_keeps_its_own(new, shift):
    batch = encode_batch(new)
    header, data = read_header(batch), records_data(batch, read_header(batch))
    out = bytearray()
    for span in scan_spans(data, header):
        put_shifted(out, data, span, shift)
    moved = assemble_batch(header._replace(base_timestamp=header.base_timestamp + shift), out)
    assert decode_batch(moved) == as_records(new)


# ------------------------------------------------------------------------------------------------ lies


def sealed(header, data, **claims):
    """A batch with a good CRC whose header claims something else than is true."""
    return bytes(assemble_batch(header._replace(**claims), data))


HONEST = encode_batch([(b"a", b"1", (), NOW), (b"b", b"2", (("h", b"x"),), NOW + 1)])
HEADER, DATA = read_header(HONEST), bytes(HONEST[HEADER_BYTES:])


def refusal(batch):
    with pytest.raises(KafkaError) as caught:
        decode_batch(batch)
    return caught.value.code


@pytest.mark.parametrize(
    "claims",
    [
        {"record_count": 1, "last_offset_delta": 0},
        {"record_count": 3, "last_offset_delta": 2},
        {"record_count": -1},
        {"record_count": 2**31 - 1, "last_offset_delta": 2**31 - 1},
        {"last_offset_delta": 0},
        {"last_offset_delta": -1},
        {"base_timestamp": 2**63 - 1},
    ],
)
def test_a_header_that_lies_about_its_records_is_refused(claims):
    assert refusal(sealed(HEADER, DATA, **claims)) is ErrorCode.INVALID_RECORD


def record(length=None, attributes=0, shift=0, delta=0, key=b"\x02k", value=b"\x02v", tail=b"\x00"):
    body = bytearray([attributes])
    put(body, shift)
    put(body, delta)
    body += key + value + tail
    out = bytearray()
    put(out, len(body) if length is None else length)
    return bytes(out + body)


ONE = HEADER._replace(record_count=1, last_offset_delta=0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x0c",
        record() + b"\x00",
        record(length=2**31),
        record(length=-1),
        record(length=0),
        record(length=9),
        record(length=7),
        record(delta=1),
        record(delta=-1),
        record(delta=2**40),
        record(shift=2**62),
        record(key=b"\x03"),
        record(key=b"\x7f"),
        record(key=b"\xff\xff\xff\xff\x0f"),
        record(value=b"\x03"),
        record(value=b"\xfe\xff\xff\xff\x0f"),
        record(value=b"\xff" * 11),
        record(tail=b"\x01"),
        record(tail=b"\x02"),
        record(tail=b"\x02\x01\x00"),
        record(tail=b"\x02\x02a\x03"),
        record(tail=b"\x02\x7ea\x01"),
        record(tail=b"\xfe\xff\xff\xff\x0f"),
        record(tail=b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
    ],
)
def test_a_record_that_is_not_what_it_says_is_refused(data):
    assert decode_batch(sealed(ONE, record())) == [Record(0, NOW, b"k", b"v", ())]
    assert refusal(sealed(ONE, data)) is ErrorCode.INVALID_RECORD


def test_offsets_inside_a_batch_must_rise():
    two = HEADER._replace(record_count=2, last_offset_delta=5)
    assert [r.offset for r in decode_batch(sealed(two, record(delta=1) + record(delta=4)))] == [1, 4]
    for first, second in ((1, 1), (2, 1), (0, 6)):
        assert refusal(sealed(two, record(delta=first) + record(delta=second))) is ErrorCode.INVALID_RECORD


def test_a_cut_off_or_changed_batch_is_corrupt():
    assert refusal(HONEST[:60]) is ErrorCode.CORRUPT_MESSAGE
    assert refusal(HONEST[:-1]) is ErrorCode.CORRUPT_MESSAGE
    assert refusal(bytes(HONEST) + b"x") is ErrorCode.CORRUPT_MESSAGE
    changed = bytearray(HONEST)
    changed[-1] ^= 1
    assert refusal(changed) is ErrorCode.CORRUPT_MESSAGE
    changed[16] = 1
    assert refusal(changed) is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


@pytest.mark.parametrize("bad", [[2], [0, 1, 9], list(range(10))])
def test_all_records_without_a_key_are_named(bad):
    batch = encode_batch([(None if number in bad else b"k", b"v", (), NOW) for number in range(10)])
    with pytest.raises(KafkaError) as caught:
        check_deep(batch, read_header(batch), keys_required=True)
    assert (caught.value.code, list(caught.value.records)) == (ErrorCode.INVALID_RECORD, bad)


def test_a_refusal_names_a_bounded_number_of_records():
    batch = encode_batch([(None, b"v", (), NOW)] * (RECORDS_NAMED_MAX + 500))
    with pytest.raises(KafkaError) as caught:
        check_deep(batch, read_header(batch), keys_required=True)
    assert list(caught.value.records) == list(range(RECORDS_NAMED_MAX))


def test_a_compression_bomb_is_refused():
    bomb = encode_batch([(None, bytes(10**7), (), NOW)], compression=Codec.ZSTD)
    assert len(bomb) < 2000
    with pytest.raises(KafkaError, match="more than 1000000 bytes"):
        decode_batch(bomb, decompressed_bytes_max=1_000_000)


# ------------------------------------------------------------------------------------------------ deep validation


def deep_refusal(batch, keys_required=False):
    with pytest.raises(KafkaError) as caught:
        check_deep(batch, read_header(batch), keys_required=keys_required)
    return caught.value.code


def test_a_compacted_topic_needs_a_key_in_every_record():
    batch = encode_batch([(b"k", b"v", (), NOW), (None, b"v", (), NOW)])
    check_deep(batch, read_header(batch), keys_required=False)
    assert deep_refusal(batch, keys_required=True) is ErrorCode.INVALID_RECORD
    empty_key = encode_batch([(b"", b"v", (), NOW)])
    check_deep(empty_key, read_header(empty_key), keys_required=True)


def test_a_produced_batch_has_no_holes():
    two = HEADER._replace(record_count=2, last_offset_delta=2)
    assert deep_refusal(sealed(two, record(delta=0) + record(delta=2))) is ErrorCode.INVALID_RECORD


def test_no_record_is_later_than_its_batch_says():
    late = sealed(HEADER._replace(max_timestamp=NOW), DATA)
    assert deep_refusal(late) is ErrorCode.INVALID_TIMESTAMP
    assert deep_refusal(sealed(ONE, record(shift=-(NOW + 2)))) is ErrorCode.INVALID_TIMESTAMP


def test_records_without_a_timestamp_are_accepted():
    batch = encode_batch([(b"k", b"v", (), -1)])
    check_deep(batch, read_header(batch), keys_required=True)


def test_a_budget_pays_for_records_headers_and_unpacked_bytes_of_all_batches():
    batch = encode_batch([(b"k", b"v" * 50, (("a", b"1"), ("b", None)), NOW)] * 10, compression=Codec.ZSTD)
    size = len(records_data(batch, read_header(batch)))
    budget = WorkBudget(steps=70, unpacked_bytes=3 * size)
    check_deep(batch, read_header(batch), keys_required=True, budget=budget)
    assert (budget.steps_left, budget.unpacked_bytes_left) == (70 - 10 * 3, 2 * size)
    check_deep(batch, read_header(batch), keys_required=True, budget=budget)
    with pytest.raises(KafkaError, match="2 headers") as caught:
        check_deep(batch, read_header(batch), keys_required=True, budget=budget)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    with pytest.raises(KafkaError, match="unpack to too many bytes in all"):
        check_deep(batch, read_header(batch), keys_required=True, budget=budget)


def test_what_cannot_be_unpacked_costs_as_well():
    """A hundred bombs in one request must not each be tried."""
    bomb = encode_batch([(b"k", bytes(10**6), (), NOW)], compression=Codec.ZSTD)
    budget = WorkBudget(steps=1000, unpacked_bytes=1000)
    with pytest.raises(KafkaError, match="more than 1000 bytes"):
        check_deep(bomb, read_header(bomb), keys_required=True, budget=budget)
    assert budget.unpacked_bytes_left == 0


def test_a_large_request_has_earned_more_work_than_a_small_one():
    small, large, largest = map(WorkBudget.for_bytes, (1000, 10**6, 10**8))
    assert small.steps_left < large.steps_left < largest.steps_left
    assert small.unpacked_bytes_left < large.unpacked_bytes_left < largest.unpacked_bytes_left
    assert small.batch_bytes_max == largest.batch_bytes_max, "memory for one batch does not grow"


# ------------------------------------------------------------------------------------------------ fuzz


def reseal(batch):
    """Make the CRC right again, so that the damage gets past it."""
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))


@settings(max_examples=250, deadline=1000)
@given(new_records, codecs, st.data())
def test_a_damaged_batch_gives_records_or_a_kafka_error_and_nothing_else(new, codec, draw):
    batch = encode_batch(new, compression=codec)
    for _ in range(draw.draw(st.integers(1, 3))):
        batch[draw.draw(st.integers(21, len(batch) - 1))] = draw.draw(st.integers(0, 255))
    reseal(batch)
    try:
        for found in iter_records(batch, decompressed_bytes_max=1_000_000):
            assert found.offset >= 0
    except KafkaError:
        pass
    try:
        check_deep(batch, check_produced_batch(memoryview(batch)), keys_required=True)
    except KafkaError:
        pass


@settings(max_examples=200, deadline=1000)
@given(st.binary(max_size=120), st.integers(0, 40))
def test_random_bytes_behind_an_honest_header_give_records_or_a_kafka_error(data, count):
    batch = sealed(HEADER, data, record_count=count, last_offset_delta=count)
    try:
        assert len(decode_batch(batch)) == count
    except KafkaError:
        pass
