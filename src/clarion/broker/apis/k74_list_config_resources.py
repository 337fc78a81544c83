"""ListConfigResources v0-1: which resources have settings.

v0 asks for client metrics alone · v1 any types; an empty list means all.

Topics, this broker and its loggers always have some; groups and subscriptions are listed where somebody has set one.
"""

from __future__ import annotations

from typing import Final, assert_never

from clarion.broker.apis.config_entries import ResourceType
from clarion.broker.authorizer import THE_CLUSTER, Operation, ResourceKind
from clarion.broker.broker import Broker, RequestContext
from clarion.broker.dynamic_settings import CLIENT_METRICS, GROUP
from clarion.model.errors import ErrorCode
from clarion.wire.messages.configs import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

_FIRST_VERSION_WITH_TYPES: Final = 1


async def handle(
    broker: Broker, request: ListConfigResourcesRequest, context: RequestContext
) -> ListConfigResourcesResponse:
    if not broker.resolver.allows(context.principal, Operation.DESCRIBE_CONFIGS, ResourceKind.CLUSTER, THE_CLUSTER):
        return ListConfigResourcesResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, config_resources=())
    if context.version < _FIRST_VERSION_WITH_TYPES:
        wanted = frozenset([ResourceType.CLIENT_METRICS.value])
    else:
        known = [one.value for one in ResourceType]
        wanted = frozenset(request.resource_types or known)
        if not wanted.issubset(known):
            return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, config_resources=())
    resources = []
    for kind in ResourceType:
        if kind in wanted:
            resources += [_resource(kind, name) async for name in broker.turns.each(_names(broker, kind))]
    return ListConfigResourcesResponse(config_resources=tuple(resources))


def _names(broker: Broker, kind: ResourceType) -> list[str]:
    match kind:
        case ResourceType.TOPIC:
            return list(broker.image.topics)
        case ResourceType.BROKER | ResourceType.BROKER_LOGGER:
            return [str(broker.node_id)]
        case ResourceType.GROUP:
            return broker.settings.names(GROUP)
        case ResourceType.CLIENT_METRICS:
            return broker.settings.names(CLIENT_METRICS)
    assert_never(kind)


def _resource(resource_type: ResourceType, name: str) -> ConfigResource:
    return ConfigResource(resource_type=resource_type, resource_name=name)
