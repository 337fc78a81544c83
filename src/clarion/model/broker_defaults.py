"""The broker's own names for what a topic inherits: `log.retention.hours` stands behind a topic's `retention.ms`.

Where several names mean one setting, the first in `Setting.synonyms` wins, as in Kafka: `log.retention.ms` before
`log.retention.minutes` before `log.retention.hours`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.setting_kinds import Kind, Setting, read_value
from clarion.model.topic_settings import TOPIC_SETTINGS, TopicSettings, check_together, nearest

BROKER_SYNONYMS: Final[Mapping[str, Setting]] = {
    synonym: declared for declared in TOPIC_SETTINGS.values() for synonym in declared.synonyms
}


def parse_broker_defaults(configured: Mapping[str, str], base: TopicSettings | None = None) -> TopicSettings:
    """What topics inherit from a broker that was configured with these names; INVALID_CONFIG names what cannot be."""
    for name in configured:
        if name not in BROKER_SYNONYMS:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"unknown setting {name!r}{nearest(name, BROKER_SYNONYMS)}")
    values: dict[str, Any] = {}
    for declared in TOPIC_SETTINGS.values():
        given = [name for name in declared.synonyms if name in configured]
        for name in reversed(given):  # the weaker ones are read too, so that nonsense is never passed over
            values[declared.field_name] = declared.read(in_topic_unit(name, configured[name]))
    settings = replace(base or TopicSettings(), **values)
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
