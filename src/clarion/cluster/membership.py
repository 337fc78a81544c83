"""A broker's place in the cluster: it is registered for as long as it keeps its lease alive.

The lease is what fences it. Whoever leads a partition may acknowledge messages only while nobody else can have been
elected in its place, and nobody is before the lease has ended in the store. So its own time is counted from before the
last successful keep-alive was *sent*, by a clock that goes on in suspend, and ends a margin early.

A broker whose lease has ended (it was frozen, or the store was away) joins again in another life: with another epoch
and another secret. What it led it leads no longer; what it holds it still holds.

Its data directory learns of every life before the store does. One that has not heard of the last life is an older
copy, put back in the place of the real one: nobody relies on what it holds until that was compared with a leader's log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from clarion.cluster import schema
from clarion.cluster.changes import change, until_answered
from clarion.cluster.coordination import (
    CoordinationStore,
    Entry,
    LeaseId,
    LeaseNotFoundError,
    Put,
    Revision,
    StoreError,
    absent,
    unchanged,
)
from clarion.cluster.counters import next_broker_epoch
from clarion.cluster.features import check_level
from clarion.cluster.schema import (
    NO_EPOCH,
    BrokerRegistration,
    Endpoint,
    Life,
    broker_key,
    life_key,
    read_broker,
    read_life,
    write_broker,
    write_life,
)
from clarion.world import boot_seconds, event_log
from clarion.world.events import Repeats
from clarion.world.tasks import start_task

log = event_log("cluster")

TERM_SECONDS: Final = 6.0  # of the lease: a store of three machines may take 2.7 s to elect its own leader
_MARGIN: Final = 0.1  # of the term: clocks of two machines differ by far less than this in so short a time
_KEPT_ALIVE_PER_TERM: Final = 3
_LOOK_SECONDS: Final = 0.1  # at whether the broker that has our id is gone
_PAUSE_SECONDS: Final = 0.2  # before what the store did not answer is tried again
_SAID_AGAIN_SECONDS: Final = 10.0
_GOODBYE_SECONDS: Final = 2.0  # for the store to answer a broker that leaves; its lease ends by itself


class DuplicateBrokerError(StoreError):
    """Another broker of the cluster has this id."""


class Newcomer(NamedTuple):
    """Who joins."""

    id: int
    directory: str  # the id of its data directory, which no two processes have open at a time
    rack: str | None = None
    ended_cleanly: int | None = None  # the epoch of the life whose clean stop the data directory tells of
    clean_since: int = NO_EPOCH  # what that life said of the lives before it
    latest_in_logs: int = NO_EPOCH
    last_life: int | None = None  # the latest of which the data directory knows; None: it is new, or an older version's


class BrokerMembership:
    def __init__(
        self,
        store: CoordinationStore,
        newcomer: Newcomer,
        new_secret: Callable[[], str],
        *,
        term_seconds: float = TERM_SECONDS,
        elapsed: Callable[[], float] = boot_seconds,
        note_life: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """`note_life` writes the epoch of a life into the data directory; False if it could not, or there is none."""
        self._store = store
        self._newcomer = newcomer
        self._new_secret = new_secret
        self._term_seconds = term_seconds
        self.elapsed = elapsed
        self._note_life = note_life
        self._own_lives: set[int] = set()  # of this process, also such as the store has not heard of
        self._is_life_noted = False
        self._valid_until = elapsed()
        self._endpoints: tuple[Endpoint, ...] = ()
        self._is_leaving = False
        self._is_drained = False
        self._registering = asyncio.Lock()  # a life that is over must not be told of when the next one has begun
        self._keeping: asyncio.Task[None] | None = None
        self._complaints = Repeats(lines_max=1, seconds=_SAID_AGAIN_SECONDS)
        self._on_joined: list[Callable[[], None]] = []
        self._former_lease: LeaseId | None = None  # of a life before this one, if it had not ended
        self._ending: asyncio.Task[None] | None = None  # of that one
        self.lease: LeaseId | None = None
        self.epoch = NO_EPOCH  # of this life
        self.clean_since = NO_EPOCH
        self.secret = ""

    @property
    def id(self) -> int:
        return self._newcomer.id

    def lease_is_valid(self) -> bool:
        """Whether it is certain that nobody has been elected in this broker's place."""
        return self.elapsed() < self._valid_until

    def on_joined(self, callback: Callable[[], None]) -> None:
        """Called at the beginning of every life, also of this one."""
        self._on_joined.append(callback)
        if self.lease is not None:
            callback()

    async def join(self, endpoints: tuple[Endpoint, ...]) -> None:
        """Returns when the cluster knows this broker. DuplicateBrokerError: it knows another one by this id."""
        self._endpoints = endpoints
        await self._begin_life()
        self._keeping = start_task(self._stay(), "keeping the lease")

    async def announce_leaving(self) -> None:
        """It should lead nothing any more: it is about to stop."""
        self._is_leaving = True
        with suppress(StoreError, OSError):
            await self._register_again()

    async def be_drained(self, is_drained: bool) -> None:
        """Whether it should lead nothing and get nothing new, while it stays. Before `join`, or whenever it changes."""
        if is_drained != self._is_drained:
            self._is_drained = is_drained
            if self.lease is not None:
                with suppress(LeaseNotFoundError):  # the next life says so
                    await self._register_again()

    def abandon(self) -> None:
        """Nobody is told; the lease ends by itself."""
        self._valid_until = self.elapsed()
        for task in (self._keeping, self._ending):
            if task is not None:
                task.cancel()

    async def close(self) -> None:
        """The others need not wait for the end of its term."""
        for task in (self._keeping, self._ending):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self._valid_until = self.elapsed()
        if self.lease is not None:
            with suppress(StoreError, OSError, TimeoutError):
                async with asyncio.timeout(_GOODBYE_SECONDS):
                    await self._store.revoke_lease(self.lease)

    # A life

    async def _begin_life(self) -> None:
        await check_level(self._store)
        await self._until_vacant()
        while True:
            # The epoch comes before anybody hears of it: what this life does is fenced by it from the beginning. And
            # before the lease, of whose term a slow store leaves little: else it would be over before it is used.
            epoch = await next_broker_epoch(self._store, self._newcomer.latest_in_logs, self._newcomer.directory)
            self._is_life_noted = self._note_life(epoch)
            self._own_lives.add(epoch)
            sent = self.elapsed()
            self.lease = await until_answered(lambda: self._store.grant_lease(self._term_seconds))
            with suppress(LeaseNotFoundError):  # the store has taken longer than a term
                async with self._registering:
                    is_registered = await self._register(epoch, self._new_secret())
                if is_registered:
                    self._prolong(sent)
                    log.info("joined", broker=self.id, epoch=epoch, clean_since=self.clean_since)
                    for callback in self._on_joined:
                        callback()
                    # Beside the keeping of the new lease, which a slow store has left little of.
                    self._ending = start_task(self._end_former_lease(), "end of a former lease")
                    return
                await self._until_vacant()

    async def _end_former_lease(self) -> None:
        """Who comes back before the lease of its last life has ended ends it: else what hangs on that, be it the office
        of the controller, would keep everybody waiting for somebody who is gone. Only now: the registration hangs on
        the new lease, and nobody sees the broker leave in between."""
        former, self._former_lease = self._former_lease, None
        if former is not None:
            with suppress(StoreError, OSError, TimeoutError):  # it ends by itself then
                async with asyncio.timeout(self._term_seconds / _KEPT_ALIVE_PER_TERM):
                    await self._store.revoke_lease(former)

    async def _until_vacant(self) -> None:
        """Somebody with our id may be one who died just now: then the registration goes with its lease."""
        key = broker_key(self.id)
        deadline = asyncio.get_running_loop().time() + 2 * self._term_seconds
        while (known := await until_answered(lambda: self._store.get(key))) is not None and not self._is_ours(known):
            if asyncio.get_running_loop().time() > deadline:
                other = read_broker(self.id, known.value).endpoint(0)
                raise DuplicateBrokerError(
                    f"broker {self.id} of this cluster is running already, on {other.host}:{other.port}; "
                    "choose another --node-id"
                )
            await asyncio.sleep(_LOOK_SECONDS)

    def _is_ours(self, known: Entry) -> bool:
        """Of a life before this one: whoever has the data directory open is the only one. But a copy of it may be open
        elsewhere, in a life of which this one does not know."""
        registered = read_broker(self.id, known.value)
        is_known = self._newcomer.last_life is None or self._knows(registered.epoch)
        return registered.directory == self._newcomer.directory and is_known

    def _knows(self, life: int) -> bool:
        last_known = self._newcomer.last_life
        return life in self._own_lives or (last_known is not None and life <= last_known)

    async def _register_again(self) -> None:
        """In the same life, whichever that is by now."""
        async with self._registering:
            await self._register(self.epoch, self.secret)

    async def _register(self, epoch: int, secret: str) -> bool:
        """False if another broker was faster."""
        key, life = broker_key(self.id), life_key(self.id)
        while True:
            known = await until_answered(lambda: self._store.get(key))
            last = await until_answered(lambda: self._store.get(life))
            if known is not None and not self._is_ours(known):
                return False
            if known is not None and known.lease != self.lease:
                self._former_lease = known.lease
            last_life = read_life(last.value) if last else Life()
            clean_since = self._clean_since(last_life.epoch, epoch)
            held_since = self._held_since(last_life, epoch)
            this_life = Life(epoch, self._newcomer.directory, held_since, self._is_life_noted)
            ours = BrokerRegistration(
                self.id,
                epoch,
                self._endpoints,
                self._newcomer.rack,
                clean_since,
                self._is_leaving or self._is_drained,
                self._newcomer.directory,
                secret,
                schema.FEATURE_LEVEL,
                this_life.held_since,
            )
            puts = [Put(key, write_broker(ours), self.lease), Put(life, write_life(this_life))]
            compares = [unchanged(one) if one else absent(name) for name, one in ((key, known), (life, last))]

            def follow(_: Revision, *, clean_since: int = clean_since) -> None:
                self.epoch, self.secret, self.clean_since = epoch, secret, clean_since

            if await change(self._store, compares, puts, follow):
                return True

    def _clean_since(self, last_life: int, epoch: int) -> int:
        """The first life since which nothing that this broker held can have been lost.

        A data directory that tells of the clean stop of an earlier life than the last one is an old copy. Lives of one
        process lose nothing in between.
        """
        if self.epoch == last_life and self.epoch != NO_EPOCH:
            return self.clean_since
        newcomer = self._newcomer
        was_clean = newcomer.ended_cleanly is not None and newcomer.ended_cleanly == last_life
        return newcomer.clean_since if was_clean and newcomer.clean_since != NO_EPOCH else epoch

    def _held_since(self, last: Life, epoch: int) -> int:
        """With another data directory under the same id (its disk was replaced) a broker holds nothing of before. With
        an older copy of its own it holds some of it, and nobody knows what."""
        is_older_copy = last.is_in_directory and not self._knows(last.epoch)
        return last.held_since if last.directory in ("", self._newcomer.directory) and not is_older_copy else epoch

    # Staying

    async def _stay(self) -> None:
        while True:
            try:
                await self._keep_alive()
                await asyncio.sleep(self._term_seconds / _KEPT_ALIVE_PER_TERM)
            except LeaseNotFoundError:
                if self._is_leaving:  # and what its files say of how it ended is about this life
                    self._valid_until = self.elapsed()
                    log.warning("lease_lost", broker=self.id, consequence="it is stopping, and does not join again")
                    return
                log.warning("lease_lost", broker=self.id, consequence="joining again, in another life")
                await self._join_again()
            except (TimeoutError, StoreError, OSError) as error:
                self._complain("lease_not_kept", str(error) or "the store does not answer")
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _keep_alive(self) -> None:
        assert self.lease is not None
        sent = self.elapsed()
        async with asyncio.timeout(self._term_seconds / _KEPT_ALIVE_PER_TERM):
            await self._store.keep_alive(self.lease)
        self._prolong(sent)

    async def _join_again(self) -> None:
        self._valid_until = self.elapsed()
        while True:
            try:
                return await self._begin_life()
            except DuplicateBrokerError as error:
                log.error("cannot_join_again", broker=self.id, reason=str(error))
            except (StoreError, OSError) as error:
                self._complain("cannot_join_again", str(error))
            await asyncio.sleep(_PAUSE_SECONDS)

    def _complain(self, event: str, reason: str) -> None:
        """A store that is away is asked several times per second."""
        if self._complaints.allow(asyncio.get_running_loop().time()):
            what = "reading and writing go on" if self.lease_is_valid() else "writing waits until the store answers"
            log.warning(event, broker=self.id, reason=reason, consequence=what, **self._complaints.take_left_out())

    def _prolong(self, sent: float) -> None:
        self._valid_until = sent + self._term_seconds * (1 - _MARGIN)
