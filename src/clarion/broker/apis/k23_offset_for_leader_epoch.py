"""OffsetForLeaderEpoch v2-4: where a leader's term ended, so that a reader can see that the log was cut (KIP-320).

v3 replica id · v4 flexible.

Left out: followers come with the cluster; who asks makes no difference until then.
"""

from __future__ import annotations

from clarion.broker.apis.refusals import REFUSALS, refusal_of
from clarion.broker.authorizer import Operation, Principal
from clarion.broker.broker import Broker, RequestContext
from clarion.wire.messages.logs import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


async def handle(
    broker: Broker, request: OffsetForLeaderEpochRequest, context: RequestContext
) -> OffsetForLeaderEpochResponse:
    topics = []
    async for topic in broker.turns.each(request.topics):
        partitions = [
            _answer(broker, context.principal, topic.topic, asked)
            async for asked in broker.turns.each(topic.partitions)
        ]
        topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=tuple(partitions)))
    return OffsetForLeaderEpochResponse(topics=tuple(topics))


def _answer(broker: Broker, who: Principal, topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        partition = broker.resolver.partition(
            broker.resolver.topic(who, Operation.DESCRIBE, topic), asked.partition, asked.current_leader_epoch
        )
        epoch, end_offset = partition.end_of_epoch(asked.leader_epoch)
    except REFUSALS as error:
        return EpochEndOffset(
            partition=asked.partition, error_code=refusal_of(error, f"{topic}-{asked.partition}").code
        )
    return EpochEndOffset(partition=asked.partition, leader_epoch=epoch, end_offset=end_offset)
