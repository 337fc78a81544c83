"""ListGroups v0-5: the groups of this broker.

v3 flexible · v4 states, filter by state · v5 types, filter by type.
"""

from __future__ import annotations

from functools import partial

from clarion.broker.authorizer import THE_CLUSTER, Operation, ResourceKind
from clarion.broker.broker import Broker, RequestContext
from clarion.groups.coordinator import GroupCoordinator
from clarion.wire.messages.groups import ListGroupsRequest, ListGroupsResponse


async def handle(broker: Broker, request: ListGroupsRequest, context: RequestContext) -> ListGroupsResponse:
    answers: list[ListGroupsResponse] = await broker.groups.call_all(GroupCoordinator.list_groups, request, context)
    groups = [group for answer in answers for group in answer.groups]
    allows = partial(broker.resolver.allows, context.principal, Operation.DESCRIBE)
    if not allows(ResourceKind.CLUSTER, THE_CLUSTER):
        groups = [one for one in groups if allows(ResourceKind.GROUP, one.group_id)]
    return ListGroupsResponse(groups=tuple(groups))
