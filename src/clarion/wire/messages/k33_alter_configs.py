"""AlterConfigs v0-2: replace all settings of a resource.

v1 same · v2 flexible.
"""

from __future__ import annotations

from clarion.wire.messages import message


@message
class AlterableConfig:
    name: str
    value: str | None = None


@message
class AlterConfigsResource:
    resource_type: int
    resource_name: str
    configs: tuple[AlterableConfig, ...]


@message
class AlterConfigsRequest:
    resources: tuple[AlterConfigsResource, ...]
    validate_only: bool


@message
class AlterConfigsResourceResponse:
    error_code: int = 0
    error_message: str | None = None
    resource_type: int
    resource_name: str


@message
class AlterConfigsResponse:
    throttle_time: int = 0
    responses: tuple[AlterConfigsResourceResponse, ...]
