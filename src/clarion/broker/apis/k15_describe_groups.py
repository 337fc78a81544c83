"""DescribeGroups v0-6: classic groups with their members.

v3 authorized operations · v4 static members · v5 flexible · v6 error message and GROUP_ID_NOT_FOUND.
"""

from __future__ import annotations

from clarion.broker.apis.group_descriptions import describe
from clarion.broker.broker import Broker, RequestContext
from clarion.groups.coordinator import GroupCoordinator
from clarion.wire.messages.groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse


async def handle(broker: Broker, request: DescribeGroupsRequest, context: RequestContext) -> DescribeGroupsResponse:
    groups = await describe(
        broker,
        request.groups,
        context,
        DescribedGroup,
        GroupCoordinator.describe_groups,
        lambda group_id: DescribeGroupsRequest(groups=(group_id,)),
        has_operations=request.include_authorized_operations,
    )
    return DescribeGroupsResponse(groups=groups)
