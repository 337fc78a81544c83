"""Every setting that a topic can have: Kafka's names, our own under `clarion.`, and what each may be.

A setting is honoured or refused: what this broker cannot do is refused with INVALID_CONFIG and the reason, unless it is
set to the value that means "off". Only `preallocate` is accepted without effect, since nobody can see one. The table is
`TOPIC_SETTINGS`; `parse` turns the overrides of one topic into `TopicSettings`; changes by IncrementalAlterConfigs are
in `setting_changes`.

    parse({"cleanup.policy": "compact", "segment.ms": "60000"}, broker_defaults).segment_ms
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.retention_settings import RetentionSettings
from clarion.model.setting_kinds import (
    LONG_MAX,
    Kind,
    Setting,
    Value,
    at_least,
    between,
    nearest,
    one_of,
    setting,
    settings_of,
    some_of,
    some_replicas,
    write_value,
)

T = TypeVar("T")

_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS
_NO_REMOTE: Final = "there is no remote storage yet"


def _gzip_level(value: Value) -> str | None:
    return None if value in (-1, *range(1, 10)) else "Value must be between 1 and 9 or equal to -1"


def _long(name: str, default: int, doc: str, synonyms: tuple[str, ...], least: int = 0) -> int:
    """A number of bytes, milliseconds or messages."""
    return setting(name, default, Kind.LONG, doc, check=at_least(least), synonyms=synonyms)


def _never_remote(name: str, doc: str) -> bool:
    return setting(name, False, Kind.BOOLEAN, doc, why_only_default=_NO_REMOTE)


def _as_without_remote(name: str, doc: str) -> int:
    return setting(name, -2, Kind.LONG, doc, synonyms=(f"log.{name}",), why_only_default=_NO_REMOTE)


def _throttled(name: str, doc: str) -> tuple[str, ...]:
    return setting(name, (), Kind.LIST, doc, check=some_replicas())


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings(RetentionSettings):
    cleanup_policy: tuple[str, ...] = setting(
        "cleanup.policy",
        ("delete",),
        Kind.LIST,
        "What happens to old data: `delete` removes it by retention time and size, `compact` keeps the newest record "
        "of every key, `compact,delete` does both, and with an empty list everything stays.",
        check=some_of("compact", "delete"),
        synonyms=("log.cleanup.policy",),
    )
    compression_type: str = setting(
        "compression.type",
        "producer",
        Kind.STRING,
        "How batches are stored: `producer` as they come, `uncompressed`, or in `gzip`, `snappy`, `lz4` or `zstd`. A "
        "batch that comes otherwise is compressed anew, which costs the broker time.",
        check=one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        synonyms=("compression.type",),
    )
    compression_gzip_level: int = setting(
        "compression.gzip.level",
        -1,
        Kind.INT,
        "The level of gzip where `compression.type` asks for it, from 1 to 9; -1 is gzip's own.",
        check=_gzip_level,
        synonyms=("compression.gzip.level",),
    )
    compression_lz4_level: int = setting(
        "compression.lz4.level",
        9,
        Kind.INT,
        "The level of lz4, from 1 to 17; levels above 12 are as 12.",
        check=between(1, 17),
        synonyms=("compression.lz4.level",),
    )
    compression_zstd_level: int = setting(
        "compression.zstd.level",
        3,
        Kind.INT,
        "The level of zstd, from -131072 to 22; levels above 12 are as 12, for they would take the broker's memory.",
        check=between(-131_072, 22),
        synonyms=("compression.zstd.level",),
    )
    delete_retention_ms: int = _long(
        "delete.retention.ms",
        _DAY_MS,
        "How long a compacted topic keeps a tombstone (a key with a null value) after it was first cleaned, so that a "
        "reader who started before still sees the deletion.",
        ("log.cleaner.delete.retention.ms",),
    )
    file_delete_delay_ms: int = _long(
        "file.delete.delay.ms",
        60_000,
        "How long a file that was taken out of the log stays on disk under its `.deleted` name.",
        ("log.segment.delete.delay.ms",),
    )
    flush_messages: int = _long(
        "flush.messages",
        LONG_MAX,
        "Flush after this many messages. Any value but the default has every append flushed before it is acknowledged, "
        "also with `clarion.durability=page-cache`: that is sooner than asked for, never later.",
        ("log.flush.interval.messages",),
        least=1,
    )
    flush_ms: int = _long(
        "flush.ms",
        LONG_MAX,
        "Flush after this time. As with `flush.messages`, any value but the default has every append flushed.",
        ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    )
    follower_replication_throttled_replicas: tuple[str, ...] = _throttled(
        "follower.replication.throttled.replicas", "Replicas fetched at `follower.replication.throttled.rate`."
    )
    leader_replication_throttled_replicas: tuple[str, ...] = _throttled(
        "leader.replication.throttled.replicas", "Leaders that serve at `leader.replication.throttled.rate`."
    )
    index_interval_bytes: int = setting(
        "index.interval.bytes",
        4096,
        Kind.INT,
        "How many bytes of messages one entry of the offset and time index stands for.",
        check=at_least(0),
        synonyms=("log.index.interval.bytes",),
    )
    local_retention_bytes: int = _as_without_remote(
        "local.retention.bytes",
        "How much stays local when older data is in remote storage. Only -2, which means `retention.bytes`.",
    )
    local_retention_ms: int = _as_without_remote(
        "local.retention.ms",
        "How long data stays local when it is in remote storage. Only -2, which means `retention.ms`.",
    )
    max_compaction_lag_ms: int = _long(
        "max.compaction.lag.ms",
        LONG_MAX,
        "A message may stay uncompacted at most this long, however little there is to clean.",
        ("log.cleaner.max.compaction.lag.ms",),
        least=1,
    )
    max_message_bytes: int = setting(
        "max.message.bytes",
        1_048_588,
        Kind.INT,
        "The largest record batch that is accepted, after compression.",
        check=at_least(0),
        synonyms=("message.max.bytes",),
    )
    message_timestamp_after_max_ms: int = _long(
        "message.timestamp.after.max.ms",
        _HOUR_MS,
        "How far a record's timestamp may be ahead of the broker's clock.",
        ("log.message.timestamp.after.max.ms",),
    )
    message_timestamp_before_max_ms: int = _long(
        "message.timestamp.before.max.ms",
        LONG_MAX,
        "How far a record's timestamp may be behind the broker's clock.",
        ("log.message.timestamp.before.max.ms",),
    )
    message_timestamp_type: str = setting(
        "message.timestamp.type",
        "CreateTime",
        Kind.STRING,
        "Whose clock a record's timestamp comes from: the producer's (`CreateTime`) or the broker's (`LogAppendTime`).",
        check=one_of("CreateTime", "LogAppendTime"),
        synonyms=("log.message.timestamp.type",),
    )
    min_cleanable_dirty_ratio: float = setting(
        "min.cleanable.dirty.ratio",
        0.5,
        Kind.DOUBLE,
        "Which part of a compacted log must be uncleaned before it is cleaned.",
        check=between(0, 1),
        synonyms=("log.cleaner.min.cleanable.ratio",),
    )
    min_compaction_lag_ms: int = _long(
        "min.compaction.lag.ms",
        0,
        "How long a message stays uncompacted at least.",
        ("log.cleaner.min.compaction.lag.ms",),
    )
    min_insync_replicas: int = setting(
        "min.insync.replicas",
        1,
        Kind.INT,
        "How many replicas must be in sync for a write with acks=all. Where nobody has set it: 2 where three have been "
        "in sync, else 1.",
        check=at_least(1),
        synonyms=("min.insync.replicas",),
    )
    preallocate: bool = setting(
        "preallocate",
        False,
        Kind.BOOLEAN,
        "Accepted without effect: segments are never preallocated, so that recovery finds nothing after the last "
        "batch. No client can see the difference.",
        synonyms=("log.preallocate",),
    )
    remote_log_copy_disable: bool = _never_remote(
        "remote.log.copy.disable", "Whether remote storage is read only. Only `false`."
    )
    remote_log_delete_on_disable: bool = _never_remote(
        "remote.log.delete.on.disable", "Whether remote data goes when remote storage is switched off. Only `false`."
    )
    remote_storage_enable: bool = _never_remote(
        "remote.storage.enable", "Whether sealed segments move to remote storage. Only `false`."
    )
    segment_bytes: int = setting(
        "segment.bytes",
        1_073_741_824,
        Kind.INT,
        "The size at which a partition begins a new file; where `retention.bytes` is set, a quarter of that is enough "
        "(but at least 1 MB), so that old messages go in whole files.",
        check=at_least(1024),  # Kafka 4.1 asks for a megabyte; small ones are for tests
        synonyms=("log.segment.bytes",),
    )
    segment_index_bytes: int = setting(
        "segment.index.bytes",
        10_485_760,
        Kind.INT,
        "The most bytes that the index of one segment may take; a full index begins a new segment.",
        check=at_least(4),
        synonyms=("log.index.size.max.bytes",),
    )
    segment_jitter_ms: int = _long(
        "segment.jitter.ms",
        0,
        "Up to how much earlier than `segment.ms` a segment may end, so that not all of them end at once.",
        ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    )
    segment_ms: int = _long(
        "segment.ms",
        7 * _DAY_MS,
        "The age at which a partition begins a new file even if the old one is not full.",
        ("log.roll.ms", "log.roll.hours"),
        least=1,
    )
    unclean_leader_election_enable: bool = setting(
        "unclean.leader.election.enable",
        False,
        Kind.BOOLEAN,
        "Whether a replica that is not in sync may become leader, at the price of lost messages.",
        synonyms=("unclean.leader.election.enable",),
    )
    durability: str = setting(
        "clarion.durability",
        "fsync",
        Kind.STRING,
        "What acks=all means: `fsync` answers when the message is on disk, `page-cache` when it is written, as Kafka "
        "does.",
        check=one_of("fsync", "page-cache"),
        synonyms=("clarion.durability",),
        old_names=("durability",),
    )
    validation: str = setting(
        "clarion.validation",
        "header",
        Kind.STRING,
        "How closely a produced batch is looked at: `header` checks its CRC and its header's claims, `deep` decodes "
        "every record too. Compacted topics are always validated deeply.",
        check=one_of("header", "deep"),
        synonyms=("clarion.validation",),
    )

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def is_deleted(self) -> bool:
        """Whether retention applies."""
        return "delete" in self.cleanup_policy

    @property
    def is_log_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"

    @property
    def is_durable(self) -> bool:
        """Whether a committed message is on disk."""
        return self.durability == "fsync" or self.flush_messages != LONG_MAX or self.flush_ms != LONG_MAX

    @property
    def is_validated_deeply(self) -> bool:
        return self.validation == "deep" or self.is_compacted

    def value(self, name: str) -> Value:
        """The value of a setting, by Kafka's name."""
        found: Value = getattr(self, TOPIC_SETTINGS[name].field_name)
        return found

    def text(self, name: str) -> str:
        """The value of a setting as DescribeConfigs sends it."""
        return write_value(self.value(name))


