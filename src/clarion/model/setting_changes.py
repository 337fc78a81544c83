"""Changes to a topic's overrides, as IncrementalAlterConfigs asks for them: set, delete, append, subtract.

Pure: old overrides in, new overrides out, or one KafkaError and nothing changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.setting_kinds import Kind, Setting, read_list
from clarion.model.topic_settings import TopicSettings, find_setting, parse


class Operation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class SettingChange(NamedTuple):
    name: str
    operation: int
    value: str | None


def change_overrides(
    overrides: Mapping[str, str], changes: Sequence[SettingChange], defaults: TopicSettings
) -> dict[str, str]:
    """The overrides after all the changes; each setting may be named once, and the result is a legal topic."""
    names = [change.name for change in changes]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{twice} is changed twice in one request")
    changed = dict(overrides)
    for change in changes:
        _apply(changed, change, defaults)
    parse(changed, defaults)
    return changed


def _apply(overrides: dict[str, str], change: SettingChange, defaults: TopicSettings) -> None:
    """A name that nobody knows may be deleted, as in Kafka: what counts is whether the settings that remain are legal.

    MirrorMaker 2 deletes on the target whatever the source does not have.
    """
    match change.operation:
        case Operation.SET:
            overrides[change.name] = _given(change)
        case Operation.DELETE:
            overrides.pop(change.name, None)
        case Operation.APPEND | Operation.SUBTRACT:
            overrides[change.name] = _edited_list(overrides, change, find_setting(change.name), defaults)
        case _:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{change.name}: unknown operation {change.operation}")


def _given(change: SettingChange) -> str:
    if change.value is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {change.name}")
    return change.value


def _edited_list(
    overrides: Mapping[str, str], change: SettingChange, declared: Setting, defaults: TopicSettings
) -> str:
    """Without an override, the list that the topic inherits is the one that is edited."""
    if declared.kind is not Kind.LIST:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{change.name} is not a list: it can only be set or deleted")
    parts = read_list(_given(change))
    present = read_list(overrides.get(change.name, defaults.text(change.name)))
    if change.operation == Operation.APPEND:
        return ",".join([*present, *(part for part in parts if part not in present)])
    return ",".join(part for part in present if part not in parts)
