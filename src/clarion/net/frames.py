"""Bytes from one socket become frames, with as few copies as the kernel allows.

All connections of a server read into one shared scratch buffer, so an idle connection owns no buffer at all. Frames
that lie whole in the scratch are handed on as views into it. A frame that does not fit gets a buffer of its own,
which grows with what has really arrived (a length field alone costs nothing), and the kernel fills it directly.

    read → scratch ──────────────→ frame, frame, frame, (rest)
                                                          ↓
                               own buffer ← kernel ← rest of a large frame
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from clarion.model.errors import MalformedError

SCRATCH_BYTES: Final = 1024 * 1024  # what one socket may deliver per turn: large enough that calls do not count
GROWTH_BYTES: Final = 1024 * 1024  # an own buffer starts with at most this much, then doubles
LENGTH = Struct(">i")


class FrameReader:
    """The framing state of one connection."""

    __slots__ = ("_buffer", "_filled", "_frame_bytes_max", "_scratch", "_size", "_view", "has_unfinished")

    def __init__(self, scratch: memoryview, frame_bytes_max: int) -> None:
        self._scratch = scratch
        self._frame_bytes_max = frame_bytes_max
        self.has_unfinished = False
        self._buffer: bytearray | None = None  # the unfinished frame, length prefix included
        self._view: memoryview = scratch
        self._filled = 0
        self._size = 0  # of the unfinished frame with its prefix; 0 while even the prefix is not complete

    @property
    def held_bytes(self) -> int:
        return 0 if self._buffer is None else len(self._buffer)

    def buffer(self) -> memoryview:
        """Where the kernel shall write next."""
        if self._buffer is None:
            return self._scratch
        if self._filled == len(self._buffer):
            self._grow()
        return self._view[self._filled :]

    def received(self, count: int) -> list[memoryview]:
        """Frames (without their length prefix) completed by the bytes just read; the rest is kept."""
        if self._buffer is None:
            if count >= 4 and LENGTH.unpack_from(self._scratch)[0] == count - 4:
                return [self._scratch[4:count]]  # exactly one frame, the usual case
            return self._split(self._scratch[:count])
        self._filled += count
        return self._finish()

    def drop(self) -> None:
        """Give the memory of an unfinished frame back: the connection has ended."""
        self._buffer, self._view, self._filled, self._size = None, self._scratch, 0, 0
        self.has_unfinished = False

    def _split(self, data: memoryview) -> list[memoryview]:
        frames: list[memoryview] = []
        at, end = 0, len(data)
        while end - at >= 4:
            size = self._checked(LENGTH.unpack_from(data, at)[0])
            if end - at - 4 < size:
                break
            frames.append(data[at + 4 : at + 4 + size])
            at += 4 + size
        if at < end:
            self._keep(data[at:])
        return frames

    def _checked(self, size: int) -> int:
        if size < 0 or size > self._frame_bytes_max:
            raise MalformedError(f"a frame of {size} bytes; at most {self._frame_bytes_max} are taken")
        return size

    def _keep(self, rest: memoryview) -> None:
        self._size = 4 + LENGTH.unpack_from(rest)[0] if len(rest) >= 4 else 0
        room = max(len(rest), min(self._size or 64, GROWTH_BYTES))
        self._own(bytearray(room), rest)

    def _own(self, buffer: bytearray, content: memoryview) -> None:
        buffer[: len(content)] = content
        self._buffer, self._view, self._filled = buffer, memoryview(buffer), len(content)
        self.has_unfinished = True

    def _grow(self) -> None:
        assert self._buffer is not None
        wanted = self._size or 64
        self._own(bytearray(min(wanted, 2 * len(self._buffer))), self._view[: self._filled])

    def _finish(self) -> list[memoryview]:
        if not self._size:
            if self._filled < 4:
                return []
            self._size = 4 + self._checked(LENGTH.unpack_from(self._view)[0])
            if self._filled > self._size or len(self._view) > self._size:
                return self._split_own()
        if self._filled < self._size:
            return []
        return self._split_own()

    def _split_own(self) -> list[memoryview]:
        content = self._view[: self._filled]
        self.drop()
        return self._split(content)
