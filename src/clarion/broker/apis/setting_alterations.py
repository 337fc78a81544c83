"""Altering the settings of resources: what AlterConfigs and IncrementalAlterConfigs have in common.

Settings are read, changed and written as one step, so that of two changes at the same time none is lost; they hold when
the answer leaves. The levels of loggers last until the broker ends, everything else outlives a restart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from clarion.broker import authorizer
from clarion.broker.apis.config_entries import ResourceType, require_for_configs
from clarion.broker.apis.refusals import REFUSALS, refusal_of
from clarion.broker.broker import Broker, RequestContext
from clarion.broker.dynamic_settings import ALL_BROKERS
from clarion.cluster import Topic
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.names import OFFSETS_TOPIC, SHARE_STATE_TOPIC
from clarion.model.setting_changes import AlterOperation, Edit, SettingChange, change_overrides
from clarion.model.topic_settings import TOPIC_SETTINGS, parse
from clarion.world import event_log
from clarion.world.log_levels import LEVELS, ROOT, log_levels, set_log_level

log = event_log("broker")

CHANGES_MAX: Final = 4 * len(TOPIC_SETTINGS)  # per resource; each setting may be named once, so this is generous


class Resource(Protocol):
    """As a request names it."""

    @property
    def resource_type(self) -> int: ...
    @property
    def resource_name(self) -> str: ...


R = TypeVar("R", bound=Resource)


class Altered(NamedTuple):
    error_code: ErrorCode
    error_message: str | None
    resource_type: int
    resource_name: str


async def alter_each(
    broker: Broker, context: RequestContext, asked: Sequence[R], edit_of: Callable[[R], Edit], *, validate_only: bool
) -> list[Altered]:
    """What becomes of each resource, for a request that names several."""
    times_named = Counter((one.resource_type, one.resource_name) for one in asked)
    altered = []
    async for one in broker.turns.each(asked):
        kind, name = one.resource_type, one.resource_name
        code, message = ErrorCode.NONE, None
        try:
            if times_named[kind, name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            await _alter(broker, context.principal, kind, name, edit_of(one), validate_only=validate_only)
        except REFUSALS as error:
            code, message = refusal_of(error, name)
        altered.append(Altered(code, message, kind, name))
    return altered


async def _alter(
    broker: Broker, who: authorizer.Principal, resource_type: int, name: str, edit: Edit, *, validate_only: bool
) -> None:
    """Change one resource, or only say whether that would do."""
    require_for_configs(broker, who, authorizer.Operation.ALTER_CONFIGS, resource_type, name)
    _check_named_once(change.name for change in edit.changes)
    match resource_type:
        case ResourceType.TOPIC:
            await _alter_topic(broker, name, edit, validate_only=validate_only)
        case ResourceType.BROKER:
            if name != ALL_BROKERS:
                _check_node(broker, name, "Unexpected broker id, expected {}, but received {}")
            await broker.dynamic.alter(broker, name, edit, validate_only=validate_only)
        case ResourceType.GROUP:
            await broker.dynamic.alter_group(broker.groups, name, edit, validate_only=validate_only)
        case ResourceType.CLIENT_METRICS:
            await broker.dynamic.alter_client_metrics(name, edit, validate_only=validate_only)
        case ResourceType.BROKER_LOGGER if not edit.replaces_all:
            _check_node(broker, name, "Unexpected node id. Expected {}, but received {}")
            _alter_loggers(edit.changes, validate_only=validate_only)
        case _:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource_type}")


def _check_named_once(names: Iterable[str]) -> None:
    seen: dict[str, None] = {}
    for name in names:
        if name in seen:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
        if len(seen) == CHANGES_MAX:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"more than {CHANGES_MAX} changes of one resource")
        seen[name] = None


def _check_node(broker: Broker, name: str, wording: str) -> None:
    if name == str(broker.node_id):
        return
    if not name.isascii() or not name.isdecimal():
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name[:100]}")
    raise KafkaError(ErrorCode.INVALID_REQUEST, wording.format(broker.node_id, name[:100]))


# Topics


async def _alter_topic(broker: Broker, name: str, edit: Edit, *, validate_only: bool) -> None:
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")

    def changed(topic: Topic) -> Mapping[str, str]:
        overrides = change_overrides(topic.overrides, edit, broker.partitions.defaults)
        _check_topic(broker, topic, overrides)
        return overrides

    topic = broker.registry.known(name)
    if changed(topic) != topic.overrides and not validate_only:
        await broker.configure_topic(name, changed)


def _check_topic(broker: Broker, topic: Topic, overrides: Mapping[str, str]) -> None:
    settings = parse(overrides, broker.partitions.defaults)
    if topic.name == OFFSETS_TOPIC and (not settings.is_compacted or settings.is_deleted):
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"cleanup.policy of {topic.name} stays 'compact': it holds what groups have committed",
        )
    if topic.name == SHARE_STATE_TOPIC and (settings.is_compacted or overrides.get("retention.ms") != "-1"):
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"cleanup.policy of {topic.name} stays 'delete' and retention.ms -1: the broker deletes what is not needed",
        )


# Loggers


def _alter_loggers(changes: Iterable[SettingChange], *, validate_only: bool) -> None:
    """All of them or none."""
    known = log_levels()
    wanted = [(change.name, _level(change, known)) for change in changes]
    if validate_only:
        return
    for name, level in wanted:
        set_log_level(name, level)
        log.info("log_level_changed", logger=name, level=level or "inherited")


def _level(change: SettingChange, known: Mapping[str, str]) -> str | None:
    if change.operation not in (AlterOperation.SET, AlterOperation.DELETE):
        names = {one.value: one.name for one in AlterOperation}
        what = names.get(change.operation, str(change.operation))
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{what} operation is not allowed for the BROKER_LOGGER resource")
    if change.name not in known:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Logger {change.name[:100]} does not exist!")
    if change.operation == AlterOperation.DELETE:
        if change.name == ROOT:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Removing the log level of the root logger is not allowed")
        return None
    if change.value is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {change.name}")
    if change.value not in LEVELS:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Cannot set the log level of {change.name} to {change.value[:100]} as it is not a supported log level. "
            f"Valid log levels are {', '.join(LEVELS)}",
        )
    return change.value
