"""The settings that a group can have of its own: Kafka's names and bounds (resource type GROUP).

Those of KIP-848 groups and of share groups work: session timeouts and heartbeat intervals are told to the members with
their next heartbeat. Assignments are made at once, whatever the assignment intervals say. KIP-1071 streams groups do
not exist yet: their settings are kept for them, and have no effect.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.setting_kinds import Kind, Setting, Value, at_least, between, entry, one_of, table

SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL: Final = "consumer.heartbeat.interval.ms"
_STREAMS_LATER: Final = "Kept for streams groups (KIP-1071), which do not exist yet."


def _whole(name: str, default: int, doc: str, check: tuple[int, int | None] = (1, None)) -> Setting:
    least, most = check
    bounds = at_least(least) if most is None else between(least, most)
    return entry(name, default, Kind.INT, doc, check=bounds, synonyms=(f"group.{name}",))


_BY_DURATION: Final = "by_duration:"
_DURATION: Final = re.compile(  # as Java's Duration.parse, without signs
    r"P(?:(\d{1,9})D)?(?:T(?=\d)(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9})(?:\.(\d{1,9}))?S)?)?", re.IGNORECASE
)


def reset_duration_ms(value: str) -> int:
    """Of `by_duration:PT1H`. ValueError if it is none."""
    found = _DURATION.fullmatch(value.removeprefix(_BY_DURATION))
    if found is None or not value.startswith(_BY_DURATION) or not any(found.groups()):
        raise ValueError(value)
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups()[:4])
    thousandths = int(f"{found[5] or 0:0<3}"[:3])
    return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000 + thousandths


def _is_reset(value: Value) -> str | None:
    if value in ("earliest", "latest"):
        return None
    try:
        reset_duration_ms(str(value))
    except ValueError:
        return "String must be one of: earliest, latest, by_duration: and a duration such as PT1H30M"
    return None


GROUP_SETTINGS: Final[Mapping[str, Setting]] = table(
    _whole("consumer.assignment.interval.ms", 1_000, "Without effect: a new assignment is made at once.", (0, None)),
    _whole(HEARTBEAT_INTERVAL, 5_000, "How often the members of a KIP-848 group say that they are there."),
    _whole(SESSION_TIMEOUT, 45_000, "How long a member of a KIP-848 group may be silent."),
    _whole("share.assignment.interval.ms", 1_000, "Without effect: a new assignment is made at once.", (0, None)),
    entry(
        "share.auto.offset.reset",
        "latest",
        Kind.STRING,
        "Where a share group begins in a partition: `earliest`, `latest`, or so long ago: `by_duration:PT1H`.",
        check=_is_reset,
    ),
    _whole("share.delivery.count.limit", 5, "How often a record is delivered before it is given up.", (2, 10)),
    _whole(
        "share.heartbeat.interval.ms",
        5_000,
        "How often members of a share group say that they are there.",
        (5_000, 15_000),
    ),
    entry(
        "share.isolation.level",
        "read_uncommitted",
        Kind.STRING,
        "Without effect while there are no transactions: both read what is committed to the log.",
        check=one_of("read_uncommitted", "read_committed"),
    ),
    _whole(
        "share.partition.max.record.locks",
        2_000,
        "Records of a partition that the group may have in flight.",
        (100, 10_000),
    ),
    _whole(
        "share.record.lock.duration.ms",
        30_000,
        "How long a record is a consumer's own before others may have it.",
        (15_000, 60_000),
    ),
    entry("share.renew.acknowledge.enable", True, Kind.BOOLEAN, "Whether consumers may renew the lock of a record."),
    _whole("share.session.timeout.ms", 45_000, "How long a member of a share group may be silent.", (45_000, 60_000)),
    _whole("streams.assignment.interval.ms", 1_000, _STREAMS_LATER, (0, None)),
    _whole("streams.heartbeat.interval.ms", 5_000, _STREAMS_LATER, (5_000, 15_000)),
    _whole("streams.initial.rebalance.delay.ms", 3_000, _STREAMS_LATER, (0, None)),
    _whole("streams.num.standby.replicas", 0, _STREAMS_LATER, (0, 2)),
    _whole("streams.session.timeout.ms", 45_000, _STREAMS_LATER, (45_000, 60_000)),
)


SHARE_FIELDS: Final[Mapping[str, str]] = {
    "share.auto.offset.reset": "share_auto_offset_reset",
    "share.delivery.count.limit": "share_delivery_count_limit",
    "share.heartbeat.interval.ms": "share_heartbeat_interval_ms",
    "share.isolation.level": "share_isolation_level",
    "share.partition.max.record.locks": "share_partition_max_record_locks",
    "share.record.lock.duration.ms": "share_record_lock_duration_ms",
    "share.renew.acknowledge.enable": "share_renew_acknowledge_enable",
    "share.session.timeout.ms": "share_session_timeout_ms",
}
"""What a share group can have of its own, by the names that `groups.config` has for it."""


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
