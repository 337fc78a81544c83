"""ElectLeaders v0-2: let the preferred replica lead again, or any that is left.

v1 kind of election (0 preferred, 1 unclean), error of the whole answer · v2 flexible.

There is one node, which leads every partition: no election is ever needed. Null asks for all partitions, and tells, as
in Kafka, only of those that needed one: none.
"""

from __future__ import annotations

from typing import Final

from clarion.broker.authorizer import Operation
from clarion.broker.broker import Broker, RequestContext
from clarion.model.errors import ErrorCode, KafkaError
from clarion.wire.messages.replicas import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

_KINDS: Final = (0, 1)


async def handle(broker: Broker, request: ElectLeadersRequest, context: RequestContext) -> ElectLeadersResponse:
    broker.resolver.require_cluster(context.principal, Operation.ALTER)
    if request.election_type not in _KINDS:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}")
    results = []
    async for topic in broker.turns.each(request.topic_partitions or ()):
        partitions = [_result(broker, topic.topic, index) async for index in broker.turns.each(topic.partitions)]
        results.append(ReplicaElectionResult(topic=topic.topic, partition_result=tuple(partitions)))
    return ElectLeadersResponse(replica_election_results=tuple(results))


def _result(broker: Broker, topic: str, index: int) -> PartitionResult:
    known = broker.image.topic(topic)
    if known is not None and 0 <= index < known.partition_count:
        return PartitionResult(
            partition_id=index,
            error_code=ErrorCode.ELECTION_NOT_NEEDED,
            error_message="Leader election not needed for topic partition.",
        )
    missing = f"No such topic as {topic}" if known is None else f"No such partition as {topic}-{index}"
    return PartitionResult(
        partition_id=index, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, error_message=missing[:400]
    )
