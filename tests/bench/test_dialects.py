"""Counting replies and deliveries, however the bytes are cut into reads."""

import struct

from bench.load.dialects import AckReplies, EqualReplies, FetchReadings, PullReadings
from hypothesis import given
from hypothesis import strategies as st

from bench import frames

SAMPLE = frames.batch_of(100, 1000, 0)


def cut(data: bytes, sizes: list[int]) -> list[memoryview]:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(memoryview(data)[at : at + size])
        at += size
    return [piece for piece in (*pieces, memoryview(data)[at:]) if len(piece)]


cuts = st.lists(st.integers(1, 40), max_size=60)


@given(cuts)
def test_equal_replies_are_counted_over_any_cut(sizes):
    replies = EqualReplies(17)
    assert sum(replies.feed(piece) for piece in cut(bytes(17 * 23), sizes)) == 23


@given(cuts)
def test_every_jetstream_acknowledgement_is_counted_once(sizes):
    stream = b"".join(b'MSG _I.0 1 27\r\n{"stream":"S","seq":%d}\r\n' % number for number in range(12))
    replies = AckReplies(messages_per_frame=3)
    assert sum(replies.feed(piece) for piece in cut(stream, sizes)) == 4


@given(cuts)
def test_every_jetstream_delivery_is_counted_once(sizes):
    readings = PullReadings("s", SAMPLE, 0, new_only=False)
    assert readings.feed(memoryview(b'MSG _I.0 1 9\r\n{"ok":1}\r\n')) is not None
    stream = b"".join(b"MSG s 1 $JS.ACK.s.r0.1.%d.0 5\r\nhello\r\n" % number for number in range(15))
    for piece in cut(stream, sizes):
        readings.feed(piece)
    assert readings.messages == 15


@given(cuts)
def test_a_fetch_response_is_skipped_and_the_next_one_asked_for(sizes):
    readings = FetchReadings("orders", SAMPLE, wrap_at=0)
    asked = [readings.feed(piece) for piece in cut(fetch_response(SAMPLE.data * 3 + b"partial"), sizes)]
    assert asked[:-1] == [None] * (len(asked) - 1)
    expected = frames.fetch("orders", 0, 3 * SAMPLE.messages, bytes_max=1024 * 1024)
    assert asked[-1] == bytes(expected)
    assert readings.messages == 3 * SAMPLE.messages


def test_an_empty_long_poll_asks_again_at_the_same_place():
    readings = FetchReadings("orders", SAMPLE, wrap_at=0)
    assert readings.feed(memoryview(fetch_response(b""))) == readings.first_request()


def test_a_reader_begins_again_at_the_end_of_a_filled_topic():
    readings = FetchReadings("orders", SAMPLE, wrap_at=2 * SAMPLE.messages)
    assert readings.feed(memoryview(fetch_response(SAMPLE.data * 2))) == readings.first_request()


def fetch_response(records: bytes) -> bytes:
    """Fetch v12 for one partition, as a broker writes it."""
    body = b"".join((
        struct.pack(">ibihi", 1, 0, 0, 0, 0), b"\x02", b"\x07orders", b"\x02", struct.pack(">ihqqq", 0, 0, 900, 900, 0),
        b"\x00", struct.pack(">i", -1), frames.uvarint(len(records) + 1), records, b"\x00\x00\x00",
    ))  # fmt: skip
    return struct.pack(">i", len(body)) + body
