"""ShareGroupHeartbeat v1: everything that a member of a share group says and hears (KIP-932).

A member is given partitions whose share state has begun. Where a subscription is new, it begins before the reply, so
that nobody waits for a second heartbeat to hear of it. Decisions: `clarion.groups`.
"""

from __future__ import annotations

from clarion.broker.authorizer import Operation
from clarion.broker.broker import Broker, RequestContext
from clarion.groups import share_requests
from clarion.groups.consumer_group import JOIN_EPOCH
from clarion.wire.messages.share_groups import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse


async def handle(
    broker: Broker, request: ShareGroupHeartbeatRequest, context: RequestContext
) -> ShareGroupHeartbeatResponse:
    broker.resolver.require_group(context.principal, Operation.READ, request.group_id)
    broker.subscriptions.check_reader(request.group_id, is_queue=True, knows_filters=request.knows_filters)
    async for name in broker.turns.each(request.subscribed_topic_names or ()):
        broker.resolver.require_topic(context.principal, Operation.DESCRIBE, name)
    response = await _beat(broker, request, context)
    if response.error_code or request.member_epoch < JOIN_EPOCH:
        return response
    has_begun = await broker.shares.begin_missing(request.group_id, context)
    return await _beat(broker, request, context) if has_begun else response


async def _beat(
    broker: Broker, request: ShareGroupHeartbeatRequest, context: RequestContext
) -> ShareGroupHeartbeatResponse:
    response: ShareGroupHeartbeatResponse = await broker.groups.call(
        request.group_id, Operation.READ, share_requests.heartbeat, request, context
    )
    return response
