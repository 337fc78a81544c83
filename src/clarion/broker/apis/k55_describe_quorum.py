"""DescribeQuorum v0-2: who votes on the cluster's metadata (KIP-595).

v1 times · v2 error messages, directories, the nodes with their listeners.

Metadata is not in a Kafka log but in a store of its own, whose revisions are told as offsets: they grow with every
change. Its leader is the broker that decides for all; every broker may be the next, so all of them vote. Left out:
directory ids, and how far the other brokers have heard.
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
    return DescribeQuorumResponse(topics=(topic,), nodes=tuple(_node(broker, one) for one in _voters(broker)))


def _voters(broker: Broker) -> list[int]:
    return sorted({*broker.image.brokers, broker.node_id})


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
    now_ms, leader = broker.clock.now_ms(), broker.controller_id
    voters = tuple(
        ReplicaState(
            replica_id=one, log_end_offset=revision, last_fetch_timestamp=now_ms, last_caught_up_timestamp=now_ms
        )
        for one in _voters(broker)
    )
    known = broker.image.brokers.get(leader)
    return PartitionData(
        partition_index=0,
        leader_id=leader,
        leader_epoch=-1 if known is None else known.epoch,
        high_watermark=revision,
        current_voters=voters,
    )


def _node(broker: Broker, broker_id: int) -> QuorumNode:
    is_here = broker_id == broker.node_id
    endpoints = broker.own_endpoints if is_here else broker.image.brokers[broker_id].endpoints
    return QuorumNode(
        node_id=broker_id,
        listeners=tuple(
            QuorumListener(name=listener_protocol(listener), host=address.host, port=address.port)
            for listener, address in zip(broker.config.listeners, endpoints, strict=False)
        ),
    )
