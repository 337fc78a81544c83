"""Heartbeat v0-4: a member is still there.

v3 static members · v4 flexible. The decisions are in `clarion.groups`.
"""

from __future__ import annotations

from clarion.broker.broker import Broker, RequestContext
from clarion.groups.coordinator import GroupCoordinator
from clarion.wire.messages.k12_heartbeat import HeartbeatRequest, HeartbeatResponse


async def handle(broker: Broker, request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
    response: HeartbeatResponse = await broker.groups.call(
        request.group_id, GroupCoordinator.heartbeat, request, context
    )
    return response
