"""DescribeGroups v0-6: classic groups with their members.

v3 authorized operations · v4 static members · v5 flexible · v6 error message and GROUP_ID_NOT_FOUND.
Each group is asked of its own coordinator.
"""

from __future__ import annotations

from dataclasses import replace

from clarion.broker.apis.authorized_operations import GROUP_OPERATIONS
from clarion.broker.authorizer import Operation, ResourceKind
from clarion.broker.broker import Broker, RequestContext
from clarion.groups.coordinator import GroupCoordinator
from clarion.model.errors import KafkaError
from clarion.wire.messages.groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse


async def handle(broker: Broker, request: DescribeGroupsRequest, context: RequestContext) -> DescribeGroupsResponse:
    has_operations = request.include_authorized_operations
    asked = broker.turns.each(request.groups)
    groups = [await _one(broker, one, context, has_operations=has_operations) async for one in asked]
    return DescribeGroupsResponse(groups=tuple(groups))


async def _one(broker: Broker, group_id: str, context: RequestContext, *, has_operations: bool) -> DescribedGroup:
    try:
        response: DescribeGroupsResponse = await broker.groups.call(
            group_id,
            Operation.DESCRIBE,
            GroupCoordinator.describe_groups,
            DescribeGroupsRequest(groups=(group_id,)),
            context,
        )
    except KafkaError as error:
        return DescribedGroup(group_id=group_id, error_code=error.code)
    (described,) = response.groups
    if has_operations and not described.error_code:
        operations = broker.resolver.authorized(context.principal, ResourceKind.GROUP, group_id, GROUP_OPERATIONS)
        return replace(described, authorized_operations=operations)
    return described
