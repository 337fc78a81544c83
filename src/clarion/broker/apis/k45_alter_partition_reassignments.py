"""AlterPartitionReassignments v0-1: move partitions to other brokers, or stop such a move (KIP-455).

v1 whether the number of replicas may change.

There is one node: to place a partition there is fine and changes nothing, any other place does not exist, and so the
number of replicas stays 1 in any case. No move is ever under way, so that there is none to stop.
"""

from __future__ import annotations

from clarion.broker.apis.placement import check_replicas
from clarion.broker.apis.refusals import REFUSALS, refusal_of
from clarion.broker.authorizer import Operation
from clarion.broker.broker import Broker, RequestContext
from clarion.model.errors import ErrorCode, KafkaError
from clarion.wire.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)


async def handle(
    broker: Broker, request: AlterPartitionReassignmentsRequest, context: RequestContext
) -> AlterPartitionReassignmentsResponse:
    broker.resolver.require_cluster(context.principal, Operation.ALTER)
    responses = []
    async for topic in broker.turns.each(request.topics):
        partitions = [_answer(broker, topic.name, asked) async for asked in broker.turns.each(topic.partitions)]
        responses.append(ReassignableTopicResponse(name=topic.name, partitions=tuple(partitions)))
    return AlterPartitionReassignmentsResponse(
        responses=tuple(responses), allow_replication_factor_change=request.allow_replication_factor_change
    )


def _answer(broker: Broker, topic: str, asked: ReassignablePartition) -> ReassignablePartitionResponse:
    code, message = ErrorCode.NONE, None
    try:
        broker.resolver.check_exists(broker.registry.known(topic), asked.partition_index)
        _check(broker, asked)
    except REFUSALS as error:
        code, message = refusal_of(error, f"{topic}-{asked.partition_index}")
    return ReassignablePartitionResponse(partition_index=asked.partition_index, error_code=code, error_message=message)


def _check(broker: Broker, asked: ReassignablePartition) -> None:
    if asked.replicas is None:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
    check_replicas(asked.replicas, broker.registry.placeable)
