"""OffsetDelete v0: forget committed offsets.

Refused for topics that a member is subscribed to. The decisions are in `clarion.groups`.
"""

from __future__ import annotations

from clarion.broker.broker import Broker, RequestContext
from clarion.groups.coordinator import GroupCoordinator
from clarion.wire.messages.k47_offset_delete import OffsetDeleteRequest, OffsetDeleteResponse


async def handle(broker: Broker, request: OffsetDeleteRequest, context: RequestContext) -> OffsetDeleteResponse:
    response: OffsetDeleteResponse = await broker.groups.call(
        request.group_id, GroupCoordinator.offset_delete, request, context
    )
    return response
