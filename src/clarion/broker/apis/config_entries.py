"""Settings as clients see them: value, where it comes from, what stands behind it, and what it means.

A topic's value comes from its own override, or from what this broker was configured with, or is the default. The
broker's own settings come from its file and flags at start, so all of them are read only. Left out: paths of TLS keys
and certificates; nothing that is told here is secret.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from clarion.broker.broker import Broker
from clarion.broker.config import BrokerConfig, ListenerConfig
from clarion.model.setting_kinds import Kind, Setting, Value, write_value
from clarion.model.topic_settings import TOPIC_SETTINGS, TopicSettings, parse


class ResourceType(IntEnum):
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Source(IntEnum):
    TOPIC = 1
    STATIC_BROKER = 4
    DEFAULT = 5


class Synonym(NamedTuple):
    name: str
    value: str
    source: Source


class ConfigEntry(NamedTuple):
    name: str
    value: str
    kind: Kind
    doc: str
    is_read_only: bool
    synonyms: tuple[Synonym, ...]  # all that was said about it, the strongest first; the first one counts

    @property
    def source(self) -> Source:
        return self.synonyms[0].source


def topic_entries(overrides: Mapping[str, str], defaults: TopicSettings) -> list[ConfigEntry]:
    """Every setting of a topic, in alphabetical order."""
    settings = parse(overrides, defaults)
    return [
        ConfigEntry(
            declared.name,
            settings.text(declared.name),
            declared.kind,
            declared.doc,
            False,
            _topic_synonyms(declared, settings if declared.name in overrides else None, defaults),
        )
        for declared in TOPIC_SETTINGS.values()
    ]


def _topic_synonyms(
    declared: Setting, overridden: TopicSettings | None, defaults: TopicSettings
) -> tuple[Synonym, ...]:
    inherited = _inherited(_broker_name(declared), defaults.text(declared.name), write_value(declared.default))
    if overridden is None:
        return inherited
    return (Synonym(declared.name, overridden.text(declared.name), Source.TOPIC), *inherited)


def _broker_name(declared: Setting) -> str:
    return declared.synonyms[0] if declared.synonyms else declared.name


def _inherited(name: str, value: str, default: str) -> tuple[Synonym, ...]:
    builtin = Synonym(name, default, Source.DEFAULT)
    return (builtin,) if value == default else (Synonym(name, value, Source.STATIC_BROKER), builtin)


# ------------------------------------------------------------------------------------------------ the broker's own


def broker_entries(broker: Broker) -> list[ConfigEntry]:
    """Everything this broker was told at start, by Kafka's names, in alphabetical order."""
    entries = [*_own_entries(broker.config), *_default_entries(broker.partitions.defaults), _advertised(broker)]
    return sorted(entries)


class OwnSetting(NamedTuple):
    name: str
    kind: Kind
    read: Callable[[BrokerConfig], Value]
    doc: str


def _own_entries(config: BrokerConfig) -> list[ConfigEntry]:
    return [
        _fixed(own.name, write_value(own.read(config)), write_value(own.read(_UNTOLD)), own.kind, own.doc)
        for own in OWN_SETTINGS
    ]


def _default_entries(defaults: TopicSettings) -> list[ConfigEntry]:
    return [
        _fixed(
            _broker_name(declared),
            defaults.text(declared.name),
            write_value(declared.default),
            declared.kind,
            f"What topics inherit as {declared.name}. {declared.doc}",
        )
        for declared in TOPIC_SETTINGS.values()
        if declared.synonyms
    ]


def _advertised(broker: Broker) -> ConfigEntry:
    told = ",".join(
        f"{_protocol(listener)}://{address.host}:{address.port}"
        for listener, address in zip(broker.config.listeners, broker.advertised, strict=False)
    )
    return _fixed("advertised.listeners", told, "", Kind.STRING, "What clients are told to connect to, per listener.")


def _fixed(name: str, value: str, default: str, kind: Kind, doc: str) -> ConfigEntry:
    return ConfigEntry(name, value, kind, doc, True, _inherited(name, value, default))


def _listeners(config: BrokerConfig) -> Value:
    return ",".join(f"{_protocol(one)}://{one.host}:{one.port}" for one in config.listeners)


def _protocol(listener: ListenerConfig) -> str:
    return "PLAINTEXT" if listener.tls is None else "SSL"


_UNTOLD: Final = BrokerConfig(data_dir="")  # a broker that was told nothing: what differs from it was configured

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
        "The most connections at a time.",
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
    ),
    OwnSetting(
        "socket.request.max.bytes",
        Kind.INT,
        lambda config: config.limits.frame_bytes_max,
        "The largest request.",
    ),
)
