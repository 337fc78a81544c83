"""Asks the kernel which part of a file it has in memory (`cachestat`, since Linux 6.5). It copies and reads nothing."""

from __future__ import annotations

import ctypes
import mmap
from typing import Final

_CACHESTAT: Final = 451  # the number of the system call, the same on all architectures that Python knows


class _Range(ctypes.Structure):
    _fields_ = (("position", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Pages(ctypes.Structure):
    _fields_ = (
        ("cached", ctypes.c_uint64),
        ("dirty", ctypes.c_uint64),
        ("written_back", ctypes.c_uint64),
        ("evicted", ctypes.c_uint64),
        ("evicted_lately", ctypes.c_uint64),
    )


class _Question:
    """Its structures are made once: a chunk is asked for thousands of times a second, always by the event loop."""

    def __init__(self) -> None:
        self._range = _Range()
        self._pages = _Pages()
        self._arguments = (ctypes.byref(self._range), ctypes.byref(self._pages), ctypes.c_uint(0))
        self._call = ctypes.CDLL(None).syscall
        self._number = ctypes.c_long(_CACHESTAT)

    def cached_pages(self, fd: int, position: int, length: int) -> int:
        """0 also where the kernel does not know the question, or may not answer it in this container."""
        self._range.position = position
        self._range.length = length
        return self._pages.cached if self._call(self._number, fd, *self._arguments) == 0 else 0


_question: Final = _Question()


def has(fd: int, position: int, length: int) -> bool:
    """Whether every page of this part of the file is in memory. Not for several threads at once."""
    pages = (position + length - 1) // mmap.PAGESIZE - position // mmap.PAGESIZE + 1
    return _question.cached_pages(fd, position, length) == pages
