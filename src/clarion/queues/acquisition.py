"""What is there to acquire, who acquires, and what it has got."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple


class AcquireMode(IntEnum):
    """Kafka's numbers."""

    BATCH_OPTIMIZED = 0  # whole batches of the log (up to BATCH_MAX); the last may go beyond the number asked for
    RECORD_LIMIT = 1  # never more records than asked for


class Fate(NamedTuple):
    """What a look at a record has shown, where a group's rules need one. At most one of these is so, but for the key,
    which only a record that may be delivered has."""

    is_unwanted: bool = False  # a filter has passed it over: it is done
    given_up: str = ""  # why it is not to be delivered any more: a message's time to live is over
    has_dead_letter: bool = False  # whether that is written down as a dead letter
    due_ms: int = 0  # not before
    key: int | None = None  # a hash of it, where records of one key are delivered in order
    is_passed: bool = False  # nobody has looked: it was not there to be delivered


class Readable(NamedTuple):
    """What was read from the log: from `first` on, up to before `next`. What is in no batch is not there to deliver."""

    first: int
    next: int
    batches: Sequence[tuple[int, int]]  # the first and last offset of each that has records for readers, in order
    fates: Sequence[Fate | None] = ()  # one for each of them, where they were looked at; None: simply to be delivered


class Acquired(NamedTuple):
    first: int
    last: int
    deliveries: int


class Taker:
    """Who acquires, how much is left for it, and what it has got."""

    __slots__ = ("acquired", "left", "member", "mode", "now_ms", "until_ms")

    def __init__(self, member: str, now_ms: int, until_ms: int, records_max: int, mode: AcquireMode) -> None:
        self.member = member
        self.now_ms = now_ms
        self.until_ms = until_ms
        self.left = records_max
        self.mode = mode
        self.acquired: list[Acquired] = []

    @property
    def is_satisfied(self) -> bool:
        return self.left <= 0

    def got(self, first: int, last: int, deliveries: int) -> None:
        self.left -= last - first + 1
        before = self.acquired[-1] if self.acquired else None
        if before is not None and before.last + 1 == first and before.deliveries == deliveries:
            self.acquired[-1] = Acquired(before.first, last, deliveries)
        else:
            self.acquired.append(Acquired(first, last, deliveries))
