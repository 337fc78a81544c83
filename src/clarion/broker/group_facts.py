"""What is known of a group, a subscription's or one of Kafka's clients: who is in it, and where it is in its topics."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from clarion.broker.authorizer import Principal
from clarion.broker.kafka_calls import ANSWER_SECONDS, KafkaCalls
from clarion.cluster.schema import NO_LEADER
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import TopicPartition
from clarion.model.seeking import EARLIEST, LATEST
from clarion.wire import apis
from clarion.wire.messages.groups import (
    ConsumerGroupDescribeRequest,
    DescribeGroupsRequest,
    ListedGroup,
    ListGroupsRequest,
)
from clarion.wire.messages.logs import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from clarion.wire.messages.offsets import OffsetFetchRequest, OffsetFetchRequestGroup
from clarion.wire.messages.share_groups import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    ShareGroupDescribeRequest,
)

if TYPE_CHECKING:
    from clarion.broker.broker import Broker

SHARE: Final = "share"
_WITH_NAMES: Final = 9  # the newest OffsetFetch that has topics by name
UNKNOWN: Final = -1  # an offset, or a lag


@dataclass(slots=True)
class GroupFacts:
    group_id: str
    kind: str = ""  # "share", "consumer", "classic"; empty: there is no such group yet
    state: str = ""
    members: list[dict[str, str]] = field(default_factory=list)
    positions: dict[TopicPartition, int] = field(default_factory=dict)

    @property
    def exists(self) -> bool:
        return bool(self.kind)


class GroupLooks:
    def __init__(self, broker: Broker, calls: KafkaCalls) -> None:
        self._broker = broker
        self._calls = calls

    async def all(self, who: Principal) -> list[ListedGroup]:
        """Those of all brokers that answer, by name."""
        brokers = [self._broker.node_id] if self._broker.node is None else sorted(self._broker.image.brokers)
        found: dict[str, ListedGroup] = {}
        for broker_id in brokers:
            listed = await self._calls.of_broker(broker_id, apis.LIST_GROUPS, ListGroupsRequest(), who)
            found |= {one.group_id: one for one in listed.groups}
        return [found[name] for name in sorted(found)]

    async def group(self, group_id: str, who: Principal) -> GroupFacts:
        listed = await self._calls.of_group(group_id, apis.LIST_GROUPS, ListGroupsRequest(), who)
        one = next((one for one in listed.groups if one.group_id == group_id), None)
        if one is None:
            return GroupFacts(group_id)
        facts = GroupFacts(group_id, one.group_type.lower() or "classic", one.group_state)
        facts.members = await self._members(facts, who)
        facts.positions = await (self._share_positions if facts.kind == SHARE else self._committed)(group_id, who)
        return facts

    async def _members(self, facts: GroupFacts, who: Principal) -> list[dict[str, str]]:
        api, request = _description(facts)
        (told,) = (await self._calls.of_group(facts.group_id, api, request, who)).groups
        return [{"id": one.member_id, "client": one.client_id, "host": one.client_host} for one in told.members]

    async def _share_positions(self, group_id: str, who: Principal) -> dict[TopicPartition, int]:
        asked = DescribeShareGroupOffsetsRequest(groups=(DescribeShareGroupOffsetsRequestGroup(group_id=group_id),))
        (told,) = (await self._calls.of_group(group_id, apis.DESCRIBE_SHARE_GROUP_OFFSETS, asked, who)).groups
        check(told.error_code, told.error_message)
        return {
            TopicPartition(topic.topic_name, one.partition_index): one.start_offset
            for topic in told.topics
            for one in topic.partitions
            if not one.error_code
        }

    async def _committed(self, group_id: str, who: Principal) -> dict[TopicPartition, int]:
        asked = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id=group_id, topics=None),))
        (told,) = (await self._calls.of_group(group_id, apis.OFFSET_FETCH, asked, who, _WITH_NAMES)).groups
        check(told.error_code, None)
        return {
            TopicPartition(topic.name, one.partition_index): one.committed_offset
            for topic in told.topics
            for one in topic.partitions
            if not one.error_code
        }

    # Topics

    def partitions_of(self, topics: Iterable[str]) -> list[TopicPartition]:
        """Of those that there are."""
        known = [topic for topic in map(self._broker.image.topic, topics) if topic is not None]
        return [TopicPartition(topic.name, index) for topic in known for index in range(topic.partition_count)]

    async def starts(self, places: Iterable[TopicPartition], who: Principal) -> dict[TopicPartition, int]:
        return await self.offsets_at(places, EARLIEST, who)

    async def ends(self, places: Iterable[TopicPartition], who: Principal) -> dict[TopicPartition, int]:
        return await self.offsets_at(places, LATEST, who)

    async def offsets_at(
        self, places: Iterable[TopicPartition], timestamp: int, who: Principal, *, seconds: float = ANSWER_SECONDS
    ) -> dict[TopicPartition, int]:
        """Of each partition whose leader answers. A time after the last message is UNKNOWN."""
        found: dict[TopicPartition, int] = {}
        for leader, asked in self._by_leader(places).items():
            topics = tuple(
                ListOffsetsTopic(
                    name=name,
                    partitions=tuple(ListOffsetsPartition(partition_index=one, timestamp=timestamp) for one in indexes),
                )
                for name, indexes in asked.items()
            )
            request = ListOffsetsRequest(replica_id=-1, topics=topics)
            told = await self._calls.of_broker(leader, apis.LIST_OFFSETS, request, who, seconds=seconds)
            found |= {
                TopicPartition(topic.name, one.partition_index): one.offset
                for topic in told.topics
                for one in topic.partitions
                if not one.error_code
            }
        return found

    async def offsets_of_all(
        self, places: Collection[TopicPartition], timestamp: int, who: Principal, *, seconds: float = ANSWER_SECONDS
    ) -> dict[TopicPartition, int]:
        """For who is about to decide by them: LEADER_NOT_AVAILABLE unless every leader answers."""
        found = await self.offsets_at(places, timestamp, who, seconds=seconds)
        missing = next((place for place in places if place not in found), None)
        if missing is not None:
            message = f"{missing} has no leader that answers; nothing was changed, try again soon"
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, message)
        return found

    async def first_since(
        self, places: Collection[TopicPartition], timestamp: int, who: Principal
    ) -> dict[TopicPartition, int]:
        """The first message since then; the end where there is none. As `offsets_of_all`."""
        ends = await self.offsets_of_all(places, LATEST, who)
        found = await self.offsets_of_all(places, timestamp, who)
        return {place: ends[place] if offset == UNKNOWN else offset for place, offset in found.items()}

    def _by_leader(self, places: Iterable[TopicPartition]) -> Mapping[int, Mapping[str, list[int]]]:
        found: dict[int, dict[str, list[int]]] = {}
        for place in places:
            topic = self._broker.image.topic(place.topic)  # it may have been deleted meanwhile
            leader = NO_LEADER if topic is None else topic.partitions[place.partition].leader
            if leader != NO_LEADER:
                found.setdefault(leader, {}).setdefault(place.topic, []).append(place.partition)
        return found


def _description(facts: GroupFacts) -> tuple[int, Any]:
    match facts.kind:
        case "share":
            return apis.SHARE_GROUP_DESCRIBE, ShareGroupDescribeRequest(group_ids=(facts.group_id,))
        case "consumer":
            return apis.CONSUMER_GROUP_DESCRIBE, ConsumerGroupDescribeRequest(group_ids=(facts.group_id,))
        case _:
            return apis.DESCRIBE_GROUPS, DescribeGroupsRequest(groups=(facts.group_id,))


def check(code: int, message: str | None) -> None:
    if code:
        raise KafkaError(ErrorCode(code), message or ErrorCode(code).name)
