"""How fast replicas that are not in sync are filled, so that those who write notice little of it. Only decisions.

    CatchUp.pause_after(…)    a follower that has written a large piece waits so long before it asks for the next
    Throttle                  bytes per second, by which a leader serves the replicas that a topic lists

All that are being filled on a broker get a share of its event loop's time together: that is much on a machine with
nothing else to do, and little on a busy one, where every piece takes longer. A piece counts from when it was asked for:
to receive it takes the loop twice as long as to write it, and its leader has read and sent it meanwhile. A replica that
does not gain on its leader is held up less and less. Operators may set rates as well, by Kafka's names
(`follower.replication.throttled.rate`, `leader.replication.throttled.rate`), for the replicas that a topic lists.

Those in sync are never held up, for producers wait for them; nor is who has nearly everything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

PIECE_BYTES_MAX: Final = 256 * 1024  # what is in sync waits behind it, on the same connection
PIECES_BYTES_MAX: Final = 4 * PIECE_BYTES_MAX  # of all in one reply, for the same reason
PIECE_BYTES_MIN: Final = 64 * 1024  # who gets less than this at once has nearly everything
_LAG_UNKNOWN: Final = 1 << 62  # of a replica that has heard nothing from its leader yet
_WINDOW_SECONDS: Final = 2.0  # between two looks at whether a replica gains
_FINISHED_SECONDS: Final = 1800.0  # it gains if it would be there by then
_HOLD_MIN: Final = 1 / 16  # of a pause; less is none
# From asking for a piece to having it: three milliseconds per megabyte where there is little else to do. What takes
# much longer waits for something else: clients, or what an operator allows its leader.
_SECONDS_PER_BYTE_MAX: Final = 0.005 / (1 << 20)


def is_listed(listed: tuple[str, ...], partition: int, broker: int) -> bool:
    """Whether a topic's list of throttled replicas (`0:1,1:3`, or `*` for all) names this one."""
    return bool(listed) and ("*" in listed or f"{partition}:{broker}" in listed)


class Throttle:
    """So many bytes per second, in the mean: what was too much now has to be waited for before the next."""

    def __init__(self) -> None:
        self._free_at = float("-inf")
        self._rate: float | None = None

    def at(self, rate: float) -> Throttle:
        """At this rate: what another one has put off does not count, for an operator may have corrected it."""
        if rate != self._rate:
            self._rate, self._free_at = rate, float("-inf")
        return self

    def wait_seconds(self, now: float) -> float:
        return max(0.0, self._free_at - now)

    def spend(self, now: float, seconds: float) -> float:
        """Returns how long to wait from now on."""
        self._free_at = max(self._free_at, now) + seconds
        return self._free_at - now


class Filling:
    """One replica that lacks much: whether it gains on its leader."""

    def __init__(self, now: float, lag: int = _LAG_UNKNOWN) -> None:
        self._looked_at = now
        self._lag = lag
        self._hold = 1.0  # how much of its pauses it waits
        self._held_until = now
        self._rate: float | None = None  # at which that was found

    def hold(self, now: float, lag: int) -> float:
        seconds = now - self._looked_at
        if seconds >= _WINDOW_SECONDS:
            if lag > self._lag * (1 - seconds / _FINISHED_SECONDS):
                self._hold = self._hold / 2 if self._hold > _HOLD_MIN else 0.0
            self._looked_at, self._lag = now, lag
        return self._hold

    def hold_until(self, until: float, rate: float | None) -> None:
        self._held_until, self._rate = until, rate

    def wait_seconds(self, now: float, rate: float | None) -> float:
        """How much longer. A rate that an operator has corrected holds at once."""
        return self._held_until - now if rate == self._rate else 0.0


class CatchUp:
    """For all replicas that are filled on one broker."""

    def __init__(self, share: Callable[[], float], elapsed: Callable[[], float]) -> None:
        """`share`: of the loop's time; 1 is without pauses. `elapsed`: seconds, finer than the loop's own clock."""
        self._share = share
        self.elapsed = elapsed
        self._time = Throttle()
        self._rate = Throttle()
        self._counted_until = float("-inf")

    def seconds_of(self, size: int, asked_at: float, began: float, now: float) -> float:
        """How long a piece has kept loops busy: asked for, received, and written since it `began`. What several pieces
        have waited for together counts once."""
        since = max(asked_at, self._counted_until)
        self._counted_until = now
        return max(now - began, min(now - since, size * _SECONDS_PER_BYTE_MAX))

    def pause_after(
        self, filling: Filling, now: float, size: int, took_seconds: float, lag: int, rate: float | None
    ) -> float:
        """A piece of this size was written in this time, and the leader has so many messages more.

        `rate`: bytes per second for all that an operator holds up, whether they gain or not; None: not this one.
        """
        pause = self._time.spend(now, took_seconds * (1 / self._share() - 1) * filling.hold(now, lag))
        if rate is not None:
            pause = max(pause, self._rate.at(rate).spend(now, size / rate))
        filling.hold_until(now + pause, rate)
        return pause
