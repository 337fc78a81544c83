"""What a push subscription decides: when to try again, whether its endpoint needs a rest, how much may be under way.

    retry_delay_ms    exponential, with jitter, and never before an endpoint wants to be asked again
    Circuit           closed ──failures in a row──▶ open ──a rest──▶ one request as a probe ──success──▶ closed
                                                     ▲─────failure: a longer rest────┘
    Window            requests under way: one more for each round that went well, half as many after a failure,
                      somewhat fewer when answers take far longer than they did
    Lanes             of the messages of one key, the later ones wait until the earlier ones are done

All of it takes what has happened and `now`, and knows neither clock nor sockets. Times are in milliseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from email.utils import parsedate_to_datetime
from enum import StrEnum
from itertools import islice
from typing import Final, Generic, TypeVar

T = TypeVar("T")

RETRY_MIN_MS: Final = 5_000  # where the subscription says nothing: an endpoint that restarts is back by then
RETRY_AFTER_MAX_MS: Final = 3_600_000  # an endpoint may ask for more; an hour later it is asked again all the same
_DOUBLINGS_MAX: Final = 40  # a millisecond, doubled so often, is 34 years: the most is reached long before

FAILURES_TO_OPEN: Final = 5  # in a row, of whichever messages: one that fails among others that do not opens nothing
REST_MIN_MS: Final = 1_000  # before the first probe
REST_MAX_MS: Final = 60_000  # between two: how much longer than its endpoint a subscription is away, at most

WINDOW_START: Final = 4  # a few, until it is known how the endpoint takes it
WINDOW_MAX: Final = 64  # connections that one endpoint is given, whatever it could take
_CUT_BY_FAILURE: Final = 0.5
_CUT_BY_SLOWNESS: Final = 0.8
_SLOW_FACTOR: Final = 3.0  # times the usual: the endpoint has begun to queue what it gets
_SLOW_MIN_MS: Final = 50.0  # what is quicker is never slow: it may be our own loop that was busy
_USUAL_DRIFT: Final = 1.01  # per answer: an endpoint that has become slower for good is not held against its best day


class PushOutcome(StrEnum):
    """Of one delivery."""

    DELIVERED = "delivered"
    FAILED = "failed"  # to be tried again, if its deliveries are not used up
    GONE = "gone"  # the endpoint says that it is no more


def outcome_of(status: int) -> PushOutcome:
    """As Standard Webhooks has it: 2xx is taken, 410 ends the subscription, all else is a failure. So is a redirect:
    it would send what was signed for one place to another that nobody has checked."""
    if 200 <= status < 300:
        return PushOutcome.DELIVERED
    return PushOutcome.GONE if status == 410 else PushOutcome.FAILED


def retry_delay_ms(deliveries: int, least_ms: int, most_ms: int, draw: float) -> int:
    """After so many deliveries. Between half and all of what doubling gives, by a draw from 0 to 1, so that what failed
    together does not come back together."""
    least = least_ms or min(RETRY_MIN_MS, most_ms)
    ceiling = min(most_ms, least << min(max(deliveries, 1) - 1, _DOUBLINGS_MAX))
    return round(ceiling * (0.5 + draw / 2))


def retry_after_ms(text: str | None, now_ms: int) -> int:
    """What `Retry-After` asks for, in seconds or as a date; 0 if it says nothing that can be understood."""
    if not text:
        return 0
    text = text.strip()
    if text.isascii() and text.isdigit():
        wanted = int(text[:10]) * 1000
    else:
        try:
            wanted = round(parsedate_to_datetime(text).timestamp() * 1000) - now_ms
        except (ValueError, TypeError, OverflowError, IndexError):
            return 0
    return min(max(wanted, 0), RETRY_AFTER_MAX_MS)


class CircuitState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Circuit:
    """Whether an endpoint is sent anything. One that fails is left alone, and asked by one request now and then."""

    def __init__(self) -> None:
        self.state = CircuitState.CLOSED
        self.failures_in_a_row = 0
        self._rest_ms = REST_MIN_MS
        self._open_until_ms = 0
        self._held_until_ms = 0  # by its own wish

    def may_send(self, now_ms: int) -> bool:
        if now_ms < self._held_until_ms:
            return False
        match self.state:
            case CircuitState.CLOSED:
                return True
            case CircuitState.OPEN:
                return now_ms >= self._open_until_ms
            case CircuitState.HALF_OPEN:
                return False  # the probe is under way

    def opens_in_ms(self, now_ms: int) -> int | None:
        """How long until something may be sent; None if that is decided by the probe that is under way."""
        held_ms = max(0, self._held_until_ms - now_ms)
        match self.state:
            case CircuitState.CLOSED:
                return held_ms
            case CircuitState.OPEN:
                return max(held_ms, self._open_until_ms - now_ms)
            case CircuitState.HALF_OPEN:
                return None

    def begin(self, now_ms: int) -> bool:
        """A request is sent, as `may_send` allowed; whether it is a probe."""
        assert self.may_send(now_ms)
        if self.state is CircuitState.CLOSED:
            return False
        self.state = CircuitState.HALF_OPEN
        return True

    def on_success(self) -> None:
        """Also of a request that was sent before the circuit opened: the endpoint works."""
        self.state = CircuitState.CLOSED
        self.failures_in_a_row = 0
        self._rest_ms = REST_MIN_MS

    def on_failure(self, now_ms: int, *, is_probe: bool) -> None:
        self.failures_in_a_row += 1
        if is_probe and self.state is CircuitState.HALF_OPEN:
            self._rest_ms = min(self._rest_ms * 2, REST_MAX_MS)
            self._open(now_ms)
        elif self.state is CircuitState.CLOSED and self.failures_in_a_row >= FAILURES_TO_OPEN:
            self._open(now_ms)

    def on_abandoned(self, now_ms: int, *, is_probe: bool) -> None:
        """The request was given up by us, and says nothing of the endpoint."""
        if is_probe and self.state is CircuitState.HALF_OPEN:
            self.state, self._open_until_ms = CircuitState.OPEN, now_ms

    def hold(self, until_ms: int) -> None:
        """The endpoint wants to be left alone until then."""
        self._held_until_ms = max(self._held_until_ms, until_ms)

    def _open(self, now_ms: int) -> None:
        self.state = CircuitState.OPEN
        self._open_until_ms = now_ms + self._rest_ms


class Window:
    """How many requests may be under way."""

    def __init__(self, most: int = WINDOW_MAX) -> None:
        self._most = max(1, min(most, WINDOW_MAX))
        self._exact = float(min(WINDOW_START, self._most))
        self._cut_at_ms = float("-inf")
        self._usual_ms: float | None = None

    @property
    def size(self) -> int:
        return int(self._exact)

    @property
    def usual_ms(self) -> float | None:
        """What an answer takes while all is well."""
        return self._usual_ms

    def limit(self, most: int) -> None:
        """The settings have changed."""
        self._most = max(1, min(most, WINDOW_MAX))
        self._exact = min(self._exact, float(self._most))

    def on_success(self, sent_at_ms: float, now_ms: float, under_way: int) -> None:
        """`under_way`: the requests at the time, with this one. Who does not use its window has not shown that it may
        be larger."""
        took_ms = now_ms - sent_at_ms
        usual_ms = took_ms if self._usual_ms is None else self._usual_ms
        if took_ms > max(usual_ms * _SLOW_FACTOR, _SLOW_MIN_MS):
            self._cut(_CUT_BY_SLOWNESS, sent_at_ms, now_ms)
        elif under_way * 2 >= self.size:
            self._exact = min(self._exact + 1 / self._exact, float(self._most))
        self._usual_ms = min(took_ms, usual_ms * _USUAL_DRIFT)

    def on_failure(self, sent_at_ms: float, now_ms: float) -> None:
        self._cut(_CUT_BY_FAILURE, sent_at_ms, now_ms)

    def restart(self) -> None:
        """An endpoint that is back is begun with as a new one is."""
        self._exact = float(min(WINDOW_START, self._most))

    def _cut(self, factor: float, sent_at_ms: float, now_ms: float) -> None:
        """Once for all that was under way together: the others tell of the same trouble."""
        if sent_at_ms > self._cut_at_ms:
            self._exact = max(1.0, self._exact * factor)
            self._cut_at_ms = now_ms


class Lanes(Generic[T]):
    """Messages that wait for their turn, the oldest lane first. Those without a lane are in nobody's way.

    `is_alone`: of a message that goes in a request of its own.
    """

    def __init__(self, is_alone: Callable[[T], bool] = lambda message: False) -> None:
        self._is_alone = is_alone
        self._waiting: dict[object, deque[T]] = {}  # never empty ones
        self._ready: dict[object, None] = {}  # lanes that wait and have nothing under way
        self._busy: set[object] = set()
        self._count = 0

    def __len__(self) -> int:
        """Messages that wait."""
        return self._count

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    def add(self, message: T, lane: object | None) -> None:
        lane = object() if lane is None else lane
        if lane not in self._waiting:
            self._waiting[lane] = deque()
            if lane not in self._busy:
                self._ready[lane] = None
        self._waiting[lane].append(message)
        self._count += 1

    def take(self, most: int) -> tuple[list[T], list[object]]:
        """What may go together in one request, in order, and the lanes to `finish` or `give_up` afterwards."""
        messages: list[T] = []
        lanes: list[object] = []
        while self._ready and len(messages) < most:
            lane = next(iter(self._ready))
            waiting = self._waiting[lane]
            taken = self._together(waiting, most - len(messages), is_first=not messages)
            if not taken:
                break
            del self._ready[lane]
            messages += [waiting.popleft() for _ in range(taken)]
            if not waiting:
                del self._waiting[lane]
            self._busy.add(lane)
            lanes.append(lane)
            if self._is_alone(messages[-1]):
                break
        self._count -= len(messages)
        return messages, lanes

    def _together(self, waiting: deque[T], most: int, *, is_first: bool) -> int:
        """How many of a lane: those up to one that goes alone, or that one."""
        if self._is_alone(waiting[0]):
            return int(is_first)
        return next(
            (at for at, one in enumerate(islice(waiting, most)) if self._is_alone(one)), min(most, len(waiting))
        )

    def finish(self, lanes: Iterable[object]) -> None:
        """What was taken is done: the next of these lanes may go."""
        for lane in lanes:
            self._busy.discard(lane)
            if lane in self._waiting:
                self._ready[lane] = None

    def give_up(self, lanes: Iterable[object]) -> list[T]:
        """What was taken failed and comes again later: so must all that waits behind it."""
        behind: list[T] = []
        for lane in lanes:
            self._busy.discard(lane)
            behind += self._waiting.pop(lane, ())
        self._count -= len(behind)
        return behind

    def clear(self) -> list[T]:
        """All that waits; what is under way is left to `finish`."""
        waiting = [message for lane in self._waiting.values() for message in lane]
        self._waiting.clear()
        self._ready.clear()
        self._count = 0
        return waiting
