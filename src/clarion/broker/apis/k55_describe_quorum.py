"""DescribeQuorum v0-2: who votes on the cluster's metadata (KIP-595).

v1 times · v2 error messages, directories, the nodes with their listeners.

There is one node, which leads alone. Its metadata is not a Kafka log but a store of its own, whose revisions are told
as offsets: they grow with every change. Left out: directory ids.
"""

from __future__ import annotations

from clarion.broker.authorizer import Operation
from clarion.broker.broker import Broker, RequestContext
from clarion.broker.settings import listener_protocol
from clarion.model.errors import ErrorCode
from clarion.model.names import METADATA_TOPIC
from clarion.wire.messages.controller import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    PartitionData,
    QuorumListener,
    QuorumNode,
    ReplicaState,
    TopicAsked,
    TopicData,
)


async def handle(broker: Broker, request: DescribeQuorumRequest, context: RequestContext) -> DescribeQuorumResponse:
    broker.resolver.require_cluster(context.principal, Operation.DESCRIBE)
    if not _is_about_metadata(request.topics):
        return DescribeQuorumResponse(topics=tuple(_unknown(topic) for topic in request.topics))
    topic = TopicData(topic_name=METADATA_TOPIC, partitions=(_quorum(broker, await broker.registry.revision()),))
    return DescribeQuorumResponse(topics=(topic,), nodes=(_node(broker),))


def _is_about_metadata(topics: tuple[TopicAsked, ...]) -> bool:
    """Exactly the one partition that there is: whatever comes beside it makes Kafka refuse all."""
    asked = [(topic.topic_name, one.partition_index) for topic in topics for one in topic.partitions]
    return asked == [(METADATA_TOPIC, 0)] and len(topics) == 1


def _unknown(topic: TopicAsked) -> TopicData:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return TopicData(
        topic_name=topic.topic_name,
        partitions=tuple(
            PartitionData(partition_index=one.partition_index, error_code=code) for one in topic.partitions
        ),
    )


def _quorum(broker: Broker, revision: int) -> PartitionData:
    now_ms = broker.clock.now_ms()
    voter = ReplicaState(
        replica_id=broker.node_id, log_end_offset=revision, last_fetch_timestamp=now_ms, last_caught_up_timestamp=now_ms
    )
    return PartitionData(
        partition_index=0,
        leader_id=broker.node_id,
        leader_epoch=broker.registry.broker_epoch,
        high_watermark=revision,
        current_voters=(voter,),
    )


def _node(broker: Broker) -> QuorumNode:
    return QuorumNode(
        node_id=broker.node_id,
        listeners=tuple(
            QuorumListener(name=listener_protocol(listener), host=address.host, port=address.port)
            for listener, address in zip(broker.config.listeners, broker.own_endpoints, strict=False)
        ),
    )
