"""What people do with subscriptions: look, peek, pause, seek, purge, redrive, delete.

Groups that Kafka's clients made are no subscriptions, but can be listed, described, peeked into, moved and deleted like
one. Everything asks the authorizer first, as Kafka's own tools would be asked: DESCRIBE and READ on the group, READ on
the topic. In a cluster the broker that coordinates the group is asked; messages are shown, and sent back, by the
broker that leads their partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from clarion.broker.authorizer import Operation, Principal, ResourceKind
from clarion.broker.group_facts import SHARE, UNKNOWN, GroupFacts, GroupLooks, check
from clarion.broker.kafka_calls import KafkaCalls
from clarion.broker.queue_looks import QueueLook, look_at_queue
from clarion.broker.redriving import Redriven, Redriving
from clarion.broker.share_batches import READ_BYTES_MAX, read_batches
from clarion.broker.share_records import is_wanted
from clarion.broker.threads import in_thread
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import TopicPartition
from clarion.model.names import OFFSETS_TOPIC
from clarion.model.seeking import EARLIEST, LATEST, Seek
from clarion.model.subscription import Subscription
from clarion.queues.runs import RecordState
from clarion.replication import Partition
from clarion.wire import apis
from clarion.wire.messages.groups import DeleteGroupsRequest
from clarion.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from clarion.wire.messages.share_groups import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from clarion.wire.records import Record, iter_records

if TYPE_CHECKING:
    from clarion.broker.broker import Broker
    from clarion.broker.share_leader import ShareLeader

PEEK_MAX: Final = 1_000  # messages in one look
_READS_MAX: Final = 16  # of a megabyte each, in one partition: what is done already is passed over
_WITH_NAMES: Final = 9  # the newest OffsetCommit that has topics by name
_IN_USE: Final = (ErrorCode.NON_EMPTY_GROUP, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)


class Peeked(NamedTuple):
    topic: str
    partition: int
    record: Record
    deliveries: int
    holder: str  # the member that has it now; empty: nobody


class SubscriptionActions:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._calls = KafkaCalls(broker)
        self._looks = GroupLooks(broker, self._calls)
        self._redriven: set[str] = set()  # at the moment: two at once would send every letter twice

    def close(self) -> None:
        self._calls.close()

    # Looking

    async def overview(self, who: Principal) -> list[dict[str, Any]]:
        """Subscriptions, and the groups of Kafka's clients that are none."""
        allows = self._broker.resolver.allows
        known = {one.name: one for one in self._broker.subscriptions.all()}
        groups = {one.group_id: one for one in await self._looks.all(who)}
        found = []
        for name in sorted(known.keys() | groups.keys()):
            if not allows(who, Operation.DESCRIBE, ResourceKind.GROUP, name):
                continue
            one, group = known.get(name), groups.get(name)
            found.append(
                {
                    "name": name,
                    "is_subscription": one is not None,
                    "mode": _mode(one, "" if group is None else group.group_type.lower()),
                    "topics": [] if one is None else list(one.topics),
                    "pattern": None if one is None else one.pattern,
                    "push": None if one is None or one.push is None else one.push.url,
                    "paused": one is not None and one.paused,
                    "state": "" if group is None else group.group_state,
                }
            )
        return found

    async def describe(self, name: str, who: Principal) -> dict[str, Any]:
        """Its rules, its members, and partition by partition how far it is, and what is in whose hands."""
        self._broker.resolver.require_group(who, Operation.DESCRIBE, name)
        one, facts = await self._find(name, who)
        places = self._places(one, facts)
        looks = await self._look(one, facts, places)
        ends, starts = await self._looks.ends(places, who), await self._looks.starts(places, who)
        rows = [
            await self._row(one, looks[place], place, starts.get(place, UNKNOWN), ends.get(place, UNKNOWN))
            async for place in self._broker.turns.each(places)
        ]
        now_ms = self._broker.clock.now_ms()
        oldest = min((row["oldest_ms"] for row in rows if row["oldest_ms"] is not None), default=None)
        return {
            "name": name,
            "subscription": None if one is None else one.to_json(),
            "mode": _mode(one, facts.kind),
            "state": facts.state,
            "members": facts.members,
            "lag": sum(row["lag"] for row in rows if row["lag"] is not None),
            "in_flight": sum(row["in_flight"] or 0 for row in rows),
            "oldest_unacknowledged_ms": None if oldest is None else max(0, now_ms - oldest),
            "dead_letters": await self._dead_letters(one, who),
            "endpoint": self._broker.endpoints.describe(name),
            "partitions": rows,
        }

    async def peek(self, name: str, who: Principal, *, messages_max: int = 10) -> list[Peeked]:
        """The messages that come next, which nobody gets by this; of the partitions that this broker leads."""
        self._broker.resolver.require_group(who, Operation.DESCRIBE, name)
        if not 1 <= messages_max <= PEEK_MAX:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"from 1 to {PEEK_MAX} messages can be looked at")
        one, facts = await self._find(name, who)
        found: list[Peeked] = []
        places = self._places(one, facts)
        looks = await self._look(one, facts, places)
        for place in places:
            topic = self._broker.resolver.topic(who, Operation.READ, place.topic)
            partition = self._broker.partitions.find(topic.id, place.partition)
            if partition is not None and partition.is_leader and len(found) < messages_max:
                found += await self._peek_into(one, looks[place], partition, messages_max - len(found))
        return found

    async def _find(self, name: str, who: Principal) -> tuple[Subscription | None, GroupFacts]:
        one = self._broker.subscriptions.get(name)
        facts = await self._looks.group(name, who)
        if one is None and not facts.exists:
            raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, f"there is no subscription or group {name[:300]!r}")
        return one, facts

    def _places(self, one: Subscription | None, facts: GroupFacts) -> list[TopicPartition]:
        topics = {place.topic for place in facts.positions}
        if one is not None:
            topics.update(self._broker.subscriptions.topics_of(one))
        return self._looks.partitions_of(sorted(topics))

    async def _look(
        self, one: Subscription | None, facts: GroupFacts, places: list[TopicPartition]
    ) -> dict[TopicPartition, QueueLook]:
        """Where it is; of a queue, more than its group may know: HTTP's consumers join none."""
        looks = {}
        if facts.kind == SHARE or (one is not None and one.is_queue):
            looks = await look_at_queue(self._broker, facts.group_id, places)
        told = {place: QueueLook(facts.positions.get(place, UNKNOWN)) for place in places}
        return told | {place: look for place, look in looks.items() if look.position != UNKNOWN}

    async def _row(
        self, one: Subscription | None, look: QueueLook, place: TopicPartition, start: int, end: int
    ) -> dict[str, Any]:
        position, done, leader = look
        begins = self._begins(one, place) if position == UNKNOWN and start != UNKNOWN else position
        first = max(begins, start)
        held = {} if leader is None else _held(leader)
        is_known = begins != UNKNOWN and end != UNKNOWN
        is_decided = begins != UNKNOWN and (position != UNKNOWN or (one is not None and one.begins is not None))
        return {
            "topic": place.topic,
            "partition": place.partition,
            "position": begins if is_decided else None,
            "end_offset": None if end == UNKNOWN else end,
            "lag": max(0, end - first - done) if is_known else None,
            "in_flight": None if leader is None else sum(held.values()),
            "held": held,
            "oldest_ms": await self._oldest_ms(place, first) if is_known and first < end else None,
        }

    def _begins(self, one: Subscription | None, place: TopicPartition) -> int:
        """Where its first reader will; UNKNOWN: that is for the reader to decide."""
        if one is None or (one.begins is None and one.start != "earliest"):
            return UNKNOWN
        return 0 if one.begins is None else one.begins.at(self._broker.image.topics[place.topic].id, place.partition)

    async def _oldest_ms(self, place: TopicPartition, offset: int) -> int | None:
        """When the message was written; None where another broker has it."""
        partition = self._broker.partitions.find(self._broker.image.topics[place.topic].id, place.partition)
        if partition is None or not partition.is_leader:
            return None
        found, _ = await _records(partition, offset, 1)
        return found[0].timestamp if found else None

    async def _peek_into(
        self, one: Subscription | None, look: QueueLook, partition: Partition, count: int
    ) -> list[Peeked]:
        runs = [] if look.leader is None else look.leader.share.runs()
        begins = look.position if look.position != UNKNOWN else self._begins(one, partition.tp)
        at, found = max(begins, partition.start_offset), list[Peeked]()
        for _ in range(_READS_MAX):
            records, next_at = await _records(partition, at, count, one)
            for record in records:
                run = next((run for run in runs if run.first <= record.offset <= run.last), None)
                if run is None:
                    found.append(Peeked(*partition.tp, record, 0, ""))
                elif not run.state.is_done:
                    found.append(Peeked(*partition.tp, record, run.deliveries, run.member))
            if len(found) >= count or next_at == at:
                break
            at = next_at
        return found[:count]

    async def _dead_letters(self, one: Subscription | None, who: Principal) -> dict[str, Any] | None:
        if one is None or not (one.is_queue or one.push is not None):
            return None
        places = self._looks.partitions_of([one.dead_letters])
        starts, ends = await self._looks.starts(places, who), await self._looks.ends(places, who)
        return {"topic": one.dead_letters, "count": sum(end - starts.get(place, end) for place, end in ends.items())}

    # Doing

    async def pause(self, name: str, who: Principal) -> Subscription:
        return await self._broker.subscriptions.update(name, {"paused": True}, who)

    async def resume(self, name: str, who: Principal) -> Subscription:
        return await self._broker.subscriptions.update(name, {"paused": False}, who)

    async def seek(self, name: str, to: Seek, who: Principal) -> dict[TopicPartition, int]:
        """Where it reads on. What was known of single messages there is forgotten: they may come again."""
        self._broker.resolver.require_group(who, Operation.READ, name)
        one, facts = await self._find(name, who)
        if facts.members:
            raise self._in_use(name)
        offsets = await self._wanted(to, self._places(one, facts), who)
        if not facts.exists:
            if not (one is not None and one.is_queue and await self._broker.queues.move(name, offsets)):
                await self._broker.subscriptions.begin_at(name, offsets)  # nobody has read from it yet
            return offsets
        if facts.kind == SHARE:
            await self._alter(name, offsets, who)
        else:
            await self._commit(name, offsets, who)
        return offsets

    async def purge(self, name: str, who: Principal) -> int:
        """All that waits is passed over; how many messages that were, about."""
        lag = int((await self.describe(name, who))["lag"])
        await self.seek(name, Seek.latest(), who)
        return lag

    async def redrive(self, name: str, who: Principal, *, messages_max: int | None = None) -> Redriven:
        """Dead letters go back to the topics that they come from, and out of the dead letter topic."""
        self._broker.resolver.require_group(who, Operation.READ, name)
        subscription = self._broker.subscriptions.known(name)
        if name in self._redriven:
            raise KafkaError(
                ErrorCode.CONCURRENT_TRANSACTIONS, f"dead letters of {name!r} are being sent back already; wait for it"
            )
        self._redriven.add(name)
        try:
            return await Redriving(self._broker, subscription, who).run(messages_max)
        finally:
            self._redriven.discard(name)

    async def delete(self, name: str, who: Principal) -> None:
        """With its group and its positions. Its dead letter topic stays.

        The subscription goes last, and delivers nothing meanwhile: where this ends in between it is still there, and
        can be deleted again. Who joins its group meanwhile is given nothing to read, so that no state goes of which the
        group knows; what begins for it behind all this is nobody's (`queue_rules.identity_of`).
        """
        self._broker.resolver.require_group(who, Operation.DELETE, name)
        one, facts = await self._find(name, who)
        if facts.members:
            raise self._in_use(name)
        if one is not None:
            await self._broker.subscriptions.suspend(name, who)
        if self._broker.image.topic(OFFSETS_TOPIC) is not None:  # a group may have come since it was looked for
            (told,) = (
                await self._calls.of_group(name, apis.DELETE_GROUPS, DeleteGroupsRequest(groups_names=(name,)), who)
            ).results
            if told.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
                self._check(name, told.error_code, None)
        if one is not None and one.is_queue:  # also where it has read before its topics were changed
            await self._broker.queues.forget(name, self._looks.partitions_of(sorted(self._broker.image.topics)))
        if one is not None:
            await self._broker.subscriptions.delete(name, who)

    async def _wanted(self, to: Seek, places: Iterable[TopicPartition], who: Principal) -> dict[TopicPartition, int]:
        """Of each that is meant, or of none: who hears that it was done counts on all of them."""
        places = [place for place in places if to.offsets is None or place in to.offsets]
        if to.timestamp is not None and to.timestamp >= 0:
            return await self._looks.first_since(places, to.timestamp, who)
        starts = await self._looks.offsets_of_all(places, EARLIEST, who)
        ends = await self._looks.offsets_of_all(places, LATEST, who)
        if to.timestamp is None:
            return to.checked(starts, ends)
        return starts if to.timestamp == EARLIEST else ends

    async def _alter(self, name: str, offsets: Mapping[TopicPartition, int], who: Principal) -> None:
        topics = tuple(
            AlterShareGroupOffsetsRequestTopic(
                topic_name=topic,
                partitions=tuple(
                    AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=offset)
                    for index, offset in of_topic
                ),
            )
            for topic, of_topic in _by_topic(offsets)
        )
        asked = AlterShareGroupOffsetsRequest(group_id=name, topics=topics)
        told = await self._calls.of_group(name, apis.ALTER_SHARE_GROUP_OFFSETS, asked, who)
        self._check(name, told.error_code, told.error_message)
        for topic in told.responses:
            for one in topic.partitions:
                self._check(name, one.error_code, one.error_message)

    async def _commit(self, name: str, offsets: Mapping[TopicPartition, int], who: Principal) -> None:
        topics = tuple(
            OffsetCommitRequestTopic(
                name=topic,
                partitions=tuple(
                    OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
                    for index, offset in of_topic
                ),
            )
            for topic, of_topic in _by_topic(offsets)
        )
        asked = OffsetCommitRequest(group_id=name, topics=topics)
        told = await self._calls.of_group(name, apis.OFFSET_COMMIT, asked, who, _WITH_NAMES)
        for topic in told.topics:
            for one in topic.partitions:
                self._check(name, one.error_code, None)

    def _check(self, name: str, code: int, message: str | None) -> None:
        if code in _IN_USE:
            raise self._in_use(name)
        check(code, message)

    def _in_use(self, name: str) -> KafkaError:
        return KafkaError(ErrorCode.NON_EMPTY_GROUP, f"{name!r} has members; stop its consumers first")


