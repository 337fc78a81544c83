"""What can be set about groups; the names in the comments are Kafka's."""

from __future__ import annotations

from dataclasses import dataclass

DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupConfig:
    # Classic groups
    initial_rebalance_delay_ms: int = 3_000  # group.initial.rebalance.delay.ms
    session_timeout_min_ms: int = 6_000  # group.min.session.timeout.ms
    session_timeout_max_ms: int = 1_800_000  # group.max.session.timeout.ms
    members_max: int = 2**31 - 1  # group.max.size
    # A member that joins has no id to send heartbeats with, so its patience is bounded by this; Kafka's fixed number.
    new_member_join_timeout_ms: int = 300_000

    # KIP-848 groups
    consumer_session_timeout_ms: int = 45_000  # group.consumer.session.timeout.ms
    consumer_heartbeat_interval_ms: int = 5_000  # group.consumer.heartbeat.interval.ms
    consumer_members_max: int = 2**31 - 1  # group.consumer.max.size

    # Memory: what clients may make the broker keep. Ten thousand members with a kilobyte each fit into a group.
    group_bytes_max: int = 16 * 1024 * 1024  # without its offsets
    memory_bytes_max: int = 256 * 1024 * 1024  # of all groups; half a million offsets

    # Offsets
    offset_metadata_bytes_max: int = 4096  # offset.metadata.max.bytes
    offsets_retention_ms: int = 7 * DAY_MS  # offsets.retention.minutes
    offsets_retention_check_interval_ms: int = 600_000  # offsets.retention.check.interval.ms
