"""The settings of a subscription to clients' metrics (KIP-714): Kafka's names and rules (resource type CLIENT_METRICS).

They are checked and kept; no client is asked for its metrics yet.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.setting_kinds import Kind, Setting, Value, entry, table

CLIENT_METRICS_SETTINGS: Final[Mapping[str, Setting]] = table(
    entry("interval.ms", 300_000, Kind.INT, "How often a client shall push its metrics."),
    entry("match", (), Kind.LIST, "Which clients: `client_id=pattern` and the like, all of which must hold."),
    entry("metrics", (), Kind.LIST, "Which metrics, by the beginning of their names; `*` is all of them."),
)
_INTERVAL_MS: Final = (100, 3_600_000)
_SELECTORS: Final = (
    "client_id",
    "client_instance_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)
_PATTERN_CHARS_MAX: Final = 1_000  # to compile a pattern takes time


def parse_client_metrics_settings(overrides: Mapping[str, str]) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for name, text in overrides.items():
        declared = CLIENT_METRICS_SETTINGS.get(name)
        if declared is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {name[:100]}")
        values[name] = declared.read(text)
    _check_interval(values.get("interval.ms"))
    _check_match(values.get("match"))
    return values


def _check_interval(value: Value | None) -> None:
    if isinstance(value, int) and not _INTERVAL_MS[0] <= value <= _INTERVAL_MS[1]:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Invalid value {value} for interval.ms, interval must be between 100 and 3600000 (1 hour)",
        )


def _check_match(value: Value | None) -> None:
    for part in value if isinstance(value, tuple) else ():
        selector, equals, pattern = part.partition("=")
        if not equals or selector.strip() not in _SELECTORS or not _is_pattern(pattern.strip()):
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Illegal client matching pattern: {part[:100]}")


def _is_pattern(text: str) -> bool:
    if len(text) > _PATTERN_CHARS_MAX:
        return False
    try:
        re.compile(text)
    except re.error:
        return False
    return True
