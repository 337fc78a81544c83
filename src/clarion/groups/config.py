"""What can be set about groups, by Kafka's names."""

from __future__ import annotations

from dataclasses import dataclass

from clarion.model.setting_kinds import Kind, at_least, setting

_MEMORY_LEAST = at_least(1024 * 1024)


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupConfig:
    # Classic groups
    initial_rebalance_delay_ms: int = setting(
        "group.initial.rebalance.delay.ms",
        3_000,
        Kind.INT,
        "How long a new group waits for more members before its first rebalance.",
        check=at_least(0),
    )
    session_timeout_min_ms: int = setting(
        "group.min.session.timeout.ms",
        6_000,
        Kind.INT,
        "The shortest session timeout that a member may ask for.",
        check=at_least(1),
    )
    session_timeout_max_ms: int = setting(
        "group.max.session.timeout.ms",
        1_800_000,
        Kind.INT,
        "The longest session timeout that a member may ask for.",
        check=at_least(1),
    )
    members_max: int = setting(
        "group.max.size", 10_000, Kind.INT, "The most members of one classic group.", check=at_least(1)
    )
    # A member that joins has no id to send heartbeats with, so its patience is bounded by this; Kafka's fixed number.
    new_member_join_timeout_ms: int = 300_000

    # KIP-848 groups
    consumer_session_timeout_ms: int = setting(
        "group.consumer.session.timeout.ms",
        45_000,
        Kind.INT,
        "How long a member of a KIP-848 group may be silent; a group can differ.",
        check=at_least(1),
    )
    consumer_heartbeat_interval_ms: int = setting(
        "group.consumer.heartbeat.interval.ms",
        5_000,
        Kind.INT,
        "How often members of KIP-848 groups are heard; a group can differ.",
        check=at_least(1),
    )
    consumer_members_max: int = setting(
        "group.consumer.max.size", 10_000, Kind.INT, "The most members of one KIP-848 group.", check=at_least(1)
    )

    # Share groups (KIP-932)
    share_session_timeout_ms: int = setting(
        "group.share.session.timeout.ms",
        45_000,
        Kind.INT,
        "How long a member of a share group may be silent; a group can differ.",
        check=at_least(1),
    )
    share_heartbeat_interval_ms: int = setting(
        "group.share.heartbeat.interval.ms",
        5_000,
        Kind.INT,
        "How often members of share groups are heard; a group can differ.",
        check=at_least(1),
    )
    share_members_max: int = setting(
        "group.share.max.size", 200, Kind.INT, "The most members of one share group.", check=at_least(1)
    )
    share_sessions_max: int = setting(
        "group.share.max.share.sessions",
        2_000,
        Kind.INT,
        "The most share sessions of one broker: one for each member that fetches from it.",
        check=at_least(1),
    )
    share_record_lock_duration_ms: int = setting(
        "group.share.record.lock.duration.ms",
        30_000,
        Kind.INT,
        "How long a record is a consumer's own before others may have it; a group can differ.",
        check=at_least(1),
    )
    share_delivery_count_limit: int = setting(
        "group.share.delivery.count.limit",
        5,
        Kind.INT,
        "How often a record is delivered before it is given up; a group can differ.",
        check=at_least(1),
    )
    share_partition_max_record_locks: int = setting(
        "group.share.partition.max.record.locks",
        2_000,
        Kind.INT,
        "Records of one partition that a share group may have in flight; a group can differ.",
        check=at_least(1),
    )
    # Of groups alone: the broker has no setting for them.
    share_auto_offset_reset: str = "latest"
    share_isolation_level: str = "read_uncommitted"
    share_renew_acknowledge_enable: bool = True

    # Memory: what clients may make the broker keep. Ten thousand members with a kilobyte each fit into a group.
    group_bytes_max: int = setting(
        "clarion.group.memory.max.bytes",
        16 * 1024 * 1024,
        Kind.LONG,
        "Memory for the members of one group.",
        check=_MEMORY_LEAST,
        old_names=("limits.group_memory_max",),
    )
    memory_bytes_max: int = setting(
        "clarion.groups.memory.max.bytes",
        256 * 1024 * 1024,  # half a million offsets
        Kind.LONG,
        "Memory for the members and offsets of all groups (an offset takes about 500 bytes). When it is full, what is "
        "not there yet must wait.",
        check=_MEMORY_LEAST,
        old_names=("limits.groups_memory_max",),
    )

    # Offsets
    offset_metadata_bytes_max: int = setting(
        "offset.metadata.max.bytes",
        4096,
        Kind.INT,
        "The most bytes of what a client may write beside an offset that it commits.",
        check=at_least(0),
    )
    offsets_retention_minutes: int = setting(
        "offsets.retention.minutes",
        7 * 24 * 60,
        Kind.INT,
        "How long the offsets of a group that has ended are kept.",
        check=at_least(1),
    )
    offsets_retention_check_interval_ms: int = setting(
        "offsets.retention.check.interval.ms",
        600_000,
        Kind.LONG,
        "How often the broker looks for offsets that are past their time.",
        check=at_least(1),
    )

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * 60_000
