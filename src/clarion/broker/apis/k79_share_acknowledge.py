"""ShareAcknowledge v1-2: what a member of a share group did with the records it was given (KIP-932).

v2 renewals (KIP-1222). The reply comes when what was said is durable. What one partition refuses does not concern the
others; the last request of a session (epoch -1) gives back what was not acknowledged.
"""

from __future__ import annotations

import asyncio

from clarion.broker.apis.share_pieces import (
    Member,
    acknowledge,
    each_partition,
    endpoints,
    give_back,
    leader_told,
    member_of,
)
from clarion.broker.broker import Broker, RequestContext
from clarion.model.errors import KafkaError
from clarion.model.ids import TopicId
from clarion.queues.sessions import FINAL_EPOCH, SharedPartition
from clarion.wire.messages.share_groups import (
    ShareAcknowledgePartitionData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
    ShareFetchPartition,
)


async def handle(broker: Broker, request: ShareAcknowledgeRequest, context: RequestContext) -> ShareAcknowledgeResponse:
    member = member_of(broker, request.group_id, request.member_id, context)
    now_ms = int(asyncio.get_running_loop().time() * 1000)
    asked = each_partition(request.topics)
    session = broker.shares.sessions.for_acknowledge(
        member.group_id, member.member_id, request.share_session_epoch, now_ms
    )
    try:
        told = [
            await _one(member, one, what, request.is_renew_ack) async for one, what in broker.turns.each(asked.items())
        ]
    finally:
        if request.share_session_epoch == FINAL_EPOCH:
            give_back(broker, session)
    topics: dict[TopicId, list[ShareAcknowledgePartitionData]] = {topic.topic_id: [] for topic in request.topics}
    for (topic_id, _), data in zip(asked, told, strict=True):
        topics[topic_id].append(data)
    return ShareAcknowledgeResponse(
        acquisition_lock_timeout=member.rules.limits.lock_duration_ms,
        responses=tuple(
            ShareAcknowledgeTopicResponse(topic_id=topic_id, partitions=tuple(partitions))
            for topic_id, partitions in topics.items()
        ),
        node_endpoints=endpoints(member, (data.current_leader for data in told)),
    )


async def _one(
    member: Member, partition: SharedPartition, asked: ShareFetchPartition, may_renew: bool
) -> ShareAcknowledgePartitionData:
    try:
        leader = await acknowledge(member, partition, asked, may_renew=may_renew)
        await leader.wait_saved()
    except KafkaError as error:
        return ShareAcknowledgePartitionData(
            partition_index=asked.partition_index,
            error_code=error.code,
            error_message=error.message or None,
            current_leader=leader_told(member, error.code, partition),
        )
    return ShareAcknowledgePartitionData(partition_index=asked.partition_index)
