"""Frames come out whole and in order, however the network cuts them, and a length alone costs no memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.model.errors import MalformedError
from clarion.net.frames import GROWTH_BYTES, LENGTH, FrameReader


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
    return frames


@given(st.lists(st.binary(max_size=300), max_size=20), st.lists(st.integers(1, 200), max_size=60))
def test_every_way_of_cutting_the_stream_gives_the_same_frames(bodies: list[bytes], cuts: list[int]) -> None:
    reader = FrameReader(memoryview(bytearray(128)), 1000)
    assert feed(reader, framed(*bodies), cuts) == bodies
    assert not reader.has_unfinished


def test_a_frame_larger_than_the_scratch_buffer_arrives_whole() -> None:
    body = bytes(range(256)) * 20_000
    reader = FrameReader(memoryview(bytearray(4096)), len(body))
    assert feed(reader, framed(b"before", body, b"after"), []) == [b"before", body, b"after"]


def test_a_length_alone_does_not_take_memory() -> None:
    reader = FrameReader(memoryview(bytearray(4096)), 100_000_000)
    feed(reader, LENGTH.pack(100_000_000) + b"x", [])
    assert reader.held_bytes <= GROWTH_BYTES


@pytest.mark.parametrize("size", [-1, -(2**31), 1001, 2**31 - 1])
@pytest.mark.parametrize("cuts", [[], [1, 1, 1, 1]])
def test_a_senseless_length_is_refused(size: int, cuts: list[int]) -> None:
    reader = FrameReader(memoryview(bytearray(64)), 1000)
    with pytest.raises(MalformedError):
        feed(reader, LENGTH.pack(size) + b"xxxx", cuts)
