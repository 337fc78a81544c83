"""The settings that a group can have of its own: Kafka's names and bounds (resource type GROUP).

Those of KIP-848 groups work: `consumer.session.timeout.ms` and `consumer.heartbeat.interval.ms` are told to the
members with their next heartbeat. Assignments are made at once, whatever `consumer.assignment.interval.ms` says. Share
groups and KIP-1071 streams groups do not exist yet: their settings are kept for them, and have no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.setting_kinds import Kind, Setting, Value, at_least, between, entry, one_of, table

SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL: Final = "consumer.heartbeat.interval.ms"
_LATER: Final = "Kept for share groups, which do not exist yet."
_STREAMS_LATER: Final = "Kept for streams groups (KIP-1071), which do not exist yet."


def _whole(name: str, default: int, doc: str, check: tuple[int, int | None] = (1, None)) -> Setting:
    least, most = check
    bounds = at_least(least) if most is None else between(least, most)
    return entry(name, default, Kind.INT, doc, check=bounds, synonyms=(f"group.{name}",))


def _is_reset(value: Value) -> str | None:
    is_known = value in ("earliest", "latest") or str(value).startswith("by_duration:")
    return None if is_known else "String must be one of: earliest, latest, by_duration:…"


GROUP_SETTINGS: Final[Mapping[str, Setting]] = table(
    _whole("consumer.assignment.interval.ms", 1_000, "Without effect: a new assignment is made at once.", (0, None)),
    _whole(HEARTBEAT_INTERVAL, 5_000, "How often the members of a KIP-848 group say that they are there."),
    _whole(SESSION_TIMEOUT, 45_000, "How long a member of a KIP-848 group may be silent."),
    _whole("share.assignment.interval.ms", 1_000, _LATER, (0, None)),
    entry("share.auto.offset.reset", "latest", Kind.STRING, _LATER, check=_is_reset),
    _whole("share.delivery.count.limit", 5, _LATER, (2, 10)),
    _whole("share.heartbeat.interval.ms", 5_000, _LATER, (5_000, 15_000)),
    entry(
        "share.isolation.level",
        "read_uncommitted",
        Kind.STRING,
        _LATER,
        check=one_of("read_uncommitted", "read_committed"),
    ),
    _whole("share.partition.max.record.locks", 2_000, _LATER, (100, 10_000)),
    _whole("share.record.lock.duration.ms", 30_000, _LATER, (15_000, 60_000)),
    entry("share.renew.acknowledge.enable", True, Kind.BOOLEAN, _LATER),
    _whole("share.session.timeout.ms", 45_000, _LATER, (45_000, 60_000)),
    _whole("streams.assignment.interval.ms", 1_000, _STREAMS_LATER, (0, None)),
    _whole("streams.heartbeat.interval.ms", 5_000, _STREAMS_LATER, (5_000, 15_000)),
    _whole("streams.initial.rebalance.delay.ms", 3_000, _STREAMS_LATER, (0, None)),
    _whole("streams.num.standby.replicas", 0, _STREAMS_LATER, (0, 2)),
    _whole("streams.session.timeout.ms", 45_000, _STREAMS_LATER, (45_000, 60_000)),
)


class ConsumerTimes(NamedTuple):
    """What a KIP-848 group's members are told."""

    session_timeout_ms: int
    heartbeat_interval_ms: int


_SESSION_BOUNDS: Final = (45_000, 60_000)  # Kafka's group.consumer.{min,max}.session.timeout.ms
_HEARTBEAT_BOUNDS: Final = (5_000, 15_000)  # and of the heartbeat interval


def parse_group_settings(overrides: Mapping[str, str], inherited: ConsumerTimes) -> dict[str, Value]:
    """The values of what is set, or a KafkaError that names the first that cannot be.

    Kafka's bounds hold, widened to whatever the broker itself was configured with.
    """
    values: dict[str, Value] = {}
    for name, text in overrides.items():
        declared = GROUP_SETTINGS.get(name)
        if declared is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown group config name: {name[:100]}")
        values[name] = declared.read(text)
    times = consumer_times(values, inherited)
    _check_bounds(SESSION_TIMEOUT, times.session_timeout_ms, _SESSION_BOUNDS, inherited.session_timeout_ms)
    _check_bounds(HEARTBEAT_INTERVAL, times.heartbeat_interval_ms, _HEARTBEAT_BOUNDS, inherited.heartbeat_interval_ms)
    if times.session_timeout_ms <= times.heartbeat_interval_ms:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{SESSION_TIMEOUT} must be greater than {HEARTBEAT_INTERVAL}")
    return values


def consumer_times(values: Mapping[str, Value], inherited: ConsumerTimes) -> ConsumerTimes:
    session = values.get(SESSION_TIMEOUT, inherited.session_timeout_ms)
    heartbeat = values.get(HEARTBEAT_INTERVAL, inherited.heartbeat_interval_ms)
    assert isinstance(session, int)
    assert isinstance(heartbeat, int)
    return ConsumerTimes(session, heartbeat)


def _check_bounds(name: str, value: int, bounds: tuple[int, int], configured: int) -> None:
    kind = name.removeprefix("consumer.")
    if value < min(bounds[0], configured):
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name} must be greater than or equal to group.consumer.min.{kind}")
    if value > max(bounds[1], configured):
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name} must be less than or equal to group.consumer.max.{kind}")
