"""Heartbeat v0-4: a member is still there.

v3 static members · v4 flexible. The decisions are in `clarion.groups`. While the group is being loaded every heartbeat
is answered with success, as in Kafka: some clients (aiokafka) take COORDINATOR_LOAD_IN_PROGRESS here for the end.
"""

from __future__ import annotations

from clarion.broker.authorizer import Operation
from clarion.broker.broker import Broker, RequestContext
from clarion.groups.coordinator import GroupCoordinator
from clarion.model.errors import ErrorCode, KafkaError
from clarion.wire.messages.groups import HeartbeatRequest, HeartbeatResponse


async def handle(broker: Broker, request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
    try:
        response: HeartbeatResponse = await broker.groups.call(
            request.group_id, Operation.READ, GroupCoordinator.heartbeat, request, context
        )
    except KafkaError as error:
        if error.code is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            raise
        return HeartbeatResponse()
    return response
