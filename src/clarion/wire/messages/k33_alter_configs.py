"""AlterConfigs v0-2: replace all settings of a resource.

v1 same · v2 flexible.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class AlterableConfig:
    name: str
    value: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class AlterConfigsResource:
    resource_type: int
    resource_name: str
    configs: tuple[AlterableConfig, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class AlterConfigsRequest:
    resources: tuple[AlterConfigsResource, ...]
    validate_only: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class AlterConfigsResourceResponse:
    error_code: int = 0
    error_message: str | None = None
    resource_type: int
    resource_name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AlterConfigsResponse:
    throttle_time: int = 0
    responses: tuple[AlterConfigsResourceResponse, ...]
