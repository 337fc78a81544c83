"""LeaveGroup v0-5: members go.

v3 many members, static ones too · v4 flexible · v5 reason. The decisions are in `clarion.groups`.
"""

from __future__ import annotations

from clarion.broker.authorizer import Operation
from clarion.broker.broker import Broker, RequestContext
from clarion.groups.coordinator import GroupCoordinator
from clarion.wire.messages.groups import LeaveGroupRequest, LeaveGroupResponse


async def handle(broker: Broker, request: LeaveGroupRequest, context: RequestContext) -> LeaveGroupResponse:
    response: LeaveGroupResponse = await broker.groups.call(
        request.group_id, Operation.READ, GroupCoordinator.leave_group, request, context
    )
    return response
