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
from clarion.net.budget import SMALL_BYTES

SCRATCH_BYTES: Final = 1024 * 1024  # what one socket may deliver per turn: large enough that calls do not count
_FIRST_BYTES: Final = 4096  # an own buffer starts with so much, or twice what is there, and then doubles
_IN_EARNEST_BYTES: Final = 16 * 1024  # of a frame have arrived: then, while there is memory, it gets at once
_LARGE_BYTES: Final = 1024 * 1024  # so much, as the usual large request needs: to grow in steps takes ten times as long
_PREFIX_BYTES: Final = 64  # while not even the length is complete
LENGTH = Struct(">i")
_HTTP_METHODS: Final = frozenset((b"GET ", b"HEAD", b"POST", b"PUT ", b"PATC", b"DELE", b"OPTI", b"CONN", b"TRAC"))
_TLS_HANDSHAKE, _TLS_MAJOR_VERSION = 0x16, 0x03


class Scratch:
    """The buffer that all connections of a server read into; narrow while memory for frames is short."""

    __slots__ = ("is_narrow", "view", "whole")

    def __init__(self, size: int = SCRATCH_BYTES) -> None:
        self.whole = memoryview(bytearray(size))
        self.view = self.whole  # what the next read may fill
        self.is_narrow = False

    def narrow(self, is_narrow: bool) -> None:
        """A read then brings no more than every connection may hold anyway."""
        if is_narrow != self.is_narrow:
            self.is_narrow = is_narrow
            self.view = self.whole[:SMALL_BYTES] if is_narrow else self.whole


class FrameReader:
    """The framing state of one connection.

    After a read that leaves something unfinished, ask for `nonsense`, which ends the connection behind the frames
    before it, and for `is_full`: what follows needs a larger buffer.
    """

    __slots__ = ("_buffer", "_filled", "_frame_bytes_max", "_scratch", "_size", "_view", "has_unfinished", "nonsense")

    def __init__(self, scratch: Scratch, frame_bytes_max: int) -> None:
        self._scratch = scratch
        self._frame_bytes_max = frame_bytes_max
        self.has_unfinished = False
        self.nonsense: MalformedError | None = None  # what follows the last frame cannot be one
        self._buffer: bytearray | None = None  # the unfinished frame, length prefix included
        self._view: memoryview = scratch.view
        self._filled = 0
        self._size = 0  # of the unfinished frame with its prefix; 0 while even the prefix is not complete

    @property
    def held_bytes(self) -> int:
        """Of our memory: the whole buffer, also what nothing has been written to yet."""
        return 0 if self._buffer is None else len(self._buffer)

    @property
    def arrived_bytes(self) -> int:
        """Of the unfinished frame."""
        return self._filled

    @property
    def is_full(self) -> bool:
        """The buffer of the unfinished frame has no room for another byte."""
        return self._buffer is not None and self._filled == len(self._buffer)

    @property
    def grown_bytes(self) -> int:
        """How large the buffer will be after `grow`: a length alone costs nothing, so it follows what has arrived."""
        is_in_earnest = self._filled >= _IN_EARNEST_BYTES and not self._scratch.is_narrow
        return min(self._size or _PREFIX_BYTES, max(_LARGE_BYTES if is_in_earnest else _FIRST_BYTES, 2 * self._filled))

    def grow(self) -> None:
        self._own(bytearray(self.grown_bytes), self._view[: self._filled])

    def buffer(self) -> memoryview:
        """Where the kernel shall write next."""
        if self._buffer is None:
            return self._scratch.view
        if self.is_full:
            self.grow()
        return self._view[self._filled :]

    def received(self, count: int) -> list[memoryview]:
        """Frames (without their length prefix) completed by the bytes just read; the rest is kept."""
        if self._buffer is None:
            data = self._scratch.whole
            if count >= 4 and LENGTH.unpack_from(data)[0] == count - 4:
                return [data[4:count]]  # exactly one frame, the usual case
            return self._split(data[:count])
        self._filled += count
        return self._finish()

    def drop(self) -> None:
        """Give the memory of an unfinished frame back: the connection has ended."""
        self._buffer, self._view, self._filled, self._size = None, self._scratch.view, 0, 0
        self.has_unfinished = False

    def _split(self, data: memoryview) -> list[memoryview]:
        frames: list[memoryview] = []
        at, end = 0, len(data)
        while end - at >= 4:
            size = LENGTH.unpack_from(data, at)[0]
            if size < 0 or size > self._frame_bytes_max:
                self._refuse(data[at:])
                return frames
            if end - at - 4 < size:
                break
            frames.append(data[at + 4 : at + 4 + size])
            at += 4 + size
        if at < end:
            self._keep(data[at:])
        return frames

    def _refuse(self, data: memoryview) -> None:
        self.nonsense = MalformedError(_what_it_looks_like(bytes(data[:4]), self._frame_bytes_max))
        self.has_unfinished = True

    def _keep(self, rest: memoryview) -> None:
        self._filled = len(rest)
        self._size = 4 + LENGTH.unpack_from(rest)[0] if len(rest) >= 4 else 0
        room = self.grown_bytes
        if self._scratch.is_narrow and room > SMALL_BYTES:
            room = max(len(rest), SMALL_BYTES)
        self._own(bytearray(room), rest)

    def _own(self, buffer: bytearray, content: memoryview) -> None:
        buffer[: len(content)] = content
        self._buffer, self._view, self._filled = buffer, memoryview(buffer), len(content)
        self.has_unfinished = True

    def _finish(self) -> list[memoryview]:
        if not self._size:
            if self._filled < 4:
                return []
            size = LENGTH.unpack_from(self._view)[0]
            if not 0 <= size <= self._frame_bytes_max or 4 + size < len(self._view):
                return self._split_own()
            self._size = 4 + size
        if self._filled < self._size:
            return []
        return self._split_own()

    def _split_own(self) -> list[memoryview]:
        content = self._view[: self._filled]
        self.drop()
        return self._split(content)


def _what_it_looks_like(length: bytes, frame_bytes_max: int) -> str:
    """A client with the wrong protocol is a common mistake, and its first bytes tell which."""
    if length in _HTTP_METHODS:
        return "looks like an HTTP request: this listener speaks Kafka's protocol"
    if length[0] == _TLS_HANDSHAKE and length[1] == _TLS_MAJOR_VERSION:
        return "looks like a TLS handshake: this listener is plaintext"
    return f"a frame of {LENGTH.unpack(length)[0]} bytes; at most {frame_bytes_max} are taken"
