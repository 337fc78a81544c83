"""FindCoordinator v0-6: which broker coordinates a group.

v1 key type, error message · v3 flexible · v4 several keys · v5 TRANSACTION_ABORTABLE · v6 share coordinators, whose
keys are `group:topic id:partition`, and which brokers alone may ask for. It is the one that leads the key's partition
of `__consumer_offsets` or `__share_group_state`. Left out: transaction coordinators, refused at once with an error
that clients take as final, so that nobody waits for what does not exist.
"""

from __future__ import annotations

from typing import Final

from clarion.broker.authorizer import THE_CLUSTER, Operation, ResourceKind
from clarion.broker.broker import Broker, RequestContext
from clarion.cluster import BrokerRegistration
from clarion.model.errors import ErrorCode, KafkaError
from clarion.wire.messages.metadata import FindCoordinatorRequest, FindCoordinatorResponse, FoundCoordinator

_GROUP: Final = 0
_TRANSACTION: Final = 1
_SHARE: Final = 2
_FIRST_VERSION_WITH_SHARES: Final = 6
_FIRST_VERSION_WITH_KEYS: Final = 4


async def handle(broker: Broker, request: FindCoordinatorRequest, context: RequestContext) -> FindCoordinatorResponse:
    trouble = await _make_ready(broker, request.key_type)
    if broker.node is not None and request.key_type == _GROUP:
        keys = request.coordinator_keys if context.version >= _FIRST_VERSION_WITH_KEYS else (request.key,)
        await broker.node.lost_leaders.replaced(lambda: map(broker.groups.runtime.leader_of, keys))

    def find(key: str) -> FoundCoordinator:
        return _refuse(key, *trouble) if trouble else _find(broker, key, request.key_type, context)

    if context.version >= _FIRST_VERSION_WITH_KEYS:
        each = broker.turns.each(request.coordinator_keys)
        return FindCoordinatorResponse(coordinators=tuple([find(key) async for key in each]))
    found = find(request.key)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


async def _make_ready(broker: Broker, key_type: int) -> tuple[ErrorCode, str] | None:
    """A client that asks where its group is coordinated is going to use it. Returns why it cannot."""
    try:
        if key_type == _GROUP:
            await broker.groups.runtime.ensure_topic()
        elif key_type == _SHARE:
            await broker.shares.states.runtime.ensure_topic()
    except KafkaError as error:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message or error.code.name
    return None


def _find(broker: Broker, key: str, key_type: int, context: RequestContext) -> FoundCoordinator:
    if key_type == _TRANSACTION:
        return _refuse(key, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactions are not supported yet")
    if key_type == _SHARE and context.version >= _FIRST_VERSION_WITH_SHARES:
        return _find_share(broker, key, context)
    if key_type != _GROUP:
        return _refuse(key, ErrorCode.INVALID_REQUEST, f"there is no coordinator for key type {key_type}")
    if not broker.resolver.allows(context.principal, Operation.DESCRIBE, ResourceKind.GROUP, key):
        return _refuse(key, ErrorCode.GROUP_AUTHORIZATION_FAILED, "not authorized to know this group")
    return _found(key, broker.groups.runtime.coordinator_of(key), context)


def _find_share(broker: Broker, key: str, context: RequestContext) -> FoundCoordinator:
    if not broker.resolver.allows(context.principal, Operation.CLUSTER_ACTION, ResourceKind.CLUSTER, THE_CLUSTER):
        return _refuse(key, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "share coordinators are for brokers to know")
    if key.count(":") < 2:
        return _refuse(key, ErrorCode.INVALID_REQUEST, "a share coordinator's key is group:topic id:partition")
    return _found(key, broker.shares.states.runtime.coordinator_of(key), context)


def _found(key: str, coordinator: BrokerRegistration | None, context: RequestContext) -> FoundCoordinator:
    if coordinator is None:
        return _refuse(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator is not available")
    host, port = coordinator.endpoint(context.listener)
    return FoundCoordinator(key=key, node_id=coordinator.id, host=host, port=port)


def _refuse(key: str, code: ErrorCode, message: str) -> FoundCoordinator:
    return FoundCoordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=message)
