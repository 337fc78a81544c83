"""ElectLeaders v0-2: let the preferred replica lead again, or any that is left.

v1 kind of election (0 preferred, 1 unclean), error of the whole answer · v2 flexible.

Null asks for all partitions, and tells, as in Kafka, only of those that needed one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from clarion.broker.authorizer import Operation
from clarion.broker.broker import Broker, RequestContext
from clarion.cluster.elections import prefer, settle
from clarion.cluster.schema import NO_LEADER
from clarion.model.errors import ErrorCode, KafkaError
from clarion.wire.messages.replicas import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from clarion.world import event_log

log = event_log("broker")

_KINDS: Final = (0, 1)
_UNCLEAN: Final = 1


async def handle(broker: Broker, request: ElectLeadersRequest, context: RequestContext) -> ElectLeadersResponse:
    broker.resolver.require_cluster(context.principal, Operation.ALTER)
    if request.election_type not in _KINDS:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}")
    is_unclean = request.election_type == _UNCLEAN
    results = []
    async for name, indexes in broker.turns.each(_asked(broker, request)):
        partitions = [await _elect(broker, name, index, is_unclean=is_unclean) for index in indexes]
        if request.topic_partitions is None:
            partitions = [one for one in partitions if one.error_code != ErrorCode.ELECTION_NOT_NEEDED]
        if partitions or request.topic_partitions is not None:
            results.append(ReplicaElectionResult(topic=name, partition_result=tuple(partitions)))
    return ElectLeadersResponse(replica_election_results=tuple(results))


def _asked(broker: Broker, request: ElectLeadersRequest) -> list[tuple[str, Iterable[int]]]:
    if request.topic_partitions is None:
        return [(topic.name, range(topic.partition_count)) for topic in broker.image.topics.values()]
    return [(one.topic, one.partitions) for one in request.topic_partitions]


async def _elect(broker: Broker, name: str, index: int, *, is_unclean: bool) -> PartitionResult:
    topic = broker.image.topic(name)
    if topic is None or not 0 <= index < topic.partition_count:
        missing = f"No such topic as {name}" if topic is None else f"No such partition as {name}-{index}"
        return _refused(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, missing[:400])
    state, brokers = topic.partitions[index], broker.image.brokers
    rules = broker.partitions.rules_of(topic)
    if broker.node is None or (state.leader in brokers if is_unclean else state.leader == state.replicas[0]):
        return _refused(index, ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
    verdict = settle(state, rules._replace(may_lose=True), brokers) if is_unclean else prefer(state, rules, brokers)
    if verdict is None or verdict.state.leader == NO_LEADER:
        code = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE if is_unclean else ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        return _refused(index, code, "No replica that may lead is there.")
    try:
        await broker.registry.alter_partition(topic, index, verdict.state)
    except KafkaError as error:
        return _refused(index, error.code, error.message)
    log.info("leader_elected", partition=f"{name}-{index}", reason=verdict.reason)
    return PartitionResult(partition_id=index)


def _refused(index: int, code: ErrorCode, message: str | None) -> PartitionResult:
    return PartitionResult(partition_id=index, error_code=code, error_message=message)
