"""ShareGroupDescribe v1: share groups, their members and what these read (KIP-932)."""

from __future__ import annotations

from clarion.broker.apis.group_descriptions import describe
from clarion.broker.broker import Broker, RequestContext
from clarion.groups import share_requests
from clarion.wire.messages.share_groups import (
    DescribedShareGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)


async def handle(
    broker: Broker, request: ShareGroupDescribeRequest, context: RequestContext
) -> ShareGroupDescribeResponse:
    groups = await describe(
        broker,
        request.group_ids,
        context,
        DescribedShareGroup,
        share_requests.describe,
        lambda group_id: ShareGroupDescribeRequest(group_ids=(group_id,)),
        has_operations=request.include_authorized_operations,
    )
    return ShareGroupDescribeResponse(groups=groups)
