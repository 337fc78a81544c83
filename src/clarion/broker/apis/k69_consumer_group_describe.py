"""ConsumerGroupDescribe v0-1: KIP-848 groups with their members and assignments.

v1 member type. Each group is asked of its own coordinator.
"""

from __future__ import annotations

from dataclasses import replace

from clarion.broker.apis.authorized_operations import GROUP_OPERATIONS
from clarion.broker.authorizer import Operation, ResourceKind
from clarion.broker.broker import Broker, RequestContext
from clarion.groups.coordinator import GroupCoordinator
from clarion.model.errors import KafkaError
from clarion.wire.messages.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedConsumerGroup,
)


async def handle(
    broker: Broker, request: ConsumerGroupDescribeRequest, context: RequestContext
) -> ConsumerGroupDescribeResponse:
    has_operations = request.include_authorized_operations
    asked = broker.turns.each(request.group_ids)
    groups = [await _one(broker, one, context, has_operations=has_operations) async for one in asked]
    return ConsumerGroupDescribeResponse(groups=tuple(groups))


async def _one(
    broker: Broker, group_id: str, context: RequestContext, *, has_operations: bool
) -> DescribedConsumerGroup:
    try:
        response: ConsumerGroupDescribeResponse = await broker.groups.call(
            group_id,
            Operation.DESCRIBE,
            GroupCoordinator.consumer_group_describe,
            ConsumerGroupDescribeRequest(group_ids=(group_id,)),
            context,
        )
    except KafkaError as error:
        return DescribedConsumerGroup(group_id=group_id, error_code=error.code)
    (described,) = response.groups
    if has_operations and not described.error_code:
        operations = broker.resolver.authorized(context.principal, ResourceKind.GROUP, group_id, GROUP_OPERATIONS)
        return replace(described, authorized_operations=operations)
    return described
