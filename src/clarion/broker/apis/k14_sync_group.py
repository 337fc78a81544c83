"""SyncGroup v0-5: the leader hands out the assignment, the others wait for theirs.

v3 static members · v4 flexible · v5 protocol type and name. The decisions are in `clarion.groups`.
"""

from __future__ import annotations

from clarion.broker.authorizer import Operation
from clarion.broker.broker import Broker, RequestContext
from clarion.groups.coordinator import GroupCoordinator
from clarion.wire.messages.groups import SyncGroupRequest, SyncGroupResponse


async def handle(broker: Broker, request: SyncGroupRequest, context: RequestContext) -> SyncGroupResponse:
    response: SyncGroupResponse = await broker.groups.call(
        request.group_id, Operation.READ, GroupCoordinator.sync_group, request, context
    )
    return response
