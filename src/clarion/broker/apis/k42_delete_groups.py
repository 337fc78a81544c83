"""DeleteGroups v0-2: forget groups and their offsets.

v2 flexible. Only empty groups go. Each group is asked of its own coordinator.
"""

from __future__ import annotations

from clarion.broker.broker import Broker, RequestContext
from clarion.model.errors import KafkaError
from clarion.wire.messages.groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse


async def handle(broker: Broker, request: DeleteGroupsRequest, context: RequestContext) -> DeleteGroupsResponse:
    once = dict.fromkeys(request.groups_names)
    results = [await _one(broker, group_id, context) async for group_id in broker.turns.each(once)]
    return DeleteGroupsResponse(results=tuple(results))


async def _one(broker: Broker, group_id: str, context: RequestContext) -> DeletableGroupResult:
    try:
        return await broker.groups.delete_group(group_id, context)
    except KafkaError as error:
        return DeletableGroupResult(group_id=group_id, error_code=error.code)
