"""Changes to the settings of a resource, as AlterConfigs and IncrementalAlterConfigs ask for them.

Pure: what is set in, what shall be set out, or one KafkaError and nothing changed. Whether the outcome may be is for
the kind of resource to say; a name that nobody knows may be deleted, as in Kafka: MirrorMaker 2 deletes on the target
whatever the source does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.setting_kinds import Kind, read_list
from clarion.model.topic_settings import OLD_NAMES, TOPIC_SETTINGS, TopicSettings, in_present_names, parse


class AlterOperation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class SettingChange(NamedTuple):
    name: str
    operation: int
    value: str | None


class Edit(NamedTuple):
    """What one request wants of one resource; `replaces_all` lets go of everything that it does not name."""

    changes: Sequence[SettingChange]
    replaces_all: bool


ListInForce = Callable[[str], str | None]  # the list that applies while nobody has set one; None for what is no list


def changed(present: Mapping[str, str], edit: Edit, list_in_force: ListInForce) -> dict[str, str]:
    after = {} if edit.replaces_all else dict(present)
    for change in edit.changes:
        _apply(after, change, list_in_force)
    return after


def change_overrides(overrides: Mapping[str, str], edit: Edit, defaults: TopicSettings) -> dict[str, str]:
    """A topic's overrides after the edit; the result is a legal topic."""

    def list_in_force(name: str) -> str | None:
        declared = TOPIC_SETTINGS.get(name)
        return defaults.text(name) if declared is not None and declared.kind is Kind.LIST else None

    edit = edit._replace(changes=[one._replace(name=OLD_NAMES.get(one.name, one.name)) for one in edit.changes])
    after = changed(_renamed(overrides, {one.name for one in edit.changes}), edit, list_in_force)
    parse(after, defaults)
    return after


def _renamed(overrides: Mapping[str, str], names: Collection[str]) -> Mapping[str, str]:
    """What is about to change has its present name; the rest stays as it is, for brokers of the version before."""
    if OLD_NAMES.keys().isdisjoint(overrides):
        return overrides
    present = in_present_names(overrides)
    old = {OLD_NAMES[name]: name for name in overrides if name in OLD_NAMES}
    return {name if name in names else old.get(name, name): value for name, value in present.items()}


def _apply(after: dict[str, str], change: SettingChange, list_in_force: ListInForce) -> None:
    match change.operation:
        case AlterOperation.SET:
            after[change.name] = _given(change)
        case AlterOperation.DELETE:
            after.pop(change.name, None)
        case AlterOperation.APPEND | AlterOperation.SUBTRACT:
            after[change.name] = _edited_list(after, change, list_in_force)
        case _:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{change.name[:100]}: unknown operation {change.operation}")


def _given(change: SettingChange) -> str:
    if change.value is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {change.name[:100]}")
    return change.value


def _edited_list(present: Mapping[str, str], change: SettingChange, list_in_force: ListInForce) -> str:
    parts = read_list(_given(change))
    inherited = list_in_force(change.name)
    if inherited is None:
        what = AlterOperation(change.operation).name
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"Can't {what} to key {change.name[:100]} because its type is not LIST."
        )
    known = read_list(present.get(change.name, inherited))
    if change.operation == AlterOperation.APPEND:
        return ",".join([*known, *(part for part in parts if part not in known)])
    return ",".join(part for part in known if part not in parts)