TOPIC_SETTINGS: Final[Mapping[str, Setting]] = settings_of(TopicSettings)
OLD_NAMES: Final[Mapping[str, str]] = {
    old: declared.name for declared in TOPIC_SETTINGS.values() for old in declared.old_names if old.count(".")
}


def in_present_names(overrides: Mapping[str, T]) -> Mapping[str, T]:
    """The same by the names that settings have now; who has set both means the present one."""
    if OLD_NAMES.keys().isdisjoint(overrides):
        return overrides
    renamed = {OLD_NAMES[name]: value for name, value in overrides.items() if name in OLD_NAMES}
    return renamed | {name: value for name, value in overrides.items() if name not in OLD_NAMES}


def parse(overrides: Mapping[str, str | None], defaults: TopicSettings) -> TopicSettings:
    """The settings of a topic, or INVALID_CONFIG that names the first setting which cannot be."""
    values: dict[str, Any] = {}
    for name, text in in_present_names(overrides).items():
        declared = find_setting(name)
        values[declared.field_name] = declared.read(text)
    settings = replace(defaults, **values)
    check_together(settings)
    return settings


def find_setting(name: str) -> Setting:
    declared = TOPIC_SETTINGS.get(name)
    if declared is None:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name[:100]}{nearest(name, TOPIC_SETTINGS)}"
        )
    return declared


CHECKED_TOGETHER: Final = frozenset({"min.compaction.lag.ms", "max.compaction.lag.ms"})


def check_together(settings: TopicSettings) -> None:
    """What no single setting can know: only those of `CHECKED_TOGETHER` are looked at."""
    if settings.min_compaction_lag_ms > settings.max_compaction_lag_ms:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"conflict topic config setting min.compaction.lag.ms ({settings.min_compaction_lag_ms}) > "
            f"max.compaction.lag.ms ({settings.max_compaction_lag_ms})",
        )
