"""The broker's own settings by Kafka's names: what each is in this broker's configuration, and which can change.

Everything else that Kafka's brokers know is either a default that topics inherit (`clarion.model.broker_defaults`) or
has no meaning here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from clarion.broker.config import BrokerConfig, ListenerConfig
from clarion.model.setting_kinds import Kind, Value, at_least, read_value, refused

_SHORTEST_PAUSE_SECONDS: Final = 0.05  # between two looks at the compacted topics, also for who asks for none


@dataclass(frozen=True, slots=True)
class OwnSetting:
    name: str
    kind: Kind
    read: Callable[[BrokerConfig], Value]
    doc: str
    change: Callable[[BrokerConfig, int], BrokerConfig] | None = None  # None: only a restart changes it
    least: int = 1

    def changed(self, config: BrokerConfig, text: str) -> BrokerConfig:
        """The configuration with this setting as the text says, or INVALID_CONFIG."""
        assert self.change is not None
        value = read_value(self.name, self.kind, text)
        assert isinstance(value, int)
        if complaint := at_least(self.least)(value):
            raise refused(self.name, text, complaint)
        return self.change(config, value)


def listener_protocol(listener: ListenerConfig) -> str:
    return "PLAINTEXT" if listener.tls is None else "SSL"


def _listeners(config: BrokerConfig) -> Value:
    return ",".join(f"{listener_protocol(one)}://{one.host}:{one.port}" for one in config.listeners)


OWN_SETTINGS: Final = (
    OwnSetting(
        "auto.create.topics.enable",
        Kind.BOOLEAN,
        lambda config: config.auto_create_topics,
        "Whether a topic comes into being when a client asks for it.",
    ),
    OwnSetting(
        "connections.max.idle.ms",
        Kind.LONG,
        lambda config: int(config.limits.idle_seconds_max * 1000),
        "After how long a silent connection is closed.",
    ),
    OwnSetting("default.replication.factor", Kind.INT, lambda config: 1, "Replicas of a new topic: there is one node."),
    OwnSetting(
        "fetch.max.bytes",
        Kind.INT,
        lambda config: config.limits.fetch_bytes_max,
        "The most bytes that one fetch is answered with.",
    ),
    OwnSetting(
        "group.consumer.heartbeat.interval.ms",
        Kind.INT,
        lambda config: config.group_consumer_heartbeat_interval_ms,
        "How often members of KIP-848 groups are heard; a group can differ.",
    ),
    OwnSetting(
        "group.consumer.session.timeout.ms",
        Kind.INT,
        lambda config: config.group_consumer_session_timeout_ms,
        "How long a member of a KIP-848 group may be silent; a group can differ.",
    ),
    OwnSetting(
        "group.initial.rebalance.delay.ms",
        Kind.INT,
        lambda config: config.group_initial_rebalance_delay_ms,
        "How long a new group waits for more members before its first rebalance.",
    ),
    OwnSetting(
        "group.max.session.timeout.ms",
        Kind.INT,
        lambda config: config.group_max_session_timeout_ms,
        "The longest session timeout that a member may ask for.",
    ),
    OwnSetting("group.max.size", Kind.INT, lambda config: config.group_max_size, "The most members of one group."),
    OwnSetting(
        "group.min.session.timeout.ms",
        Kind.INT,
        lambda config: config.group_min_session_timeout_ms,
        "The shortest session timeout that a member may ask for.",
    ),
    OwnSetting("listeners", Kind.STRING, _listeners, "Where the broker listens; port 0 picks a free one."),
    OwnSetting(
        "log.cleaner.backoff.ms",
        Kind.LONG,
        lambda config: int(config.compaction_check_seconds * 1000),
        "How often compacted topics are looked at.",
        lambda config, ms: replace(config, compaction_check_seconds=max(_SHORTEST_PAUSE_SECONDS, ms / 1000)),
        least=0,
    ),
    OwnSetting("log.dirs", Kind.STRING, lambda config: config.data_dir, "Where the data is."),
    OwnSetting(
        "log.flush.offset.checkpoint.interval.ms",
        Kind.INT,
        lambda config: int(config.checkpoint_seconds * 1000),
        "How often the broker writes down how much of each log is known to be good.",
    ),
    OwnSetting(
        "log.retention.check.interval.ms",
        Kind.LONG,
        lambda config: int(config.retention_check_seconds * 1000),
        "How often retention looks for messages that are past their time.",
    ),
    OwnSetting(
        "max.connections",
        Kind.INT,
        lambda config: config.limits.connections_max,
        "The most connections at a time; those who are there when it falls may stay.",
        lambda config, count: replace(config, limits=replace(config.limits, connections_max=count)),
    ),
    OwnSetting(
        "max.incremental.fetch.session.cache.slots",
        Kind.INT,
        lambda config: config.limits.fetch_sessions_max,
        "The most fetch sessions that are kept.",
    ),
    OwnSetting("node.id", Kind.INT, lambda config: config.node_id, "The number of this broker."),
    OwnSetting(
        "num.partitions",
        Kind.INT,
        lambda config: config.default_partitions,
        "Partitions of a topic whose maker does not say how many.",
    ),
    OwnSetting(
        "offsets.retention.minutes",
        Kind.INT,
        lambda config: config.offsets_retention_minutes,
        "How long the offsets of a group that has ended are kept.",
    ),
    OwnSetting(
        "offsets.topic.num.partitions",
        Kind.INT,
        lambda config: config.offsets_partitions,
        "Partitions of __consumer_offsets, fixed once it exists.",
    ),
    OwnSetting(
        "producer.id.expiration.ms",
        Kind.INT,
        lambda config: config.producer_id_expiration_ms,
        "After how long a silent idempotent producer is forgotten.",
        lambda config, ms: replace(config, producer_id_expiration_ms=ms),
    ),
    OwnSetting(
        "socket.request.max.bytes",
        Kind.INT,
        lambda config: config.limits.frame_bytes_max,
        "The largest request.",
    ),
)
