"""IncrementalAlterConfigs v0-1: set, delete, append to or subtract from single settings.

v1 flexible.
"""

from __future__ import annotations

from clarion.wire.messages import message


@message
class AlterableConfig:
    name: str
    config_operation: int
    value: str | None = None


@message
class AlterConfigsResource:
    resource_type: int
    resource_name: str
    configs: tuple[AlterableConfig, ...]


@message
class IncrementalAlterConfigsRequest:
    resources: tuple[AlterConfigsResource, ...]
    validate_only: bool


@message
class AlterConfigsResourceResponse:
    error_code: int = 0
    error_message: str | None = None
    resource_type: int
    resource_name: str


@message
class IncrementalAlterConfigsResponse:
    throttle_time: int = 0
    responses: tuple[AlterConfigsResourceResponse, ...]
