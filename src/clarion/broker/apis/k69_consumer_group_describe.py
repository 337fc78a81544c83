"""ConsumerGroupDescribe v0-1: KIP-848 groups with their members and assignments. v1 member type."""

from __future__ import annotations

from clarion.broker.apis.group_descriptions import describe
from clarion.broker.broker import Broker, RequestContext
from clarion.groups.coordinator import GroupCoordinator
from clarion.wire.messages.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedConsumerGroup,
)


async def handle(
    broker: Broker, request: ConsumerGroupDescribeRequest, context: RequestContext
) -> ConsumerGroupDescribeResponse:
    groups = await describe(
        broker,
        request.group_ids,
        context,
        DescribedConsumerGroup,
        GroupCoordinator.consumer_group_describe,
        lambda group_id: ConsumerGroupDescribeRequest(group_ids=(group_id,)),
        has_operations=request.include_authorized_operations,
    )
    return ConsumerGroupDescribeResponse(groups=groups)
