"""ShareGroupHeartbeat v1: everything that a member of a share group says and hears (KIP-932).

A member is given partitions whose share state has begun. Where a subscription is new, it begins before the reply, so
that nobody waits for a second heartbeat to hear of it. Decisions: `clarion.groups`.
"""

from __future__ import annotations

from clarion.broker.authorizer import Operation
from clarion.broker.broker import Broker, RequestContext
from clarion.groups import share_requests
from clarion.groups.consumer_group import JOIN_EPOCH
from clarion.model.errors import KafkaError
from clarion.wire.messages.share_groups import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from clarion.world import event_log

log = event_log("broker")


async def handle(
    broker: Broker, request: ShareGroupHeartbeatRequest, context: RequestContext
) -> ShareGroupHeartbeatResponse:
    broker.resolver.require_group(context.principal, Operation.READ, request.group_id)
    async for name in broker.turns.each(request.subscribed_topic_names or ()):
        broker.resolver.require_topic(context.principal, Operation.DESCRIBE, name)
    response = await _beat(broker, request, context)
    if response.error_code or request.member_epoch < JOIN_EPOCH:
        return response
    try:
        has_begun = await broker.shares.begin_missing(request.group_id, context)
    except KafkaError as error:  # the member is in all the same, and its next heartbeat tries again
        log.warning("share_state_not_begun", group=request.group_id, reason=error.message or error.code.name)
        return response
    return await _beat(broker, request, context) if has_begun else response


async def _beat(
    broker: Broker, request: ShareGroupHeartbeatRequest, context: RequestContext
) -> ShareGroupHeartbeatResponse:
    response: ShareGroupHeartbeatResponse = await broker.groups.call(
        request.group_id, Operation.READ, share_requests.heartbeat, request, context
    )
    return response
