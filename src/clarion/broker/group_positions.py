"""What groups have committed, asked of whoever coordinates them.

Here the coordinators are asked in process. Another broker is asked as any client would: which groups it has
(ListGroups), and what they have committed (OffsetFetch, by topics' ids: it may not have heard yet that a topic was
deleted and made again). A partition of `__consumer_offsets` may move to another broker while that goes on, and its
groups would be overlooked: so the broker is asked before and after for a group that would be in that partition, and
only if it answers for it both times, its list of groups counts for that partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Final

from clarion.groups.placement import partition_for
from clarion.model.errors import KafkaError
from clarion.model.ids import TopicId, TopicPartition
from clarion.model.names import OFFSETS_TOPIC
from clarion.net.channel import ChannelLostError, ChannelUnusableError, LastingChannel
from clarion.wire.apis import LIST_GROUPS, OFFSET_FETCH
from clarion.wire.messages.groups import ListGroupsRequest, ListGroupsResponse
from clarion.wire.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)

if TYPE_CHECKING:
    from clarion.broker.broker import Broker

_PATIENCE_SECONDS: Final = 5.0  # for one broker's answers; the next look asks again
_GROUPS_PER_REQUEST: Final = 500  # of a hundred partitions each, a few megabytes


@dataclass(slots=True)
class Groups:
    """What was found. `covered`: partitions of `__consumer_offsets` of which no group is missing."""

    committed: dict[TopicPartition, dict[str, int]] = field(default_factory=dict)
    share_groups: set[str] = field(default_factory=set)  # have their positions elsewhere
    covered: set[int] = field(default_factory=set)
    partition_count: int = 0

    @property
    def has_all(self) -> bool:
        return len(self.covered) == self.partition_count

    def add(self, at: TopicPartition, group_id: str, offset: int) -> None:
        if offset >= 0:
            self.committed.setdefault(at, {})[group_id] = offset


class GroupPositions:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._channels: dict[int, tuple[int, LastingChannel]] = {}  # by broker: its epoch, and the way to it

    def close(self) -> None:
        for _, channel in self._channels.values():
            channel.close()

    async def find(self, topics: Mapping[str, TopicId], named: Iterable[str], *, wants_all: bool) -> Groups:
        """Of the groups that are named; with `wants_all`, of all that have committed in these topics."""
        offsets_topic = self._broker.image.topic(OFFSETS_TOPIC)
        if offsets_topic is None:
            return Groups()  # nobody has ever committed anything
        found = Groups(partition_count=offsets_topic.partition_count)
        await self._ask_here(found, topics)
        elsewhere: dict[int, set[int]] = {}
        for index, state in enumerate(offsets_topic.partitions):
            if index not in found.covered and state.leader in self._broker.image.brokers:
                elsewhere.setdefault(state.leader, set()).add(index)
        elsewhere.pop(self._broker.node_id, None)  # it is being loaded
        for leader, indexes in elsewhere.items():
            names = {name for name in named if partition_for(name, found.partition_count) in indexes}
            try:
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    await self._ask(leader, found, topics, names, indexes if wants_all else set())
            except (ChannelLostError, ChannelUnusableError, TimeoutError):
                pass  # it is not covered, which is as good as any answer: what it knows is held
        return found

    async def _ask_here(self, found: Groups, topics: Mapping[str, TopicId]) -> None:
        for shard in self._broker.groups.shards:
            try:
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    told = await self._broker.groups.committed_in(shard, topics)
            except (KafkaError, TimeoutError):
                continue
            found.covered.add(shard.partition.tp.partition)
            found.share_groups.update(told.share_groups)
            for at, offsets in told.offsets.items():
                found.committed.setdefault(at, {}).update(offsets)

    async def _ask(
        self, leader: int, found: Groups, topics: Mapping[str, TopicId], names: set[str], indexes: set[int]
    ) -> None:
        """`indexes`: the partitions of which all groups are wanted."""
        channel, probes = self.channel_to(leader), {index: probe_of(index, found.partition_count) for index in indexes}
        answered = await self._fetch(channel, probes.values(), (), found)
        shares: set[str] = set()
        if answered:
            listed: ListGroupsResponse = await channel.ask(LIST_GROUPS, ListGroupsRequest())
            if listed.error_code:
                answered = set()
            shares = {one.group_id for one in listed.groups if one.group_type == "share"}
            names = names | {one.group_id for one in listed.groups} - shares
        refused = names - await self._fetch(channel, names, self._partitions(topics), found)
        answered &= await self._fetch(channel, probes.values(), (), found)
        lost = {partition_for(name, found.partition_count) for name in refused}
        found.covered |= {index for index, probe in probes.items() if probe in answered} - lost
        found.share_groups |= shares

    async def _fetch(
        self,
        channel: LastingChannel,
        groups: Collection[str],
        topics: tuple[OffsetFetchRequestTopic, ...],
        found: Groups,
    ) -> set[str]:
        """Which of the groups the broker answers for. What they have committed is added."""
        answered: set[str] = set()
        names = {topic.topic_id: topic.name for topic in topics}
        every = [OffsetFetchRequestGroup(group_id=group, topics=topics) for group in sorted(groups)]
        for first in range(0, len(every), _GROUPS_PER_REQUEST):
            asked = tuple(every[first : first + _GROUPS_PER_REQUEST])
            answer: OffsetFetchResponse = await channel.ask(OFFSET_FETCH, OffsetFetchRequest(groups=asked))
            for group in answer.groups:
                told = [(names.get(topic.topic_id, ""), one) for topic in group.topics for one in topic.partitions]
                if not group.error_code and not any(one.error_code for _, one in told):
                    answered.add(group.group_id)
                    for name, one in told:
                        found.add(TopicPartition(name, one.partition_index), group.group_id, one.committed_offset)
        return answered

    def _partitions(self, topics: Mapping[str, TopicId]) -> tuple[OffsetFetchRequestTopic, ...]:
        """All of them, whoever leads them: a group that has committed in one of them reads the others too."""
        known = [topic for topic in map(self._broker.image.topic_by_id, topics.values()) if topic is not None]
        return tuple(
            OffsetFetchRequestTopic(
                name=topic.name, topic_id=topic.id, partition_indexes=tuple(range(topic.partition_count))
            )
            for topic in known
        )

    def channel_to(self, broker_id: int) -> LastingChannel:
        """A broker that was started anew may have another address."""
        epoch = self._broker.image.brokers[broker_id].epoch
        known = self._channels.get(broker_id)
        if known is not None and known[0] == epoch:
            return known[1]
        if known is not None:
            known[1].close()
        assert self._broker.node is not None, "without a cluster there is no other broker"
        channel = self._broker.node.channel_to(self._broker, broker_id)
        self._channels[broker_id] = (epoch, channel)
        return channel


@cache
def probe_of(index: int, partition_count: int) -> str:
    """The name of a group that nobody has, and that would be in this partition of `__consumer_offsets`."""
    names = (f"clarion-who-coordinates-{number}" for number in count())
    return next(name for name in names if partition_for(name, partition_count) == index)
