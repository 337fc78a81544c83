"""JoinGroup v0-9: a member asks to take part, and waits until the group is complete.

v1 rebalance timeout · v4 MEMBER_ID_REQUIRED · v5 static members · v6 flexible · v8 reason · v9 skip assignment.
In a KIP-848 group a classic member is answered at once (online migration). The decisions are in `clarion.groups`.
"""

from __future__ import annotations

from clarion.broker.authorizer import Operation
from clarion.broker.broker import Broker, RequestContext
from clarion.groups.classic_rebalance import join_error
from clarion.groups.coordinator import GroupCoordinator
from clarion.model.errors import KafkaError
from clarion.wire.messages.groups import JoinGroupRequest, JoinGroupResponse


async def handle(broker: Broker, request: JoinGroupRequest, context: RequestContext) -> JoinGroupResponse:
    try:
        broker.subscriptions.check_reader(request.group_id, is_queue=False)
        response: JoinGroupResponse = await broker.groups.call(
            request.group_id, Operation.READ, GroupCoordinator.join_group, request, context
        )
    except KafkaError as error:
        return join_error(error.code, request.member_id, context.version)
    return response
