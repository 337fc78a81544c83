"""ConsumerGroupDescribe v0-1: KIP-848 groups with their members and assignments.

v1 member type. Each group is asked of its own coordinator.
"""

from __future__ import annotations

from clarion.broker.broker import Broker, RequestContext
from clarion.groups.coordinator import GroupCoordinator
from clarion.model.errors import KafkaError
from clarion.wire.messages.k69_consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)


async def handle(
    broker: Broker, request: ConsumerGroupDescribeRequest, context: RequestContext
) -> ConsumerGroupDescribeResponse:
    return ConsumerGroupDescribeResponse(
        groups=tuple([await _one(broker, group_id, context) for group_id in request.group_ids])
    )


async def _one(broker: Broker, group_id: str, context: RequestContext) -> DescribedGroup:
    try:
        response: ConsumerGroupDescribeResponse = await broker.groups.call(
            group_id,
            GroupCoordinator.consumer_group_describe,
            ConsumerGroupDescribeRequest(group_ids=(group_id,)),
            context,
        )
    except KafkaError as error:
        return DescribedGroup(group_id=group_id, error_code=error.code)
    return response.groups[0]
