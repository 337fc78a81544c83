"""ShareGroupDescribe v1: share groups, their members and what these read (KIP-932)."""

from __future__ import annotations

from dataclasses import replace

from clarion.broker.apis.authorized_operations import GROUP_OPERATIONS
from clarion.broker.authorizer import Operation, ResourceKind
from clarion.broker.broker import Broker, RequestContext
from clarion.groups import share_requests
from clarion.model.errors import KafkaError
from clarion.wire.messages.share_groups import (
    DescribedShareGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)


async def handle(
    broker: Broker, request: ShareGroupDescribeRequest, context: RequestContext
) -> ShareGroupDescribeResponse:
    has_operations = request.include_authorized_operations
    asked = broker.turns.each(request.group_ids)
    groups = [await _one(broker, one, context, has_operations=has_operations) async for one in asked]
    return ShareGroupDescribeResponse(groups=tuple(groups))


async def _one(broker: Broker, group_id: str, context: RequestContext, *, has_operations: bool) -> DescribedShareGroup:
    try:
        response: ShareGroupDescribeResponse = await broker.groups.call(
            group_id,
            Operation.DESCRIBE,
            share_requests.describe,
            ShareGroupDescribeRequest(group_ids=(group_id,)),
            context,
        )
    except KafkaError as error:
        return DescribedShareGroup(group_id=group_id, error_code=error.code, error_message=error.message or None)
    (described,) = response.groups
    if has_operations and not described.error_code:
        operations = broker.resolver.authorized(context.principal, ResourceKind.GROUP, group_id, GROUP_OPERATIONS)
        return replace(described, authorized_operations=operations)
    return described
