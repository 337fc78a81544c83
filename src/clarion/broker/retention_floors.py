"""A stream subscription does not read past its own retention: it goes on where that begins.

Kafka's Fetch does not say for which group it reads, so this is where a reader asks for its place, in OffsetFetch: what
its subscription has committed is answered no older than its retention, as if the log began there. One that has
committed nothing and starts at the earliest message starts there, too. (A queue passes such records over.)

Nobody is sent past a message for what only seems to be its age: not while the clock is in doubt, and not past messages
without a time behind the last one that has one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from clarion.broker.apis.k02_list_offsets import MAX_TIMESTAMP, search_time
from clarion.model.ids import TopicPartition
from clarion.model.seeking import EARLIEST
from clarion.model.subscription import Subscription
from clarion.net.channel import ChannelLostError, ChannelUnusableError
from clarion.replication import Partition
from clarion.wire.apis import LIST_OFFSETS
from clarion.wire.messages.logs import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from clarion.wire.messages.offsets import OffsetFetchResponsePartition, OffsetFetchResponseTopic
from clarion.world import event_log

if TYPE_CHECKING:
    from clarion.broker.broker import Broker

log = event_log("broker")

_PATIENCE_SECONDS: Final = 3.0  # for a leader's answer; a reader waits for it, and begins in the worst case too early
_NO_REPLICA: Final = -1

Topics = tuple[OffsetFetchResponseTopic, ...]


async def no_older_than_retention(broker: Broker, group_id: str, topics: Topics) -> Topics:
    subscription = broker.subscriptions.get(group_id)
    if subscription is None or subscription.is_queue or (subscription.retention_ms or 0) <= 0:
        return topics
    places = [TopicPartition(one.name, part.partition_index) for one in topics for part in one.partitions]
    floors = await _floors(broker, places, broker.clock_trust.early_ms() - (subscription.retention_ms or 0))
    return tuple(
        replace(one, partitions=tuple(_raised(part, one.name, floors, subscription) for part in one.partitions))
        for one in topics
    )


def _raised(
    told: OffsetFetchResponsePartition, topic: str, floors: Mapping[TopicPartition, int], subscription: Subscription
) -> OffsetFetchResponsePartition:
    floor = floors.get(TopicPartition(topic, told.partition_index), -1)
    has_place = told.committed_offset >= 0 or subscription.start == "earliest"
    if told.error_code or not has_place or floor <= told.committed_offset:
        return told
    return replace(told, committed_offset=floor, committed_leader_epoch=-1)


async def _floors(broker: Broker, places: Iterable[TopicPartition], since_ms: int) -> dict[TopicPartition, int]:
    """The first message since then; behind the latest where there is none. Without those nobody answers for."""
    found: dict[TopicPartition, int] = {}
    elsewhere: dict[int, list[TopicPartition]] = {}
    for tp in places:
        topic = broker.image.topic(tp.topic)
        if topic is None or not 0 <= tp.partition < topic.partition_count:
            continue
        partition = broker.partitions.find(topic.id, tp.partition)
        if partition is not None and partition.is_leader:
            found[tp] = await _floor_here(broker, partition, since_ms)
        else:
            elsewhere.setdefault(topic.partitions[tp.partition].leader, []).append(tp)
    for leader, of_leader in elsewhere.items():
        if leader in broker.image.brokers:
            try:
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    found |= await _ask(broker, leader, of_leader, since_ms)
            except (ChannelLostError, ChannelUnusableError, TimeoutError) as error:
                log.warning("retention_floor_unknown", leader=leader, partitions=len(of_leader), reason=str(error))
    return found


async def _floor_here(broker: Broker, partition: Partition, since_ms: int) -> int:
    at = await search_time(broker, partition, since_ms)
    if at is not None and at[1] >= 0:
        return at[1]
    latest = await search_time(broker, partition, MAX_TIMESTAMP)
    return partition.start_offset if latest is None or latest[1] < 0 else latest[1] + 1


async def _ask(broker: Broker, leader: int, places: list[TopicPartition], since_ms: int) -> dict[TopicPartition, int]:
    """As `_floor_here`."""
    found = await _ask_for(broker, leader, places, since_ms)
    if past := [tp for tp, offset in found.items() if offset < 0]:
        latest = await _ask_for(broker, leader, past, MAX_TIMESTAMP)
        found |= {tp: offset + 1 for tp, offset in latest.items()}
        if untimed := [tp for tp, offset in latest.items() if offset < 0]:
            found |= await _ask_for(broker, leader, untimed, EARLIEST)
    return found


async def _ask_for(
    broker: Broker, leader: int, places: list[TopicPartition], timestamp: int
) -> dict[TopicPartition, int]:
    by_topic: dict[str, list[ListOffsetsPartition]] = {}
    for topic, index in places:
        by_topic.setdefault(topic, []).append(ListOffsetsPartition(partition_index=index, timestamp=timestamp))
    asked = tuple(ListOffsetsTopic(name=topic, partitions=tuple(parts)) for topic, parts in by_topic.items())
    request = ListOffsetsRequest(replica_id=_NO_REPLICA, topics=asked)
    answer: ListOffsetsResponse = await broker.needs.channel_to(leader).ask(LIST_OFFSETS, request)
    return {
        TopicPartition(topic.name, one.partition_index): one.offset
        for topic in answer.topics
        for one in topic.partitions
        if not one.error_code
    }
