"""ListConfigResources v0-1: which resources have settings.

v0 asks for client metrics alone · v1 any types; an empty list means all.
"""

from __future__ import annotations

from clarion.wire.messages import message


@message
class ListConfigResourcesRequest:
    resource_types: tuple[int, ...] = ()  # v1+


@message
class ConfigResource:
    resource_name: str
    resource_type: int = 16  # v1+


@message
class ListConfigResourcesResponse:
    throttle_time: int = 0
    error_code: int = 0
    config_resources: tuple[ConfigResource, ...]
