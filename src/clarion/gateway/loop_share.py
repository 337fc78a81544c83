"""How much of the event loop's time HTTP takes, measured step by step, and how much it may have.

Every step of a request's coroutine is timed, and so is the reading of what arrives, by the processor's time that the
loop's thread takes: what other processes take is nobody's fault here. Two limits follow from that:

- In one turn of the loop, from one look at the sockets to the next, HTTP begins no step after a quarter of a
  millisecond; the others wait for the next turn. A step that has begun is not interrupted, so a request of Kafka's
  protocol waits for one of them, as a rule, however many HTTP requests are under way.
- In a second HTTP has its share of the loop, and what others leave idle of it. Beyond that, new requests are answered
  429 before anything is done for them, and streams wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, Generic, TypeVar

from clarion.world import thread_seconds

WINDOW_SECONDS: Final = 1.0  # long enough for a burst of a few large requests, short enough to be felt by nobody
_SLICE_SECONDS: Final = 0.1
_SLICES: Final = round(WINDOW_SECONDS / _SLICE_SECONDS)
_MOST: Final = 0.9  # of the loop, while nobody else wants it: who comes then does not find it all taken
_YIELDS: Final = 3.0  # for each part of the loop that others take, HTTP gives back three, down to its share
_TURN_SECONDS: Final = 0.00025  # less than most steps take, so that a turn has one of those; a look costs a hundredth
_STEP_SECONDS_MIN: Final = 0.00003  # eight of those who wait have their turn at once, where steps are as short as that
_STEPS_REMEMBERED: Final = 16  # for how long one takes, on average

Result = TypeVar("Result")


class LoopShare:
    def __init__(
        self, share: Callable[[], float], loop: asyncio.AbstractEventLoop, busy: Callable[[], float] = thread_seconds
    ) -> None:
        """`share`: the part of the loop's time that HTTP always may have. `busy`: for how long the loop has worked."""
        self._share = share
        self._loop = loop
        self._busy = busy
        self._slices: deque[_Slice] = deque()
        self._turn_spent = 0.0
        self._line: deque[asyncio.Future[None]] = deque()
        self._is_counting = False  # the present turn
        self._has_polled = True  # since HTTP has last spent something while the loop looked at its sockets
        self._step_seconds = _TURN_SECONDS  # on average
        self.spent_total = 0.0

    # A second

    def spend(self, seconds: float, *, while_polling: bool = False) -> None:
        """`while_polling`: by what the loop calls as it looks at the sockets; those of Kafka's clients may have been
        looked at before, and what it does next comes before the next look."""
        self._slice().spent += seconds
        self.spent_total += seconds
        self._turn_spent += seconds
        self._step_seconds += (seconds - self._step_seconds) / _STEPS_REMEMBERED
        if while_polling:
            self._has_polled = False
        if not self._is_counting:
            self._is_counting = True
            self._loop.call_soon(self._on_next_turn)

    @property
    def is_over(self) -> bool:
        first = self._slice() and self._slices[0]
        spent = sum([one.spent for one in self._slices]) / WINDOW_SECONDS
        share = self._share()
        if spent <= share or share >= 1.0:  # all of the loop is no limit, even where a window holds a bit more of it
            return False
        others = (self._busy() - first.busy_before) / WINDOW_SECONDS - spent
        return spent > max(share, _MOST - _YIELDS * max(0.0, others))

    def _slice(self) -> _Slice:
        """The present one; those that are over a second old are gone."""
        number = int(self._loop.time() / _SLICE_SECONDS)
        if not self._slices or self._slices[-1].number != number:
            self._slices.append(_Slice(number, self._busy()))
            while self._slices[0].number <= number - _SLICES:
                self._slices.popleft()
        return self._slices[-1]

    # A turn

    @property
    def turn_is_full(self) -> bool:
        return self._turn_spent >= _TURN_SECONDS

    def next_turn(self) -> asyncio.Future[None]:
        """First come, first served. Who is told begins in that turn: it need not look whether that is full."""
        waiting = self._loop.create_future()
        self._line.append(waiting)
        return waiting

    def _on_next_turn(self) -> None:
        if not self._has_polled:
            self._has_polled = True
            self._loop.call_soon(self._on_next_turn)
        elif self._release():
            self._turn_spent = _TURN_SECONDS  # it is theirs: who comes meanwhile stands in line behind them
            self._loop.call_soon(self._on_next_turn)
        else:
            self._turn_spent = 0.0
            self._is_counting = False

    def _release(self) -> int:
        """As many of those who wait as a turn has room for."""
        released, fitting = 0, int(_TURN_SECONDS / max(self._step_seconds, _STEP_SECONDS_MIN))
        while self._line and released < max(fitting, 1):
            waiting = self._line.popleft()
            if not waiting.done():  # cancelled
                waiting.set_result(None)
                released += 1
        return released


class _Slice:
    __slots__ = ("busy_before", "number", "spent")

    def __init__(self, number: int, busy_before: float) -> None:
        self.number = number
        self.busy_before = busy_before
        self.spent = 0.0


class Metered(Generic[Result]):
    """Awaits a coroutine, times each of its steps, and puts them off while a turn has had its part of HTTP."""

    __slots__ = ("_share", "_work")

    def __init__(self, work: Coroutine[Any, Any, Result], share: LoopShare) -> None:
        self._work = work
        self._share = share

    def __await__(self) -> Generator[Any, Any, Result]:
        step: Callable[[Any], Any] = self._work.send
        given: Any = None
        while True:
            try:
                if self._share.turn_is_full:
                    yield from self._share.next_turn().__await__()
            except BaseException as error:  # let through: the coroutine decides what becomes of it
                step, given = self._work.throw, error
            began = thread_seconds()
            try:
                waits_for = step(given)
            except StopIteration as end:
                result: Result = end.value
                return result
            finally:
                self._share.spend(thread_seconds() - began)
            try:
                step, given = self._work.send, (yield waits_for)
            except BaseException as error:  # likewise
                step, given = self._work.throw, error
