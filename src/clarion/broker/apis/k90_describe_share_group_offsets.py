"""DescribeShareGroupOffsets v0-1: where share groups are, partition by partition (KIP-932).

v1 lag (KIP-1226): records between the start and the watermark that are not done. A partition whose share state has not
begun, or whose start nobody has chosen yet, has the offset -1; so has the lag where this broker has no replica of the
data. Where it follows, the watermark is that which it has heard of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from clarion.broker.authorizer import Operation
from clarion.broker.broker import Broker, RequestContext
from clarion.cluster import Topic
from clarion.model.errors import ErrorCode, KafkaError
from clarion.queues.state_records import UNINITIALIZED, ShareKey
from clarion.wire.messages.share_groups import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)


async def handle(
    broker: Broker, request: DescribeShareGroupOffsetsRequest, context: RequestContext
) -> DescribeShareGroupOffsetsResponse:
    groups = [await _group(broker, asked, context) async for asked in broker.turns.each(request.groups)]
    return DescribeShareGroupOffsetsResponse(groups=tuple(groups))


async def _group(
    broker: Broker, asked: DescribeShareGroupOffsetsRequestGroup, context: RequestContext
) -> DescribeShareGroupOffsetsResponseGroup:
    try:
        broker.resolver.require_group(context.principal, Operation.DESCRIBE, asked.group_id)
        await broker.groups.be_ready(asked.group_id)
        wanted = _wanted(broker, asked)
    except KafkaError as error:
        return DescribeShareGroupOffsetsResponseGroup(
            group_id=asked.group_id, error_code=error.code, error_message=error.message or error.code.name
        )
    topics = [
        await _topic(broker, asked.group_id, name, partitions, context)
        async for name, partitions in broker.turns.each(wanted.items())
    ]
    return DescribeShareGroupOffsetsResponseGroup(group_id=asked.group_id, topics=tuple(topics))


def _wanted(broker: Broker, asked: DescribeShareGroupOffsetsRequestGroup) -> Mapping[str, Iterable[int]]:
    group = broker.shares.group(asked.group_id)
    if asked.topics is not None:
        return {topic.topic_name: topic.partitions for topic in asked.topics}
    names = {topic_id: topic.name for topic_id, topic in broker.image.topics_by_id.items()}
    begun = group.initialized.items()
    return {names[topic_id]: sorted(topic.partitions) for topic_id, topic in begun if topic_id in names}


async def _topic(
    broker: Broker, group_id: str, name: str, partitions: Iterable[int], context: RequestContext
) -> DescribeShareGroupOffsetsResponseTopic:
    try:
        topic = broker.resolver.topic(context.principal, Operation.DESCRIBE, name)
    except KafkaError as error:
        refused = tuple(_refused(index, error) for index in partitions)
        return DescribeShareGroupOffsetsResponseTopic(topic_name=name, partitions=refused)
    told = [await _partition(broker, group_id, topic, index) async for index in broker.turns.each(partitions)]
    return DescribeShareGroupOffsetsResponseTopic(topic_name=name, topic_id=topic.id, partitions=tuple(told))


async def _partition(
    broker: Broker, group_id: str, topic: Topic, index: int
) -> DescribeShareGroupOffsetsResponsePartition:
    try:
        broker.resolver.check_exists(topic, index)
        key = ShareKey(group_id, topic.id, index)
        state = await broker.shares.states.summary(key)
    except KafkaError as error:
        return _refused(index, error)
    if not state.is_known:
        broker.shares.tell_not_begun(key)  # so asks, too, who leads the partition elsewhere and has found no state
    lag = -1
    partition = broker.partitions.find(topic.id, index)
    if state.start_offset != UNINITIALIZED and partition is not None:
        lag = max(0, partition.high_watermark.offset - state.start_offset - max(state.done_count, 0))
    return DescribeShareGroupOffsetsResponsePartition(
        partition_index=index, start_offset=state.start_offset, leader_epoch=state.leader_epoch, lag=lag
    )


def _refused(index: int, error: KafkaError) -> DescribeShareGroupOffsetsResponsePartition:
    code = ErrorCode(error.code)
    return DescribeShareGroupOffsetsResponsePartition(
        partition_index=index, error_code=code, error_message=error.message or code.name
    )
