"""ListPartitionReassignments v0: partitions that are on the way to other brokers (KIP-455).

There is one node, so none is. `kafka-topics --describe` asks, whatever it describes.
"""

from __future__ import annotations

from clarion.broker.authorizer import Operation
from clarion.broker.broker import Broker, RequestContext
from clarion.wire.messages.replicas import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


async def handle(
    broker: Broker, request: ListPartitionReassignmentsRequest, context: RequestContext
) -> ListPartitionReassignmentsResponse:
    broker.resolver.require_cluster(context.principal, Operation.DESCRIBE)
    return ListPartitionReassignmentsResponse()
