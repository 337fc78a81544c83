"""DescribeClientQuotas (48), versions 0-1."""

from __future__ import annotations

from clarion.wire.messages import message


@message
class ComponentData:
    entity_type: str
    match_type: int
    match: str | None = None


@message
class DescribeClientQuotasRequest:
    components: tuple[ComponentData, ...] = ()
    strict: bool = False


@message
class EntityData:
    entity_type: str
    entity_name: str | None = None


@message
class ValueData:
    key: str
    value: float


@message
class EntryData:
    entity: tuple[EntityData, ...] = ()
    values: tuple[ValueData, ...] = ()


@message
class DescribeClientQuotasResponse:
    throttle_time: int = 0
    error_code: int = 0
    error_message: str | None = None
    entries: tuple[EntryData, ...] | None = None
