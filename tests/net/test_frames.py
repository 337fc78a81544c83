"""Frames come out whole and in order, however the network cuts them, and a length alone costs no memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.net.budget import SMALL_BYTES
from clarion.net.frames import LENGTH, FrameReader, Scratch


def framed(*bodies: bytes) -> bytes:
    return b"".join(LENGTH.pack(len(body)) + body for body in bodies)


def feed(reader: FrameReader, data: bytes, cuts: list[int]) -> list[bytes]:
    """Deliver `data` in pieces as a kernel would: never more than the buffer that the reader offers."""
    frames: list[bytes] = []
    rest = memoryview(data)
    cuts = list(cuts)
    while rest:
        buffer = reader.buffer()
        count = max(1, min(len(buffer), len(rest), cuts.pop(0) if cuts else len(rest)))
        buffer[:count] = rest[:count]
        rest = rest[count:]
        frames.extend(bytes(frame) for frame in reader.received(count))
        if reader.nonsense is not None:
            break
    return frames


@given(st.lists(st.binary(max_size=300), max_size=20), st.lists(st.integers(1, 200), max_size=60))
def test_every_way_of_cutting_the_stream_gives_the_same_frames(bodies: list[bytes], cuts: list[int]) -> None:
    reader = FrameReader(Scratch(128), 1000)
    assert feed(reader, framed(*bodies), cuts) == bodies
    assert not reader.has_unfinished


def test_a_frame_larger_than_the_scratch_buffer_arrives_whole() -> None:
    body = bytes(range(256)) * 20_000
    reader = FrameReader(Scratch(4096), len(body))
    assert feed(reader, framed(b"before", body, b"after"), []) == [b"before", body, b"after"]


@pytest.mark.parametrize("is_narrow", [False, True], ids=["plenty of memory", "memory is short"])
def test_memory_follows_what_has_arrived_and_not_what_was_announced(is_narrow: bool) -> None:
    scratch = Scratch(4096)
    scratch.narrow(is_narrow)
    reader = FrameReader(scratch, 100_000_000)
    feed(reader, LENGTH.pack(100_000_000) + b"x", [])
    assert reader.held_bytes <= 4096
    arrived = 5
    for _ in range(200):
        feed(reader, bytes(4000), [])
        arrived += 4000
        assert reader.arrived_bytes == arrived
        at_once = 4096 if is_narrow or arrived < 16 * 1024 else 1024 * 1024
        assert reader.held_bytes <= max(at_once, 2 * arrived)


def test_a_narrow_scratch_keeps_no_more_than_what_is_there_or_a_small_frame() -> None:
    scratch = Scratch()
    scratch.narrow(True)
    reader = FrameReader(scratch, 100_000_000)
    assert len(reader.buffer()) == SMALL_BYTES
    feed(reader, LENGTH.pack(100_000_000) + bytes(60_000), [])
    assert reader.held_bytes == SMALL_BYTES
    scratch.narrow(False)
    assert len(FrameReader(scratch, 1000).buffer()) > SMALL_BYTES


@pytest.mark.parametrize("size", [-1, -(2**31), 1001, 2**31 - 1])
@pytest.mark.parametrize("cuts", [[], [1, 1, 1, 1]])
def test_a_senseless_length_is_refused_behind_the_frames_before_it(size: int, cuts: list[int]) -> None:
    reader = FrameReader(Scratch(64), 1000)
    assert feed(reader, framed(b"good") + LENGTH.pack(size), [8 + len(cuts), *cuts]) == [b"good"]
    assert str(size) in str(reader.nonsense)


@pytest.mark.parametrize(
    ("first_bytes", "words"),
    [
        (b"GET / HTTP/1.1\r\n", "looks like an HTTP request"),
        (b"POST /x HTTP/1.1\r\n", "looks like an HTTP request"),
        (b"\x16\x03\x01\x02\x00\x01", "looks like a TLS handshake: this listener is plaintext"),
    ],
)
def test_other_protocols_are_called_by_their_names(first_bytes: bytes, words: str) -> None:
    reader = FrameReader(Scratch(64), 100_000_000)
    assert feed(reader, first_bytes, [4]) == []
    assert words in str(reader.nonsense)
