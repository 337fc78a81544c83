"""Altering the settings of resources: what AlterConfigs and IncrementalAlterConfigs have in common.

A topic's settings are read, changed and written as one step, so that of two changes at the same time none is lost. The
broker's own come from its file and flags, and are refused here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from clarion.broker.apis.config_entries import ResourceType
from clarion.broker.broker import Broker
from clarion.cluster import Topic
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.names import OFFSETS_TOPIC
from clarion.model.topic_settings import TOPIC_SETTINGS, parse

Change = Callable[[Mapping[str, str]], Mapping[str, str]]
"""From the overrides that a topic has to those it shall have, or a KafkaError."""

CHANGES_MAX: Final = 4 * len(TOPIC_SETTINGS)  # per resource; each setting may be named once, so this is generous


async def alter(broker: Broker, resource_type: int, name: str, change: Change, *, validate_only: bool) -> None:
    """Change one resource, or only say whether that would do."""
    if resource_type != ResourceType.TOPIC:
        raise _unalterable(resource_type)

    def changed(topic: Topic) -> Mapping[str, str]:
        overrides = change(topic.overrides)
        _check(broker, topic, overrides)
        return overrides

    if changed(broker.known_topic(name)) != broker.known_topic(name).overrides and not validate_only:
        await broker.configure_topic(name, changed)


def check_named_once(names: Iterable[str]) -> None:
    seen: dict[str, None] = {}
    for name in names:
        if name in seen:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name[:100]} is changed twice in one request")
        if len(seen) == CHANGES_MAX:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"more than {CHANGES_MAX} changes of one resource")
        seen[name] = None


def _check(broker: Broker, topic: Topic, overrides: Mapping[str, str]) -> None:
    settings = parse(overrides, broker.partitions.defaults)
    if topic.name == OFFSETS_TOPIC and (not settings.is_compacted or settings.is_deleted):
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"cleanup.policy of {topic.name} stays 'compact': it holds what groups have committed",
        )


def _unalterable(resource_type: int) -> KafkaError:
    if resource_type == ResourceType.BROKER:
        return KafkaError(
            ErrorCode.INVALID_REQUEST,
            "a broker's settings come from its configuration file, CLARION_* and flags, and change with a restart",
        )
    known = {one.value: one.name for one in ResourceType}
    what = f"{known[resource_type]} resources have" if resource_type in known else f"resource type {resource_type} has"
    return KafkaError(ErrorCode.INVALID_REQUEST, f"{what} no settings here")
