"""ConsumerGroupHeartbeat v0-1: everything that a member of a KIP-848 group says and hears.

v1 subscription by regular expression, member id made by the client (KIP-848). The first such member of a classic group
of consumers turns it into a KIP-848 group, the last one that leaves turns it back. Decisions: `clarion.groups`.
"""

from __future__ import annotations

from clarion.broker.authorizer import Operation
from clarion.broker.broker import Broker, RequestContext
from clarion.groups.coordinator import GroupCoordinator
from clarion.wire.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)


async def handle(
    broker: Broker, request: ConsumerGroupHeartbeatRequest, context: RequestContext
) -> ConsumerGroupHeartbeatResponse:
    broker.subscriptions.check_reader(request.group_id, is_queue=False)
    await broker.groups.resolve_aside(request.group_id, request.subscribed_topic_regex)
    response: ConsumerGroupHeartbeatResponse = await broker.groups.call(
        request.group_id, Operation.READ, GroupCoordinator.consumer_group_heartbeat, request, context
    )
    return response
