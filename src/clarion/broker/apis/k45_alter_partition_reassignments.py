"""AlterPartitionReassignments v0-1: move partitions to other brokers, or stop such a move (KIP-455).

v1 whether the number of replicas may change.

New replicas are filled first; when all of them are in sync, those that are not wanted any more go. To stop a move takes
the new ones away again, unless nobody else has everything by then (INVALID_REPLICA_ASSIGNMENT, as in Kafka). A broker
that is alone has no other place: to place a partition there changes nothing.
"""

from __future__ import annotations

from clarion.broker.apis.placement import check_replicas
from clarion.broker.apis.refusals import REFUSALS, refusal_of
from clarion.broker.authorizer import Operation
from clarion.broker.broker import Broker, RequestContext
from clarion.cluster import PartitionState
from clarion.cluster.changes import despite_others
from clarion.cluster.elections import reassign
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
    may_resize = request.allow_replication_factor_change
    responses = []
    async for topic in broker.turns.each(request.topics):
        partitions = [
            await _answer(broker, topic.name, asked, may_resize=may_resize)
            async for asked in broker.turns.each(topic.partitions)
        ]
        responses.append(ReassignableTopicResponse(name=topic.name, partitions=tuple(partitions)))
    return AlterPartitionReassignmentsResponse(responses=tuple(responses), allow_replication_factor_change=may_resize)


async def _answer(
    broker: Broker, topic: str, asked: ReassignablePartition, *, may_resize: bool
) -> ReassignablePartitionResponse:
    code, message = ErrorCode.NONE, None
    try:
        await despite_others(lambda: _move(broker, topic, asked, may_resize=may_resize))
    except REFUSALS as error:
        code, message = refusal_of(error, f"{topic}-{asked.partition_index}")
    return ReassignablePartitionResponse(partition_index=asked.partition_index, error_code=code, error_message=message)


async def _move(broker: Broker, name: str, asked: ReassignablePartition, *, may_resize: bool) -> None:
    topic = broker.registry.known(name)
    broker.resolver.check_exists(topic, asked.partition_index)
    state = topic.partitions[asked.partition_index]
    target = _target(broker, state, asked.replicas)
    present = sum(one not in state.adding for one in state.replicas)
    if len(target) != present and not may_resize:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {present} to {len(target)}, which this request does not allow.",
        )
    if broker.node is not None and (target != state.replicas or state.adding or state.removing):
        factor = len(target) if len(target) != present else None
        begun = reassign(state, target)
        _check_keeps_everything(state, begun, may_lose=broker.partitions.rules_of(topic).may_lose)
        await broker.registry.alter_partition(topic, asked.partition_index, begun, factor)


def _check_keeps_everything(before: PartitionState, begun: PartitionState, *, may_lose: bool) -> None:
    """A new replica may be the only one left with what was acknowledged since: who takes it away loses that."""
    if (before.in_sync or before.eligible) and not (begun.in_sync or begun.eligible or may_lose):
        holders = ", ".join(map(str, before.in_sync or before.eligible))
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Unable to revert partition assignment because it would require an unclean leader election: "
            f"only broker {holders} has everything.",
        )


def _target(broker: Broker, state: PartitionState, asked: tuple[int, ...] | None) -> tuple[int, ...]:
    if asked is not None:
        check_replicas(asked, broker.registry.placeable)
        return tuple(asked)
    if not (state.adding or state.removing):
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
    return tuple(one for one in state.replicas if one not in state.adding)
