"""DescribeGroups v0-6: classic groups with their members.

v3 authorized operations · v4 static members · v5 flexible · v6 error message and GROUP_ID_NOT_FOUND.
Each group is asked of its own coordinator.
"""

from __future__ import annotations

from clarion.broker.broker import Broker, RequestContext
from clarion.groups.coordinator import GroupCoordinator
from clarion.model.errors import KafkaError
from clarion.wire.messages.k15_describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse


async def handle(broker: Broker, request: DescribeGroupsRequest, context: RequestContext) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(groups=tuple([await _one(broker, group_id, context) for group_id in request.groups]))


async def _one(broker: Broker, group_id: str, context: RequestContext) -> DescribedGroup:
    try:
        response: DescribeGroupsResponse = await broker.groups.call(
            group_id, GroupCoordinator.describe_groups, DescribeGroupsRequest(groups=(group_id,)), context
        )
    except KafkaError as error:
        return DescribedGroup(group_id=group_id, error_code=error.code)
    return response.groups[0]
