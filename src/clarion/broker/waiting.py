"""Replies that wait for a commit, of producers and of coordinators, and the clock that ends their patience.

Almost every wait ends within milliseconds, so there is no timer per request: one look per second at those that wait.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from clarion.groups.outcome import Outcome
from clarion.model.errors import ErrorCode, KafkaError

LOOK_SECONDS: Final = 1.0
COMMIT_TIMEOUT_MS: Final = 5_000  # of coordinators: as Kafka's offsets.commit.timeout.ms
_TIMEOUT_MS_MAX: Final = 3_600_000  # nobody needs to hold a request longer than an hour


class Waiting(Protocol):
    deadline: float

    def time_out(self) -> None: ...


class WaitingReplies:
    def __init__(self) -> None:
        self._waiting: dict[Waiting, None] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, waiting: Waiting, timeout_ms: int) -> float:
        """Returns the deadline."""
        self._waiting[waiting] = None
        if self._timer is None:
            self._timer = self._loop.call_later(LOOK_SECONDS, self._look)
        return self._loop.time() + min(max(timeout_ms, 0), _TIMEOUT_MS_MAX) / 1000

    def discard(self, waiting: Waiting) -> None:
        self._waiting.pop(waiting, None)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        for waiting in [one for one in self._waiting if one.deadline <= now]:
            waiting.time_out()
        self._timer = self._loop.call_later(LOOK_SECONDS, self._look) if self._waiting else None


class UnsafeReplies:
    """Replies that wait for what they tell to be committed: at most so long that clients do not give up before.

    A full disk may hold up a flush for ever. What is not known by then may still come to be, and is asked for again.
    """

    __slots__ = ("_outcome", "_waiting", "deadline")

    def __init__(self, outcome: Outcome, waiting: WaitingReplies) -> None:
        self._outcome = outcome
        self._waiting = waiting
        self.deadline = waiting.add(self, COMMIT_TIMEOUT_MS)

    def on_commit(self, code: ErrorCode) -> None:
        self._waiting.discard(self)
        if code is ErrorCode.NONE:
            reply_to_all(self._outcome)
        elif code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            fail_all(self._outcome, ErrorCode.NOT_COORDINATOR)
        else:
            fail_all(self._outcome, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def time_out(self) -> None:
        self.on_commit(ErrorCode.REQUEST_TIMED_OUT)


def reply_to_all(outcome: Outcome) -> None:
    for ticket, response in outcome.replies:
        if not ticket.done():
            ticket.set_result(response)


def fail_all(outcome: Outcome, code: ErrorCode) -> None:
    for ticket, _response in outcome.replies:
        if not ticket.done():
            ticket.set_exception(KafkaError(code))
