"""ListConfigResources v0-1: which resources have settings.

v0 asks for client metrics alone · v1 any types; an empty list means all.

Left out: client metrics, groups and loggers have no settings here, so none are listed.
"""

from __future__ import annotations

from typing import Final

from clarion.broker.apis.config_entries import ResourceType
from clarion.broker.broker import Broker, RequestContext
from clarion.model.errors import ErrorCode
from clarion.wire.messages.k74_list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

_FIRST_VERSION_WITH_TYPES: Final = 1


async def handle(
    broker: Broker, request: ListConfigResourcesRequest, context: RequestContext
) -> ListConfigResourcesResponse:
    if context.version < _FIRST_VERSION_WITH_TYPES:
        return ListConfigResourcesResponse(config_resources=())
    known = [one.value for one in ResourceType]
    wanted = frozenset(request.resource_types or known)
    if not wanted.issubset(known):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, config_resources=())
    resources = []
    if ResourceType.TOPIC in wanted:
        resources += [_resource(ResourceType.TOPIC, topic.name) for topic in broker.registry]
    if ResourceType.BROKER in wanted:
        resources.append(_resource(ResourceType.BROKER, str(broker.node_id)))
    return ListConfigResourcesResponse(config_resources=tuple(resources))


def _resource(resource_type: ResourceType, name: str) -> ConfigResource:
    return ConfigResource(resource_type=resource_type, resource_name=name)
