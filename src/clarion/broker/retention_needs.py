"""What subscriptions and groups need of the partitions that this broker leads, found out wherever it is known.

What they have acknowledged is durable where it is written down: committed offsets with the coordinators of groups,
queues' positions with the share coordinators. Both may be on other brokers, and answer only when no failover can undo
what they say. What nobody answers counts as not acknowledged: messages stay, up to the topic's maximum.

    found = await needs.look(partitions)
    found.of(partition)     → what anybody needs, for `consumers.retention.decide`; None: nothing may go now
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from clarion.broker.group_positions import GroupPositions
from clarion.broker.queue_rules import identity_of
from clarion.consumers.retention import UNKNOWN_GROUPS, Need, needs_acknowledgements
from clarion.model.errors import KafkaError
from clarion.model.ids import TopicId, TopicPartition
from clarion.model.names import SHARE_STATE_TOPIC
from clarion.net.channel import LastingChannel
from clarion.queues.state_records import UNINITIALIZED, ShareKey
from clarion.replication import Partition

if TYPE_CHECKING:
    from clarion.broker.broker import Broker
    from clarion.model.subscription import Subscription
    from clarion.model.topic_settings import TopicSettings

_PATIENCE_SECONDS: Final = 5.0  # for a coordinator's answer; the next look asks again
_LOOKS_MAX: Final = 3


class NeedsFound:
    """What one look found out."""

    def __init__(self, *, is_catalog_known: bool) -> None:
        self._is_catalog_known = is_catalog_known
        self.subscriptions: dict[str, Sequence[Subscription]] = {}  # by topic
        self.committed: dict[TopicPartition, dict[str, int]] = {}
        self.shares: dict[tuple[TopicId, int], dict[str, int]] = {}  # by partition: where groups and queues are
        self.share_readers: dict[TopicId, set[str]] = {}  # who has state in any partition, also of other brokers
        self.asked: dict[Partition, TopicSettings] = {}  # those that were led here, as they were to be
        self.has_all_groups = True
        self.has_all_subscriptions = True  # of those that were made at other brokers, too
        self._groups: dict[str, set[str]] = {}  # by topic: who has committed in any of its partitions

    def of(self, partition: Partition) -> Sequence[Need] | None:
        if not self._is_catalog_known:
            return None
        settings, tp = partition.settings, partition.tp
        subscriptions = self.subscriptions.get(tp.topic, ())
        if not (subscriptions or settings.retention_hold_groups or settings.is_by_subscriptions):
            return ()
        if not partition.is_leader or self.asked.get(partition) is not settings:
            return None  # the leader asks, decides, and tells where its log starts; who has just come to lead asks next
        needs = [Need.of_subscription(one, self._position(one, partition)) for one in subscriptions]
        committed = self._committed_in(partition)
        needs += [Need.of_holding_group(one, committed.get(one)) for one in settings.retention_hold_groups]
        if settings.is_by_subscriptions:
            needs += self._of_groups(partition, {need.holder for need in needs})
        return needs

    def _position(self, subscription: Subscription, partition: Partition) -> int | None:
        of_all = self._shares_of(partition) if subscription.is_queue else self._committed_in(partition)
        if subscription.name in of_all or subscription.begins is None:
            return of_all.get(subscription.name)
        return _known(subscription.begins.of(partition.topic_id, partition.tp.partition), partition)

    def _groups_in(self, topic: str) -> set[str]:
        if topic not in self._groups:
            of_topic = [groups for at, groups in self.committed.items() if at.topic == topic]
            self._groups[topic] = set[str]().union(*of_topic)
        return self._groups[topic]

    def _shares_of(self, partition: Partition) -> Mapping[str, int | None]:
        return _in_log(self.shares.get((partition.topic_id, partition.tp.partition), {}), partition)

    def _committed_in(self, partition: Partition) -> Mapping[str, int | None]:
        return _in_log(self.committed.get(partition.tp, {}), partition)

    def _of_groups(self, partition: Partition, named: set[str]) -> list[Need]:
        """A group that has committed in another partition of the topic alone reads this one too: it is behind there.
        So is a share group whose state has yet to begin, in a partition that was added."""
        committed = self._committed_in(partition)
        readers = {group: committed.get(group) for group in self._groups_in(partition.tp.topic)}
        begun = self._shares_of(partition)
        shares = {group: begun.get(group) for group in begun.keys() | self.share_readers.get(partition.topic_id, set())}
        known = (*readers.items(), *shares.items())
        needs = [Need.of_group(group_id, offset) for group_id, offset in known if group_id not in named]
        if not self.has_all_groups:
            needs.append(Need.of_group(UNKNOWN_GROUPS, None))
        if not self.has_all_subscriptions:
            needs.append(Need.of_unknown_subscriptions())
        return needs


def _in_log(positions: Mapping[str, int], partition: Partition) -> dict[str, int | None]:
    """A position behind the log's end is of messages that are lost, by a power cut or a backup that was put back. Those
    that come in their places nobody has read yet."""
    return {reader: _known(at, partition) for reader, at in positions.items()}


def _known(at: int | None, partition: Partition) -> int | None:
    return at if at is not None and at <= partition.next_offset else None


class RetentionNeeds:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._positions = GroupPositions(broker)

    def close(self) -> None:
        self._positions.close()

    def channel_to(self, broker_id: int) -> LastingChannel:
        """The way to another broker, for questions that are answered at once."""
        return self._positions.channel_to(broker_id)

    async def look(self, partitions: Sequence[Partition]) -> NeedsFound:
        """Asks only about partitions of which somebody may need something; most have nobody.

        A subscription that was made meanwhile may need what the others have read since: then it is looked again. So
        whoever was told that a subscription exists finds what is written from then on. While the catalog is away others
        may make some that are not known here: where subscriptions decide, they may need everything.
        """
        known = self._broker.subscriptions
        for _ in range(_LOOKS_MAX):
            revision = known.revision
            found = await self._look(partitions)
            if not (found.committed or found.shares or known.is_away):
                return found  # nothing goes for having been read
            found.has_all_subscriptions = await known.look_again()
            if known.revision == revision:
                return found
        return NeedsFound(is_catalog_known=False)  # they change all the time: the next look comes soon

    async def _look(self, partitions: Sequence[Partition]) -> NeedsFound:
        known = self._broker.subscriptions
        found = NeedsFound(is_catalog_known=known.has_loaded)
        if not known.has_loaded:
            return found
        any_subscriptions = bool(known.all())
        led = []
        for partition in partitions:
            settings, topic = partition.settings, partition.tp.topic
            if any_subscriptions and topic not in found.subscriptions:
                found.subscriptions[topic] = known.for_topic(topic)
            if (
                settings.is_deleted
                and partition.is_leader
                and (settings.is_by_subscriptions or settings.retention_hold_groups or found.subscriptions.get(topic))
            ):
                led.append(partition)
                found.asked[partition] = settings
        if led:
            await self._find_positions(found, led)
        return found

    async def _find_positions(self, found: NeedsFound, partitions: list[Partition]) -> None:
        """All groups count where subscriptions and groups decide, elsewhere only those that are named."""
        topics = {one.tp.topic: one.topic_id for one in partitions}
        wants_all = any(one.settings.is_by_subscriptions for one in partitions)
        named = {group for one in partitions for group in one.settings.retention_hold_groups}
        queues: set[tuple[str, str]] = set()  # topic and subscription
        for topic in topics:
            for one in found.subscriptions.get(topic, ()):
                if one.name in needs_acknowledgements([one]):
                    queues.add((topic, one.name)) if one.is_queue else named.add(one.name)
        if wants_all or named:
            groups = await self._positions.find(topics, named, wants_all=wants_all)
            found.committed, found.has_all_groups = groups.committed, groups.has_all
            queues |= {(topic, share) for topic in topics for share in groups.share_groups}
        if self._broker.image.topic(SHARE_STATE_TOPIC) is not None:
            await self._find_shares(found, partitions, queues)

    async def _find_shares(self, found: NeedsFound, partitions: list[Partition], queues: set[tuple[str, str]]) -> None:
        try:
            for partition in partitions:
                place = (partition.topic_id, partition.tp.partition)
                for topic, name in sorted(queues):
                    if (
                        topic == partition.tp.topic
                        and (start := await self._start_of(ShareKey(name, *place))) is not None
                    ):
                        found.shares.setdefault(place, {})[name] = start
                        found.share_readers.setdefault(partition.topic_id, set()).add(name)
            await self._find_readers_elsewhere(found, partitions, queues)
        except (KafkaError, TimeoutError):
            found.has_all_groups = False  # what is not known by now holds: a group as any, a subscription all it can

    async def _find_readers_elsewhere(
        self, found: NeedsFound, partitions: list[Partition], queues: set[tuple[str, str]]
    ) -> None:
        """Of the share groups that have state in none of these partitions: whether they have in the topic's others."""
        topics = {one.topic_id: one.tp.topic for one in partitions if one.settings.is_by_subscriptions}
        for topic_id, name in topics.items():
            topic = self._broker.image.topic_by_id(topic_id)
            led = {one.tp.partition for one in partitions if one.topic_id == topic_id}
            others = [] if topic is None else [index for index in range(topic.partition_count) if index not in led]
            readers = found.share_readers.setdefault(topic_id, set())
            for group in sorted(group for of, group in queues if of == name and group not in readers):
                for index in others:
                    if await self._start_of(ShareKey(group, topic_id, index)) is not None:
                        readers.add(group)
                        break

    async def _start_of(self, key: ShareKey) -> int | None:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            state = await self._broker.shares.states.summary(key)
        if not state.is_known or state.subscription_ms not in (0, identity_of(self._broker, key.group_id)):
            return None  # or one that was deleted has left it: whoever has its name now has read nothing
        return 0 if state.start_offset == UNINITIALIZED else state.start_offset  # it has joined, and is yet to read
