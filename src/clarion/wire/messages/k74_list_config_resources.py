"""ListConfigResources v0-1: which resources have settings.

v0 asks for client metrics alone · v1 any types; an empty list means all.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ListConfigResourcesRequest:
    resource_types: tuple[int, ...] = ()  # v1+


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigResource:
    resource_name: str
    resource_type: int = 16  # v1+


@dataclass(frozen=True, kw_only=True, slots=True)
class ListConfigResourcesResponse:
    throttle_time: int = 0
    error_code: int = 0
    config_resources: tuple[ConfigResource, ...]
