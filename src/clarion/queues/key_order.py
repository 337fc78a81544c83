"""Records of one key, one after the other: which of them is the key's turn, and which wait behind it.

A record has its key's turn from its first delivery until it is done, or given up. What comes later waits, and costs an
entry. Where too many wait nothing further is looked at (`has_room`): a record that was passed over would be overtaken.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

WAITING_MAX: Final = 50_000  # records of one share-partition that wait for their keys: some five megabytes


class KeyOrder:
    """Keys are hashes: where two have the same, one waits for the other without need."""

    def __init__(self) -> None:
        self._turn: dict[int, int] = {}  # of a key: the offset of the record that has it
        self._keys: dict[int, int] = {}  # of such a record: its key
        self._behind: dict[int, list[int]] = {}
        self._waiting = 0

    def claim(self, key: int, offset: int) -> bool:
        """Whether a record may be delivered; then nothing else of its key is until it is freed."""
        holder = self._turn.setdefault(key, offset)
        if holder != offset:
            return False
        self._keys[offset] = key
        return True

    @property
    def has_room(self) -> bool:
        """For records that nobody has looked at yet."""
        return self._waiting < WAITING_MAX

    def wait(self, key: int, offset: int) -> None:
        """`free` will name this record one day."""
        behind = self._behind.setdefault(key, [])
        at = bisect_left(behind, offset)
        if at == len(behind) or behind[at] != offset:
            behind.insert(at, offset)
            self._waiting += 1

    def free(self, first: int, last: int) -> list[int]:
        """These records will not be delivered any more. The next ones of their keys, whose turn it is now."""
        freed = []
        for offset in self._held(first, last):
            key = self._keys.pop(offset)
            behind = self._behind.get(key)
            if not behind:
                del self._turn[key]
                continue
            following = behind.pop(0)
            self._waiting -= 1
            if not behind:
                del self._behind[key]
            self._turn[key] = following
            self._keys[following] = key
            freed.append(following)
        return freed

    def _held(self, first: int, last: int) -> Iterable[int]:
        if last - first < len(self._keys):
            return [offset for offset in range(first, last + 1) if offset in self._keys]
        return sorted(offset for offset in self._keys if first <= offset <= last)