async def _records(
    partition: Partition, offset: int, count: int, wanted_by: Subscription | None = None
) -> tuple[list[Record], int]:
    """The first that there are from an offset on, without those that its filter passes over; perhaps fewer. With the
    offset behind what was read."""
    if offset >= partition.high_watermark.offset:
        return [], offset
    read = await read_batches(partition, offset, READ_BYTES_MAX)

    def first() -> tuple[list[Record], int]:
        found: list[Record] = []
        behind = offset
        for _, last, batch in read.contents():
            records = (record for record in iter_records(batch) if record.offset >= offset)
            found += (each for each in records if wanted_by is None or is_wanted(wanted_by, each, partition.tp))
            behind = max(behind, last + 1)
            if len(found) >= count:
                break
        return found, behind

    return await in_thread(first)


def _held(leader: ShareLeader) -> dict[str, int]:
    held: dict[str, int] = {}
    for run in leader.share.runs():
        if run.state is RecordState.ACQUIRED:
            held[run.member] = held.get(run.member, 0) + len(run)
    return held


def _by_topic(offsets: Mapping[TopicPartition, int]) -> list[tuple[str, list[tuple[int, int]]]]:
    topics = dict.fromkeys(place.topic for place in offsets)
    return [
        (topic, [(at.partition, offset) for at, offset in offsets.items() if at.topic == topic]) for topic in topics
    ]


def _mode(one: Subscription | None, kind: str) -> str:
    if one is not None:
        return one.mode
    return "queue" if kind == SHARE else "stream"
