"""AlterReplicaLogDirs v1-2: move partitions into another data directory.

v2 flexible.

There is one directory: to ask for the one where a replica is already is fine and changes nothing, any other is not
found. It is asked of the broker that has the replica, whoever leads.
"""

from __future__ import annotations

import os

from clarion.broker.authorizer import THE_CLUSTER, Operation, ResourceKind
from clarion.broker.broker import Broker, RequestContext
from clarion.model.errors import ErrorCode, KafkaError
from clarion.wire.messages.replicas import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)


async def handle(
    broker: Broker, request: AlterReplicaLogDirsRequest, context: RequestContext
) -> AlterReplicaLogDirsResponse:
    results: dict[str, dict[int, ErrorCode]] = {}
    named = (
        (one.path, topic.name, index) for one in request.dirs for topic in one.topics for index in topic.partitions
    )
    may = broker.resolver.allows(context.principal, Operation.ALTER, ResourceKind.CLUSTER, THE_CLUSTER)
    async for path, topic, index in broker.turns.each(named):
        results.setdefault(topic, {})[index] = (
            _code(broker, topic, index, is_here=_is_ours(broker, path))
            if may
            else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        )
    return AlterReplicaLogDirsResponse(results=tuple(_result(name, codes) for name, codes in results.items()))


def _is_ours(broker: Broker, path: str) -> bool:
    """Whether this is the directory that DescribeLogDirs names."""
    return path == os.path.abspath(broker.config.data_dir)


def _code(broker: Broker, topic: str, index: int, *, is_here: bool) -> ErrorCode:
    if not is_here:
        return ErrorCode.LOG_DIR_NOT_FOUND
    try:
        partition = broker.resolver.replica(broker.registry.known(topic), index)
    except KafkaError as error:
        is_elsewhere = error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.REPLICA_NOT_AVAILABLE if is_elsewhere else error.code  # as Kafka calls it here
    return ErrorCode.NONE if partition.failure is None else ErrorCode.KAFKA_STORAGE_ERROR


def _result(topic: str, codes: dict[int, ErrorCode]) -> AlterReplicaLogDirTopicResult:
    return AlterReplicaLogDirTopicResult(
        topic_name=topic,
        partitions=tuple(
            AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code) for index, code in codes.items()
        ),
    )
