"""Whether the disk has room for more messages of clients.

A disk that is full to the last byte cannot even be cleaned: a new segment, an index, a committed offset all need a
little. So a reserve is kept: below it messages of clients are refused, while reading, deleting and what the broker
writes itself (committed offsets, checkpoints) go on. `note` is told now and then how much is free; in between, whoever
appends takes it from `left_bytes`, so that not even a burst gets at the reserve.
"""

from __future__ import annotations

from typing import Final

from clarion.model.setting_kinds import LONG_MAX

DEFAULT_RESERVE_MAX: Final = 1 << 30  # a full segment of the default size
_DEFAULT_SHARE: Final = 20  # of a small disk, this part


class Room:
    __slots__ = (
        "_configured_reserve",
        "_is_low",
        "_too_large_bytes",
        "free_bytes",
        "is_short",
        "left_bytes",
        "refused_bytes",
        "reserve_bytes",
    )

    def __init__(self, reserve_bytes: int = -1) -> None:
        """`reserve_bytes`: -1 takes the smaller of a gigabyte and 5 % of the disk."""
        self._configured_reserve = reserve_bytes
        self.reserve_bytes = max(0, reserve_bytes)
        self.free_bytes = -1  # not known yet
        self.is_short = False  # messages are refused, all or the larger ones
        self.refused_bytes = 0  # of the largest batch since the last look; whoever refuses one says so here
        self._is_low = False  # less than the reserve is free
        self._too_large_bytes = 0  # of a batch for which there is too little room, before the reserve is reached
        self.left_bytes = LONG_MAX  # what clients may still write until the next look

    def note(self, free_bytes: int, total_bytes: int) -> bool:
        """True if that changed whether messages are taken. A little more than the reserve must be free to take them
        again, so that the answer does not change with every file.
        """
        if self._configured_reserve < 0:
            self.reserve_bytes = min(DEFAULT_RESERVE_MAX, total_bytes // _DEFAULT_SHARE)
        self.free_bytes = free_bytes
        self._is_low = free_bytes < self.reserve_bytes + (self.reserve_bytes // 8 if self._is_low else 0)
        if self._is_low:
            self.left_bytes = 0
        else:
            self.left_bytes = free_bytes - self.reserve_bytes if self.reserve_bytes else LONG_MAX
        was_short, self.is_short = self.is_short, self._is_low or self.refused_bytes > self.left_bytes
        self._too_large_bytes = 0 if self._is_low else self.refused_bytes
        self.refused_bytes = 0
        return self.is_short is not was_short

    @property
    def sentence(self) -> str:
        too_large = max(self._too_large_bytes, self.refused_bytes)
        what = f"a batch of {too_large:,} bytes is not" if too_large and not self._is_low else "no messages are"
        return (
            f"the disk is nearly full: {self.free_bytes:,} bytes were free at the last look, {self.reserve_bytes:,} "
            f"are kept in reserve (clarion.disk.reserve.bytes); {what} taken until there is room"
        )
