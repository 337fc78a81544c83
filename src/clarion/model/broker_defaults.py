"""The broker's own names for what a topic inherits: `log.retention.hours` stands behind a topic's `retention.ms`.

Where several names mean one setting, the first in `Setting.synonyms` wins, as in Kafka: `log.retention.ms` before
`log.retention.minutes` before `log.retention.hours`. The first one can be changed while the broker runs, the others
not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.setting_kinds import LONG_MAX, Kind, Setting, nearest, read_value
from clarion.model.topic_settings import TOPIC_SETTINGS, TopicSettings, check_together, in_present_names

BROKER_SYNONYMS: Final[Mapping[str, Setting]] = {
    synonym: declared for declared in TOPIC_SETTINGS.values() for synonym in declared.synonyms
}
DYNAMIC_DEFAULTS: Final[Mapping[str, Setting]] = {
    declared.synonyms[0]: declared for declared in TOPIC_SETTINGS.values() if declared.synonyms
}
DEFAULT_BEHIND: Final[Mapping[str, tuple[str, str]]] = {
    "log.retention.ms": ("log.retention.hours", "168"),
    "log.roll.ms": ("log.roll.hours", "168"),
    "log.roll.jitter.ms": ("log.roll.jitter.hours", "0"),
    "log.flush.interval.ms": ("log.flush.scheduler.interval.ms", str(LONG_MAX)),
}
"""Names without a default of their own, and the weaker one that has it: Kafka tells the two apart."""


def in_topic_names(configured: Mapping[str, str]) -> dict[str, str]:
    """The same by the topic's names; those are taken too. INVALID_CONFIG names what is neither."""
    configured = in_present_names(configured)
    strange = next((name for name in configured if name not in BROKER_SYNONYMS and name not in TOPIC_SETTINGS), None)
    if strange is not None:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Unknown topic config name: {strange[:100]}{nearest(strange, {**TOPIC_SETTINGS, **BROKER_SYNONYMS})}",
        )
    found: dict[str, str] = {}
    for declared in TOPIC_SETTINGS.values():
        names = [name for name in (declared.name, *declared.synonyms) if name in configured]
        for name in reversed(names):  # the weaker ones are read too, so that nonsense is never passed over
            found[declared.name] = in_topic_unit(name, configured[name])
            declared._replace(name=name).read(found[declared.name])  # complains by the name that was given
    return found


def with_dynamic(base: TopicSettings, *layers: Mapping[str, str]) -> TopicSettings:
    """What topics inherit after settings that were made at run time, the strongest layer first."""
    values: dict[str, Any] = {}
    for name, declared in DYNAMIC_DEFAULTS.items():
        names = (name, *declared.old_names)
        told = next((layer[one] for layer in layers for one in names if one in layer), None)
        if told is not None:
            values[declared.field_name] = declared._replace(name=name).read(told)  # complains by the broker's name
    settings = replace(base, **values)
    check_together(settings)
    return settings


def in_topic_unit(synonym: str, text: str) -> str:
    """A topic counts in milliseconds; some of the broker's names count in hours or minutes."""
    factor = next((factor for ending, factor in _UNITS.items() if synonym.endswith(ending)), 1)
    if factor == 1:
        return text
    number = read_value(synonym, Kind.INT, text)
    assert isinstance(number, int)
    return str(number * factor if number >= 0 else number)


_UNITS: Final = {".hours": 3_600_000, ".minutes": 60_000}
