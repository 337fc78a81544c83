"""Named timers on one heap.

A heartbeat moves its member's deadline with one dictionary write: the heap keeps the earlier entry, which is pushed
again with the true deadline when it surfaces. So a member costs one heap entry, however often it beats.
"""

from __future__ import annotations

from enum import StrEnum
from heapq import heappop, heappush
from typing import NamedTuple


class TimerKind(StrEnum):
    SESSION = "session"  # a member has been silent for too long
    PENDING = "pending"  # a member got its id and did not come back with it
    JOIN = "join"  # the group has waited long enough for its members to rejoin, or for this one
    INITIAL = "initial"  # an empty group has waited for its first members to gather
    SYNC = "sync"  # a member joined and never asked for its assignment
    REVOKE = "revoke"  # a KIP-848 member does not give its partitions back
    RESUME = "resume"  # a group has changed its type: on with those who wait
    EXPIRY = "expiry"  # time to look for old offsets


class TimerKey(NamedTuple):
    kind: TimerKind
    group_id: str = ""
    member_id: str = ""


class Timers:
    def __init__(self) -> None:
        self._deadlines: dict[TimerKey, int] = {}
        self._heap: list[tuple[int, TimerKey]] = []
        self._heap_deadlines: dict[TimerKey, int] = {}  # the earliest heap entry of each key

    def __contains__(self, key: TimerKey) -> bool:
        return key in self._deadlines

    def start(self, key: TimerKey, deadline_ms: int) -> None:
        """Start or move a timer."""
        self._deadlines[key] = deadline_ms
        queued = self._heap_deadlines.get(key)
        if queued is None or deadline_ms < queued:
            self._push(key, deadline_ms)

    def cancel(self, key: TimerKey) -> None:
        self._deadlines.pop(key, None)

    def next_deadline_ms(self) -> int | None:
        self._settle()
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int) -> list[TimerKey]:
        """Take out every timer whose deadline has come, earliest first."""
        due = []
        while (deadline := self.next_deadline_ms()) is not None and deadline <= now_ms:
            _, key = heappop(self._heap)
            del self._heap_deadlines[key]
            del self._deadlines[key]
            due.append(key)
        return due

    def _settle(self) -> None:
        """Bring a true deadline to the top of the heap."""
        while self._heap:
            queued, key = self._heap[0]
            deadline = self._deadlines.get(key)
            if queued == deadline == self._heap_deadlines.get(key):
                return
            heappop(self._heap)
            if self._heap_deadlines.get(key) != queued:
                continue  # an earlier entry took this one's place
            del self._heap_deadlines[key]
            if deadline is not None:
                self._push(key, deadline)

    def _push(self, key: TimerKey, deadline_ms: int) -> None:
        heappush(self._heap, (deadline_ms, key))
        self._heap_deadlines[key] = deadline_ms
