"""The cluster manager: one broker at a time decides for all, and everything it writes is fenced.

It is elected by a key in the store that is bound to its lease. Every change that it makes demands that this very key
is still there, so that one who has been replaced without noticing changes nothing any more. And that those whom it
leaves in sync are still in the life in which it knew them: one who was frozen decides by what it knew before, and would
elect a broker that has lost since then what it had. It follows the store by watching it; what it decides is in
`decisions`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import aclosing, suppress
from itertools import islice
from typing import Final

from clarion.cluster.changes import change, until_answered
from clarion.cluster.coordination import (
    OPERATIONS_MAX,
    Compare,
    CoordinationStore,
    Delete,
    Entry,
    LeaseId,
    LeaseNotFoundError,
    Operation,
    Put,
    StoreError,
    absent,
    unchanged,
)
from clarion.cluster.decisions import (
    Decision,
    Policy,
    RulesOf,
    Since,
    absent_holders,
    elections,
    forgettable,
    preferences,
    repairs,
    summary,
    unclaimed_topics,
)
from clarion.cluster.elections import Alive
from clarion.cluster.events import ClusterEvent, events_in
from clarion.cluster.image import ClusterImage
from clarion.cluster.probes import Probes
from clarion.cluster.schema import (
    CONTROLLER,
    TOPIC_CHANGES,
    BrokerRegistration,
    broker_key,
    deleting_key,
    partition_key,
    read_broker,
    removed_key,
    write_partition,
)
from clarion.model.ids import TopicId
from clarion.world import event_log
from clarion.world.events import Repeats

log = event_log("cluster")

_AT_ONCE: Final = OPERATIONS_MAX - 1  # one compare is the controller's own key, in decisions some are of brokers
_SIDE_BY_SIDE: Final = 8  # transactions: the leaders of a thousand partitions change in the time of two or three
_PAUSE_SECONDS: Final = 0.2  # before what went wrong is tried anew
_LOOK_SECONDS: Final = 10.0  # between two looks at how things are when nothing happens: settings may have changed
_UNCLAIMED_SECONDS: Final = 60.0  # the transactions of one topic take less than a second each
_SENTENCES_MAX: Final = 1000
_SAID_AGAIN_SECONDS: Final = 10.0  # a store that is away is asked several times per second


class Controller:
    """`run` until the broker stops. It decides only while it is the one (`is_active`)."""

    def __init__(
        self,
        store: CoordinationStore,
        broker_id: int,
        lease: LeaseId,
        rules_of: RulesOf,
        policy: Policy,
        *,
        look_seconds: float = _LOOK_SECONDS,
        now_ms: Callable[[], int] = lambda: 0,
        probes_brokers: bool = False,
        unclaimed_seconds: float = _UNCLAIMED_SECONDS,
    ) -> None:
        """`now_ms`: the wall clock's, for those who read what was decided. `probes_brokers`: see `probes`."""
        self._store = store
        self._broker_id = broker_id
        self._lease = lease
        self._rules_of = rules_of
        self.policy = policy  # may be replaced; it counts from the next decision on
        self._look_seconds = look_seconds
        self._unclaimed_seconds = unclaimed_seconds
        self._loop = asyncio.get_running_loop()
        self._key: Entry | None = None
        self._image: ClusterImage
        self._news = asyncio.Event()
        self._forget_times()
        self._now_ms = now_ms
        self._probes = Probes(self._end_lease) if probes_brokers else None
        self._complaints = Repeats(lines_max=1, seconds=_SAID_AGAIN_SECONDS)
        self._unwritten: list[str] = []
        self._next_event = 0
        self._heard_at: float | None = None  # the first news that nothing was decided about yet
        self._since = 0.0  # when what is being decided about was heard
        self.elections_total = 0
        self.election_seconds_total = 0.0  # from the news that called for them until they were written
        self.sentences: deque[str] = deque(maxlen=_SENTENCES_MAX)  # what it decided, and why; the latest last

    def _forget_times(self) -> None:
        self._absent: Since[int] = Since()
        self._waiting_to_lead: Since[int] = Since()
        self._unclaimed: Since[TopicId] = Since()

    @property
    def is_active(self) -> bool:
        return self._key is not None

    async def run(self) -> None:
        """For as long as the lease lasts: nobody else can decide until then. LeaseNotFoundError: it is over."""
        while True:
            try:
                if await self._campaign():
                    await self._govern()
            except LeaseNotFoundError:
                self._key = None
                raise
            except (StoreError, OSError) as error:
                if self._complaints.allow(self._loop.time()):
                    log.warning("controller_interrupted", reason=str(error), **self._complaints.take_left_out())
            self._key = None
            await asyncio.sleep(_PAUSE_SECONDS)

    async def resign(self) -> None:
        """Let another one decide: as long as this one has the office nobody does, whatever became of `run`."""
        held, self._key = self._key, None
        if held is not None:
            with suppress(StoreError, OSError):
                await change(self._store, [unchanged(held)], [Delete(CONTROLLER)], lambda _: None)

    async def _campaign(self) -> bool:
        """Wait until nobody is the controller, and try to be it. LeaseNotFoundError: this broker's time is over."""
        found = await until_answered(lambda: self._store.range(CONTROLLER))
        held = next((entry for entry in found.entries if entry.key == CONTROLLER), None)
        if held is not None and held.lease != self._lease:
            await self._watch_controller(int(held.value))
            try:
                await self._until_vacant(found.revision + 1)
            finally:
                if self._probes is not None:
                    await self._probes.close()
            return False
        if held is None:
            put = Put(CONTROLLER, str(self._broker_id).encode(), self._lease)
            if not await change(self._store, [absent(CONTROLLER)], [put], lambda _: None):
                return False
            held = await until_answered(lambda: self._store.get(CONTROLLER))
            if held is None or held.lease != self._lease:
                return False
        self._key = held
        self._say(f"broker {self._broker_id} is the controller")
        return True

    async def _watch_controller(self, controller: int) -> None:
        """Its death is noticed by those who would be the next: otherwise nobody decides until its lease has ended."""
        if self._probes is not None and (known := await self._store.get(broker_key(controller))) is not None:
            self._probes.watch({controller: read_broker(controller, known.value)})

    async def _until_vacant(self, from_revision: int) -> None:
        async with aclosing(self._store.watch(CONTROLLER, from_revision)) as changes:
            async for one in changes:
                if any(event.key == CONTROLLER and event.entry is None for event in one.events):
                    return

    async def _govern(self) -> None:
        found = await until_answered(lambda: self._store.range(""))
        self._image = ClusterImage.of(found)
        self._next_event = max((one.number for one in events_in(found.entries)), default=-1) + 1
        self._forget_times()
        self._watch_brokers()
        following = self._loop.create_task(self._follow(found.revision + 1))  # its error is raised below
        try:
            while self.is_active and not following.done():
                self._news.clear()
                self._since, self._heard_at = self._heard_at or self._loop.time(), None
                await self._decide()
                await self._write_events()
                await self._until_something_is_due()
        finally:
            following.cancel()
            await asyncio.wait([following])
            if self._probes is not None:
                await self._probes.close()
        if not following.cancelled() and (error := following.exception()) is not None:
            raise error

    async def _follow(self, from_revision: int) -> None:
        """The image is what the store is, a little later."""
        async with aclosing(self._store.watch("", from_revision)) as changes:
            async for one in changes:
                self._image = self._image.after(one)
                self._watch_brokers()
                if any(event.key == CONTROLLER for event in one.events):
                    self._key = None  # somebody else's, or nobody's: not this one
                self._heard_at = self._heard_at or self._loop.time()
                self._news.set()
        self._news.set()

    def _watch_brokers(self) -> None:
        if self._probes is not None:
            self._probes.watch({one: its for one, its in self._image.brokers.items() if one != self._broker_id})

    async def _end_lease(self, broker: BrokerRegistration) -> None:
        """Of this life of it, if it is still the one that is registered. Whoever has the proof may do it."""
        with suppress(StoreError, OSError):
            known = await self._store.get(broker_key(broker.id))
            is_same = known is not None and read_broker(broker.id, known.value).epoch == broker.epoch
            if known is not None and is_same and known.lease is not None:
                self._say(f"broker {broker.id} is gone: its machine refuses connections in its place")
                await self._store.revoke_lease(known.lease)

    async def _until_something_is_due(self) -> None:
        now = self._loop.time()
        due = [
            self._absent.next_deadline(self.policy.replace_after_seconds, now),
            self._unclaimed.next_deadline(self._unclaimed_seconds, now),
        ]
        if self.policy.prefer_after_seconds is not None:
            due.append(self._waiting_to_lead.next_deadline(self.policy.prefer_after_seconds, now))
        try:
            async with asyncio.timeout_at(min([now + self._look_seconds, *(one for one in due if one is not None)])):
                await self._news.wait()
        except TimeoutError:
            pass

    async def _decide(self) -> None:
        """Elections first, all of them; the rest only when there are none, and from an image that shows them."""
        now = self._loop.time()
        self._absent.note(absent_holders(self._image), now)
        self._unclaimed.note(unclaimed_topics(self._image), now)
        await self._forget_deleted()
        await self._forget_unclaimed(now)
        if not await self._apply(elections(self._image, self._rules_of)):
            gone = self._absent.longer_than(self.policy.replace_after_seconds, now)
            if not await self._apply(repairs(self._image, self.policy, gone)):
                await self._apply(self._due_preferences(now))

    def _due_preferences(self, now: float) -> list[Decision]:
        """All that a broker should lead and does not, when the first of them could have been its for long enough."""
        wait = self.policy.prefer_after_seconds
        if wait is None:
            return []
        wanted = list(preferences(self._image, self._rules_of))
        self._waiting_to_lead.note({one.state.leader for one in wanted}, now)
        due = self._waiting_to_lead.longer_than(wait, now)
        return [one for one in wanted if one.state.leader in due]

    async def _apply(self, decisions: Iterable[Decision]) -> bool:
        """Whether there were any. Transactions do not wait for each other: no two are about the same partition."""
        upcoming, brokers = iter(decisions), self._image.brokers  # as they were seen by whoever decided
        were_any = False
        while together := list(islice(upcoming, _AT_ONCE * _SIDE_BY_SIDE)):
            were_any = True
            try:
                async with asyncio.TaskGroup() as group:
                    for part in _transactions(together, brokers):
                        group.create_task(self._write(part, brokers))  # its error is raised below
            except ExceptionGroup as several:
                raise several.exceptions[0] from None  # what is undone by now is decided again
        return were_any

    async def _write(self, part: list[Decision], brokers: Alive) -> None:
        """All of them or none: if one of the partitions was changed meanwhile, the next image will show it."""
        if self._key is None:
            return
        keys = [partition_key(one.topic.id, one.partition) for one in part]
        compares = [Compare(key, one.state.revision) for key, one in zip(keys, part, strict=True)]
        compares += [Compare(broker_key(one), brokers[one].revision) for one in sorted(_relied_on(part, brokers))]
        puts = [Put(key, write_partition(one.state)) for key, one in zip(keys, part, strict=True)]
        if await change(self._store, [unchanged(self._key), *compares], puts, lambda _: None):
            elected = sum(one.is_election for one in part)
            self.elections_total += elected
            self.election_seconds_total += elected * (self._loop.time() - self._since)
            self._say(summary(part))
            for one in part:
                log.debug("decided", what=one.sentence)

    async def _forget_deleted(self) -> None:
        """The last word about a topic: its own key goes last, so that what is interrupted is begun again."""
        image = self._image
        for topic_id in forgettable(image):
            gone: list[Operation] = [
                *(Delete(partition_key(topic_id, index)) for index in sorted(image.unclaimed.get(topic_id, ()))),
                *(Delete(removed_key(topic_id, one)) for one in sorted(image.removed.get(topic_id, ()))),
                Delete(deleting_key(topic_id)),
            ]
            for at in range(0, len(gone), _AT_ONCE):
                if self._key is not None:
                    await self._store.transact([unchanged(self._key)], gone[at : at + _AT_ONCE])

    async def _forget_unclaimed(self, now: float) -> None:
        """Partitions of a topic that was never made to the end: more than fit into one transaction, and its maker died.

        Should it be about to finish all the same, it finds that topics have changed, and begins anew.
        """
        for topic_id in sorted(self._unclaimed.longer_than(self._unclaimed_seconds, now)):
            gone = [Delete(partition_key(topic_id, index)) for index in sorted(self._image.unclaimed[topic_id])]
            for at in range(0, len(gone), _AT_ONCE - 1):
                if self._key is not None:
                    changed = Put(TOPIC_CHANGES, f"without {topic_id.hex} from {at} on".encode())
                    await self._store.transact([unchanged(self._key)], [changed, *gone[at : at + _AT_ONCE - 1]])

    async def _write_events(self) -> None:
        """For whoever wants to know later. What is lost of it is lost."""
        told, self._unwritten = self._unwritten[:_AT_ONCE], []
        if told and self._key is not None:
            puts = [ClusterEvent(self._next_event + at, self._now_ms(), one).put for at, one in enumerate(told)]
            self._next_event += len(told)
            await self._store.transact([unchanged(self._key)], puts)

    def _say(self, sentence: str) -> None:
        self.sentences.append(sentence)
        self._unwritten.append(sentence)
        log.info("cluster_decision", what=sentence)


def _transactions(decisions: Iterable[Decision], brokers: Alive) -> Iterator[list[Decision]]:
    """As many at a time as one transaction holds, with the compares that go with them."""
    part: list[Decision] = []
    relied_on: set[int] = set()
    for one in decisions:
        its = _relied_on([one], brokers)
        if part and len(part) + 1 + len(relied_on | its) > _AT_ONCE:
            yield part
            part, relied_on = [], set()
        part.append(one)
        relied_on |= its
    yield part


def _relied_on(part: Iterable[Decision], brokers: Alive) -> set[int]:
    """Brokers that are said to hold everything, and of which that is known: the others are not there."""
    return {replica for one in part for replica in one.state.in_sync if replica in brokers}
