"""A log of one message, for the rule that says when it goes."""

from __future__ import annotations


class OneMessage:
    start_offset = 0

    def __init__(self, age_ms: int, size_bytes: int = 100) -> None:
        self._age_ms = age_ms
        self._size_bytes = size_bytes

    def by_time(self, keep_ms: int) -> int:
        return int(0 <= keep_ms < self._age_ms)

    def by_size(self, keep_bytes: int) -> int:
        return int(0 <= keep_bytes < self._size_bytes)
