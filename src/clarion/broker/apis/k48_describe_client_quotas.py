"""DescribeClientQuotas v0-1: the limits that users, clients and addresses have (KIP-546).

v1 flexible.

There are none: quotas are not enforced yet, and what is not enforced cannot be set either. The filter is checked as
Kafka checks it.
"""

from __future__ import annotations

from typing import Final

from clarion.broker.authorizer import Operation
from clarion.broker.broker import Broker, RequestContext
from clarion.model.errors import ErrorCode, KafkaError
from clarion.wire.messages.controller import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

_ENTITY_TYPES: Final = ("user", "client-id", "ip")


async def handle(
    broker: Broker, request: DescribeClientQuotasRequest, context: RequestContext
) -> DescribeClientQuotasResponse:
    broker.resolver.require_cluster(context.principal, Operation.DESCRIBE_CONFIGS)
    _check_filter(request.components)
    return DescribeClientQuotasResponse(entries=())


def _check_filter(components: tuple[ComponentData, ...]) -> None:
    seen: dict[str, None] = {}
    for component in components:
        _check_component(component)
        if component.entity_type in seen:
            raise _illegal(f"Entity type {component.entity_type} cannot appear more than once in the filter.")
        seen[component.entity_type] = None
    if "ip" in seen and len(seen) > 1:
        raise _illegal(
            "Invalid entity filter component combination. IP filter component should not be used with user or clientId "
            "filter component."
        )


def _check_component(component: ComponentData) -> None:
    if not component.entity_type:
        raise _illegal("Invalid empty entity type.")
    if component.entity_type not in _ENTITY_TYPES:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {component.entity_type[:100]}")
    match component.match_type:
        case 0 if component.match is None:
            raise _illegal("Request specified MATCH_TYPE_EXACT, but set match string to null.")
        case 1 | 2 if component.match is not None:
            raise _illegal("only an exact match has a name")
        case 0 | 1 | 2:
            return
    raise _illegal(f"Unknown match type {component.match_type}")


def _illegal(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, reason)
