"""DescribeClientQuotas (48), versions 0-1."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ComponentData:
    entity_type: str
    match_type: int
    match: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DescribeClientQuotasRequest:
    components: tuple[ComponentData, ...] = ()
    strict: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class EntityData:
    entity_type: str
    entity_name: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueData:
    key: str
    value: float


@dataclass(frozen=True, kw_only=True, slots=True)
class EntryData:
    entity: tuple[EntityData, ...] = ()
    values: tuple[ValueData, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class DescribeClientQuotasResponse:
    throttle_time: int = 0
    error_code: int = 0
    error_message: str | None = None
    entries: tuple[EntryData, ...] | None = None
