"""What a topic says about how long its messages stay: its own retention, and what subscriptions and groups may hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from clarion.model.setting_kinds import Kind, at_least, one_of, setting

_DAY_MS: Final = 24 * 3_600_000
RETENTION_BY: Final = "clarion.retention.by"
BY_TOPIC: Final = "topic"
BY_SUBSCRIPTIONS: Final = "subscriptions"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    retention_bytes: int = setting(
        "retention.bytes",
        -1,
        Kind.LONG,
        "How many bytes a partition keeps, counted in whole batches from the newest; -1 is no limit.",
        check=at_least(-1),
        synonyms=("log.retention.bytes",),
    )
    retention_ms: int = setting(
        "retention.ms",
        7 * _DAY_MS,
        Kind.LONG,
        "How long a message is kept, counted from its timestamp; -1 is for ever.",
        check=at_least(-1),
        synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    )
    retention_grace_ms: int = setting(
        "clarion.retention.grace.ms",
        5 * 60_000,
        Kind.LONG,
        "How long a message stays at least after it arrived, however old its own timestamp is: `retention.ms` does not "
        "delete it before. 0 deletes old messages at the next check.",
        check=at_least(0),
        synonyms=("clarion.retention.grace.ms",),
    )
    retention_by: str = setting(
        RETENTION_BY,
        BY_TOPIC,
        Kind.STRING,
        "Who decides how long messages stay: `topic` promises `retention.ms` to everybody, and subscriptions can only "
        "extend it; with `subscriptions` a partition keeps what its subscriptions and groups still need, and no more.",
        check=one_of(BY_TOPIC, BY_SUBSCRIPTIONS),
        synonyms=(RETENTION_BY,),
    )
    retention_max_ms: int = setting(
        "clarion.retention.max.ms",
        30 * _DAY_MS,
        Kind.LONG,
        "The age at which a message goes even though a subscription or a group holds it, so that a forgotten one "
        "cannot fill the disk; -1 is no limit.",
        check=at_least(-1),
        synonyms=("clarion.retention.max.ms",),
        old_names=("clarion.retention.hold.max.ms",),
    )
    retention_hold_groups: tuple[str, ...] = setting(
        "clarion.retention.hold.groups",
        (),
        Kind.LIST,
        "Groups that hold deletion back: what one of them has not yet committed outlives `retention.ms` and "
        "`retention.bytes`. A group without a committed offset holds everything.",
        synonyms=("clarion.retention.hold.groups",),
    )
    retention_hold_max_bytes: int = setting(
        "clarion.retention.hold.max.bytes",
        -1,
        Kind.LONG,
        "The size of a partition beyond which the oldest messages go even though a subscription or a group holds them; "
        "-1 is no limit.",
        check=at_least(-1),
        synonyms=("clarion.retention.hold.max.bytes",),
    )

    @property
    def is_by_subscriptions(self) -> bool:
        return self.retention_by == BY_SUBSCRIPTIONS
