"""Memory for what travels: who may take more of it, who waits, and who is too slow to keep what he has.

Unfinished frames, requests that wait and replies that are not sent share one budget of bytes. Whoever wants room beyond
it waits: it is not read from, and goes on when there is room. Nobody who behaves is reset. These rules keep the budget
from waiting on itself:

    small      up to `SMALL_BYTES` a connection never asks, and only what it holds beyond them is in the budget: every
               small frame can always be finished.
    proven     the last quarter is kept for connections that have finished a large frame: a crowd that announces much
               and sends little cannot take it from those who work.
    one lane   when nothing fits, one frame is nevertheless read to its end, whatever the budget says. So somebody
               always goes on, and the budget is exceeded by one frame at most.
    fast first of those who wait, the proven go first, and then those who have sent fastest; but every other time the
               lane is free it goes to who has waited longest.
    too slow   who has not reached the minimum rate for `slow_seconds_max` is closed; while somebody waits for room, a
               tenth of that is enough. Time in which we did not read counts for nobody's slowness.

Pure: events and `now` come in, answers go out. Whoever holds something is any object that can be a key.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

SMALL_BYTES: Final = 64 * 1024 + 4  # a frame of 64 KB and its length: most requests, and cheap even times 10,000
_RESERVED_SHARE: Final = 4  # a quarter for the proven: enough for some dozens of frames of a megabyte at a time
_SLOTS: Final = 10  # rates are measured over a tenth of the patience: a stop of a few seconds shows within it

Holder = TypeVar("Holder", bound=Hashable)


@dataclass(frozen=True, slots=True)
class BudgetLimits:
    bytes_max: int
    bytes_per_second_min: int
    slow_seconds_max: float


class ByteBudget(Generic[Holder]):
    def __init__(self, limits: BudgetLimits) -> None:
        self.limits = limits
        self.held_bytes = 0
        self._large_bytes = 0  # of those, what is held beyond the small, and not in the lane
        self._strangers_max = limits.bytes_max - limits.bytes_max // _RESERVED_SHARE
        self._accounts: dict[Holder, _Account] = {}
        self._arriving: dict[Holder, _Account] = {}  # of whom an unfinished frame is being read
        self._leaving: dict[Holder, _Account] = {}  # who has more replies to read than a socket takes
        self._waiting: list[tuple[bool, float, int, Holder]] = []  # a heap; entries that are out of date stay in it
        self._wishes: dict[Holder, _Wish] = {}
        self._wishes_total = 0
        self._in_lane: Holder | None = None
        self._is_oldest_next = False

    @property
    def is_short(self) -> bool:
        """Half of it is held: time to take in no more at once than everybody may hold anyway."""
        return 2 * self._large_bytes > self.limits.bytes_max

    @property
    def is_waited_for(self) -> bool:
        """Somebody wants room that there is not."""
        return bool(self._wishes)

    @property
    def holders(self) -> list[Holder]:
        return list(self._accounts)

    def is_in_lane(self, holder: Holder) -> bool:
        """Its frame is read to the end, whatever there is room for."""
        return self._in_lane is holder

    # What is held

    def hold(self, holder: Holder, held_bytes: int) -> None:
        """It holds so many bytes now."""
        self._set(self._account(holder), held_bytes)

    def forget(self, holder: Holder) -> None:
        """It has gone."""
        self._wishes.pop(holder, None)
        self._arriving.pop(holder, None)
        self._leaving.pop(holder, None)
        self._leave_lane(holder)
        account = self._accounts.pop(holder, None)
        if account is not None:
            self._set(account, 0)

    # What arrives

    def arrived(self, holder: Holder, count: int, now: float) -> None:
        """So many bytes of a frame that is not finished."""
        account = self._account(holder)
        if holder not in self._arriving:
            self._arriving[holder] = account
            account.arrival.start(now)
        account.arrival.count += count
        account.frame_bytes += count

    def finished(self, holder: Holder, now: float) -> None:
        """The unfinished frame is whole, and what follows it is another one."""
        account = self._accounts.get(holder)
        if account is not None:
            account.is_proven |= account.frame_bytes > SMALL_BYTES
            account.frame_bytes = 0
        self.stopped(holder, now)
        self._leave_lane(holder)

    def stopped(self, holder: Holder, now: float) -> None:
        """It is not read from for a while, which is not its fault."""
        account = self._arriving.pop(holder, None)
        if account is not None:
            account.arrival.stop(now)

    # What leaves

    def sent(self, holder: Holder, total: int, now: float) -> None:
        """More waits to be sent than its socket takes; `total` bytes have left since the connection was made."""
        account = self._account(holder)
        if holder not in self._leaving:
            self._leaving[holder] = account
            account.leaving.start(now)
            account.sent_total = total
        account.leaving.count += total - account.sent_total
        account.sent_total = total

    def all_sent(self, holder: Holder, now: float) -> None:
        account = self._leaving.pop(holder, None)
        if account is not None:
            account.leaving.stop(now)

    @property
    def leaving(self) -> list[Holder]:
        return list(self._leaving)

    # Room

    def wants(self, holder: Holder, more_bytes: int, now: float) -> bool:
        """Room for the rest of a frame. True: it is counted as held from now on. False: it waits, see `grants`."""
        account = self._account(holder)
        if not self._fits(account, more_bytes) and self._in_lane is None and not self._wishes:
            self._enter_lane(holder)
        if account.is_in_lane or self._fits(account, more_bytes):
            self._set(account, account.held_bytes + more_bytes)
            return True
        self.stopped(holder, now)
        self._wishes_total += 1
        self._wishes[holder] = _Wish(more_bytes, self._wishes_total)
        heappush(self._waiting, (not account.is_proven, -account.arrival.pace, self._wishes_total, holder))
        return False

    def grants(self) -> list[Holder]:
        """Those who have waited and wait no longer. What they wanted is counted as held."""
        granted: list[Holder] = []
        while self._waiting:
            _, _, number, holder = self._waiting[0]
            wish = self._wishes.get(holder)
            if wish is None or wish.number != number:
                heappop(self._waiting)
                continue
            if not self._fits(self._accounts[holder], wish.more_bytes):
                if self._in_lane is not None:
                    break
                holder = self._next_in_lane(holder)
                self._enter_lane(holder)
            account = self._accounts[holder]
            self._set(account, account.held_bytes + self._wishes.pop(holder).more_bytes)
            granted.append(holder)
        return granted

    def _next_in_lane(self, first: Holder) -> Holder:
        """By turns the first of those who wait and the one who has waited longest, so that nobody waits for ever."""
        self._is_oldest_next = not self._is_oldest_next
        return first if self._is_oldest_next else next(iter(self._wishes))

    # Too slow

    def too_slow(self, now: float, *, is_waited_for: bool = False) -> list[Holder]:
        """Who is to be closed. To be asked about ten times in `slow_seconds_max`, or more often.

        `is_waited_for` says that somebody waits for memory of whom the budget does not know.
        """
        is_waited_for = is_waited_for or self.is_waited_for
        slot = self.limits.slow_seconds_max / _SLOTS
        patience = slot if is_waited_for else self.limits.slow_seconds_max
        slow: list[Holder] = []
        for holder, account in self._arriving.items():
            account.arrival.look(now, slot, self.limits.bytes_per_second_min)
            is_small = account.held_bytes <= SMALL_BYTES
            if account.arrival.slow_seconds >= (self.limits.slow_seconds_max if is_small else patience):
                slow.append(holder)
        for holder, account in self._leaving.items():
            account.leaving.look(now, slot, self.limits.bytes_per_second_min)
            # A consumer may leave its replies unread while it works. It is in nobody's way unless somebody waits.
            if is_waited_for and account.leaving.slow_seconds >= slot and account.held_bytes > SMALL_BYTES:
                slow.append(holder)
        return list(dict.fromkeys(slow))

    def _account(self, holder: Holder) -> _Account:
        account = self._accounts.get(holder)
        if account is None:
            account = self._accounts[holder] = _Account()
        return account

    def _fits(self, account: _Account, more_bytes: int) -> bool:
        bytes_max = self.limits.bytes_max if account.is_proven else self._strangers_max
        return self._large_bytes + more_bytes <= bytes_max

    def _set(self, account: _Account, held_bytes: int) -> None:
        self._large_bytes -= account.large_bytes
        self.held_bytes += held_bytes - account.held_bytes
        account.held_bytes = held_bytes
        self._large_bytes += account.large_bytes

    def _enter_lane(self, holder: Holder) -> None:
        account = self._accounts[holder]
        self._in_lane = holder
        self._large_bytes -= account.large_bytes
        account.is_in_lane = True

    def _leave_lane(self, holder: Holder) -> None:
        if self._in_lane is holder:
            account = self._accounts[holder]
            self._in_lane = None
            account.is_in_lane = False
            self._large_bytes += account.large_bytes


@dataclass(frozen=True, slots=True)
class _Wish:
    more_bytes: int
    number: int  # of its entry in the heap


class _Account:
    __slots__ = ("arrival", "frame_bytes", "held_bytes", "is_in_lane", "is_proven", "leaving", "sent_total")

    def __init__(self) -> None:
        self.held_bytes = 0
        self.frame_bytes = 0  # of the unfinished frame, as far as it has arrived
        self.is_in_lane = False
        self.is_proven = False  # it has finished a large frame
        self.arrival = _Meter()
        self.leaving = _Meter()
        self.sent_total = 0

    @property
    def large_bytes(self) -> int:
        """What it holds of the budget."""
        return 0 if self.is_in_lane else max(0, self.held_bytes - SMALL_BYTES)


class _Meter:
    """How fast bytes come, or go, in the time in which they could."""

    __slots__ = ("_bytes", "_seconds", "_since", "count", "slow_seconds")

    def __init__(self) -> None:
        self.count = 0  # bytes since the last look
        self.slow_seconds = 0.0  # how long it has been below the minimum, without a break
        self._since = 0.0  # the last look
        self._bytes = 0
        self._seconds = 0.0

    @property
    def pace(self) -> float:
        """Bytes per second, over everything that was measured."""
        return self._bytes / max(self._seconds, 0.001)

    def start(self, now: float) -> None:
        self._since, self.count, self.slow_seconds = now, 0, 0.0

    def stop(self, now: float) -> None:
        self._add_up(now)

    def look(self, now: float, slot_seconds: float, bytes_per_second_min: int) -> None:
        seconds = now - self._since
        if seconds >= slot_seconds:
            is_slow = self.count < bytes_per_second_min * seconds
            self.slow_seconds = self.slow_seconds + seconds if is_slow else 0.0
            self._add_up(now)

    def _add_up(self, now: float) -> None:
        self._bytes += self.count
        self._seconds += now - self._since
        self._since, self.count = now, 0
