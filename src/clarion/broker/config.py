"""What a broker is told, and every setting of its own, declared once: the field that holds it, and beside it its name,
kind, default, limits and the sentence that explains it. Groups declare theirs in `clarion.groups.config`, limits are in
`clarion.broker.limits`.

Command line, file, environment, DescribeConfigs, alteration while the broker runs and docs/configuration.md all come
from these declarations (`clarion.broker.settings`): a new setting is its field here, and whoever reads it.
Names are Kafka's where Kafka has one, ours begin with `clarion.`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from clarion.broker.limits import Limits
from clarion.groups.config import GroupConfig
from clarion.model.setting_kinds import (
    LONG_MAX,
    Kind,
    Rule,
    Value,
    at_least,
    between,
    one_of,
    setting,
    setting_in_seconds,
)
from clarion.world.log_levels import complaint_about

_GROUPS: Final = GroupConfig()
_LIMITS: Final = Limits()
_ONE: Final = at_least(1)
_SHORTEST_PAUSE_MS: Final = 50  # between two rounds of the same housekeeping


_SELECTORS: Final = "org.apache.kafka.common.replica."  # where Kafka has them
LEADER_SELECTORS: Final = ("LeaderSelector", f"{_SELECTORS}LeaderSelector")
RACK_AWARE_SELECTORS: Final = ("RackAwareReplicaSelector", f"{_SELECTORS}RackAwareReplicaSelector")


def _levels_complaint(value: Value) -> str | None:
    return complaint_about(value) if isinstance(value, str) else "String must be a level"


def _networks_complaint(value: Value) -> str | None:
    if not value:
        return None
    from clarion.consumers.addresses import read_networks  # which nobody else needs at a start

    try:
        read_networks(value if isinstance(value, tuple) else ())
    except ValueError as error:
        return str(error)
    return None


SQLITE_CATALOG: Final = "sqlite"


def _catalog_complaint(value: Value) -> str | None:
    is_known = value == SQLITE_CATALOG or str(value).startswith(("postgresql://", "postgresql+psycopg://"))
    return None if is_known else "write sqlite, or postgresql://USER:PASSWORD@HOST/DATABASE"


class Durability(StrEnum):
    FSYNC = "fsync"  # acks=all means on disk: flushed before the watermark passes it
    PAGE_CACHE = "page-cache"  # acks=all means in the page cache, as in Apache Kafka


@dataclass(frozen=True, slots=True)
class TlsConfig:
    certificate: str
    key: str
    client_ca: str | None = None  # with it, clients must show a certificate that this authority signed


@dataclass(frozen=True, slots=True)
class ListenerConfig:
    host: str = "127.0.0.1"
    port: int = 9092  # 0 picks a free one
    advertised_host: str | None = None  # what clients are told; the listening address where not given
    advertised_port: int | None = None
    tls: TlsConfig | None = None


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    data_dir: str
    listeners: tuple[ListenerConfig, ...] = (ListenerConfig(),)
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None  # None: no HTTP; 0 picks a free port
    http_is_auto: bool = False  # nobody has asked for this port: where it is taken, another one will do
    durability: Durability = Durability.FSYNC
    node_id: int = setting(
        "node.id",
        1,
        Kind.INT,
        "The broker's id; the data directory remembers it.",
        check=at_least(0),
    )
    cluster: str = setting(
        "clarion.cluster",
        "",
        Kind.STRING,
        "The store in which the brokers of a cluster agree: `file:PATH` for brokers on one machine, or "
        "`etcd://HOST:PORT,HOST:PORT`. Without it the broker is alone.",
    )
    catalog: str = setting(
        "clarion.catalog",
        SQLITE_CATALOG,
        Kind.STRING,
        "Where subscriptions are kept: `sqlite`, a file in the data directory, made with the first of them; or "
        "`postgresql://USER:PASSWORD@HOST/DATABASE`, which a cluster over etcd needs.",
        check=Rule("`sqlite` or `postgresql://…`", _catalog_complaint),
        is_sensitive=True,
    )
    rack: str = setting(
        "broker.rack",
        "",
        Kind.STRING,
        "Where the broker stands: replicas of a partition go to different racks.",
    )
    replica_selector: str = setting(
        "replica.selector.class",
        "LeaderSelector",
        Kind.STRING,
        "From which replica consumers read: the leader, or with `RackAwareReplicaSelector` one in their own rack "
        "(`client.rack`) if it is in sync (KIP-392).",
        check=one_of(*LEADER_SELECTORS, *RACK_AWARE_SELECTORS),
    )
    fill_share: float = setting(
        "clarion.replica.fill.share",
        0.2,  # measured: those who write notice little of it, and a replica gets tens of megabytes per second
        Kind.DOUBLE,
        "The share of the event loop's time in which this broker fills its replicas that are not in sync: those who "
        "write notice little of it. 1 is without pauses.",
        check=between(0.01, 1.0),
        is_dynamic=True,
    )
    leader_throttled_rate: int = setting(
        "leader.replication.throttled.rate",
        LONG_MAX,
        Kind.LONG,
        "Bytes per second that this broker sends to replicas which are not in sync, of those that "
        "`leader.replication.throttled.replicas` of their topic lists.",
        check=_ONE,
        is_dynamic=True,
    )
    follower_throttled_rate: int = setting(
        "follower.replication.throttled.rate",
        LONG_MAX,
        Kind.LONG,
        "Bytes per second that this broker fetches for replicas which are not in sync, of those that "
        "`follower.replication.throttled.replicas` of their topic lists.",
        check=_ONE,
        is_dynamic=True,
    )
    is_drained: bool = setting(
        "clarion.drained",
        False,
        Kind.BOOLEAN,
        "Whether this broker of a cluster leads nothing, and gets no replicas of new topics. `clarion cluster drain` "
        "sets it.",
        is_dynamic=True,
    )
    cluster_ca: str = setting(
        "clarion.tls.cluster.ca",
        "",
        Kind.STRING,
        "The authority, as PEM, that must have signed the certificates of the other brokers where the first of "
        "`listeners` speaks TLS: there brokers reach each other. Without it `clarion.tls.client.ca`, else those that "
        "the system trusts.",
    )
    session_seconds: float = setting_in_seconds(
        "broker.session.timeout.ms",
        6.0,
        "A broker of a cluster that is silent for so long is no longer waited for.",
        least_ms=1000,
    )
    probes_brokers: bool = setting(
        "clarion.controller.probe.brokers",
        True,
        Kind.BOOLEAN,
        "Over etcd: whether a broker whose machine refuses connections in its place counts as gone at once. To be "
        "switched off where something else answers for that machine, as address translation or a firewall does.",
    )
    rebalances_leaders: bool = setting(
        "auto.leader.rebalance.enable",
        True,
        Kind.BOOLEAN,
        "Whether the preferred leader of a partition, the first of its replicas, leads again by itself when it is back "
        "and in sync.",
    )
    rebalances_leaders_after_seconds: int = setting(
        "leader.imbalance.check.interval.seconds",
        5,  # Kafka's 300 leave one broker with nothing to do; at once costs clients two pauses instead of one
        Kind.LONG,
        "How long a preferred leader has to be in sync again before it leads again.",
        check=at_least(0),
    )
    keeps_events: bool = setting(
        "clarion.events.topic",
        True,
        Kind.BOOLEAN,
        "Whether what the cluster manager decides is kept in the topic `__cluster_events`, for 90 days or 100 MB. "
        "Without it the store has the latest 500 decisions.",
    )
    replace_after_ms: int = setting(
        "clarion.replica.replace.after.ms",
        600_000,  # longer than a restart, a reboot or an upgrade takes, and shorter than a night
        Kind.LONG,
        "When a broker has been away for so long, its replicas are filled on others, if there are any; -1: never.",
        check=at_least(-1),
        is_dynamic=True,
    )
    auto_create_topics: bool = setting(
        "auto.create.topics.enable",
        True,
        Kind.BOOLEAN,
        "Whether a topic is made when a client first asks for it.",
        old_names=("auto_create_topics",),
    )
    delete_topics: bool = setting(
        "delete.topic.enable",
        True,
        Kind.BOOLEAN,
        "Whether topics can be deleted; with `false` every DeleteTopics is refused.",
    )
    default_partitions: int = setting(
        "num.partitions",
        1,
        Kind.INT,
        "Partitions of a topic that does not say how many.",
        check=_ONE,
        old_names=("default_partitions",),
    )
    default_replication_factor: int = setting(
        "default.replication.factor",
        3,  # one may fail while another is being restarted
        Kind.INT,
        "Replicas of a topic that does not say how many; where there are fewer brokers, as many as there are.",
        check=_ONE,
    )
    offsets_partitions: int = setting(
        "offsets.topic.num.partitions",
        16,
        Kind.INT,
        "Partitions of `__consumer_offsets`; fixed once the topic exists.",
        check=_ONE,
        old_names=("offsets_partitions",),
    )
    share_state_partitions: int = setting(
        "share.coordinator.state.topic.num.partitions",
        16,
        Kind.INT,
        "Partitions of `__share_group_state`; fixed once the topic exists.",
        check=_ONE,
    )
    share_updates_per_snapshot: int = setting(
        "share.coordinator.snapshot.update.records.per.snapshot",
        500,
        Kind.INT,
        "Changes of one share-partition that are written one by one before a snapshot takes their place.",
        check=_ONE,
    )
    retention_check_seconds: float = setting_in_seconds(
        "log.retention.check.interval.ms",
        5.0,
        "How often old messages are deleted: they are kept at most so much longer.",
        least_ms=_SHORTEST_PAUSE_MS,
        old_names=("retention_check_seconds",),
    )
    compaction_check_seconds: float = setting_in_seconds(
        "log.cleaner.backoff.ms",
        15.0,
        "How often compacted topics are looked at.",
        least_ms=0,
        is_dynamic=True,
        old_names=("compaction_check_seconds",),
    )
    checkpoint_seconds: float = setting_in_seconds(
        "log.flush.offset.checkpoint.interval.ms",
        30.0,
        "How much of the log a start after a crash has to check again.",
        least_ms=_SHORTEST_PAUSE_MS,
        old_names=("checkpoint_seconds",),
    )
    scrub_bytes_per_second: int = setting(
        "clarion.scrub.bytes.per.second",
        5_000_000,  # a terabyte in two days and a half
        Kind.LONG,
        "How fast sealed files are checked for damage, once a day at most; 0 checks nothing.",
        check=at_least(0),
        is_dynamic=True,
    )
    producer_id_expiration_ms: int = setting(
        "producer.id.expiration.ms",
        86_400_000,
        Kind.INT,
        "How long an idle idempotent producer's sequence is remembered.",
        check=_ONE,
        is_dynamic=True,
    )
    reserve_bytes: int = setting(
        "clarion.disk.reserve.bytes",
        -1,
        Kind.LONG,
        "Free bytes of the disk below which messages are refused, while reading, deleting and committing go on; -1 is "
        "1 GB, or 5 % of a smaller disk.",
        check=at_least(-1),
        old_names=("reserve_bytes",),
    )
    push_private_networks: tuple[str, ...] = setting(
        "clarion.push.private.networks",
        (),
        Kind.LIST,
        "Networks that are not public and that webhooks may be sent to all the same, where their endpoint has "
        "`allow_private`: `127.0.0.0/8,10.1.0.0/16`. Without any, all such endpoints are refused.",
        check=Rule("networks, as `10.1.0.0/16`", _networks_complaint),
    )
    log_format: str = setting(
        "clarion.log.format",
        "text",
        Kind.STRING,
        "How log lines look, on stderr.",
        check=one_of("text", "json"),
        old_names=("log_format",),
    )
    log_level: str = setting(
        "clarion.log.level",
        "info",
        Kind.STRING,
        "Which log lines are written, and by whom: `info`, or `info,net=debug` for more of one component. `clarion "
        "log-level` changes it.",
        check=Rule("`debug` or `info` or `warning` or `error` or `COMPONENT=LEVEL`", _levels_complaint),
        is_dynamic=True,
        old_names=("log_level",),
    )
    is_insecure: bool = setting(
        "clarion.insecure",
        False,
        Kind.BOOLEAN,
        "Listen beyond loopback although there is no authentication yet: everybody who can connect may read, write "
        "and delete.",
        old_names=("insecure",),
    )
    http_api: str = setting(
        "clarion.http.api",
        "auto",
        Kind.STRING,
        "Whether topics, messages, groups and subscriptions are served on the HTTP port. `auto`: unless one of "
        "`listeners` asks for clients' certificates, which HTTP would be a way around.",
        check=one_of("auto", "on", "off"),
    )
    http_advertised: str = setting(
        "clarion.http.advertised",
        "",
        Kind.STRING,
        "The `HOST:PORT` at which clients are told to find HTTP. Where not given: where it listens.",
    )
    http_share: float = setting(
        "clarion.http.share",
        0.25,  # beside it Kafka's clients have three quarters of the loop, and wait a third longer at worst
        Kind.DOUBLE,
        "The share of the event loop's time that the HTTP API may have, over a second; beyond it, requests are "
        "answered 429. With 1.0 none is.",
        check=between(0.01, 1.0),
        is_dynamic=True,
    )
    http_connections_max: int = setting(
        "clarion.http.max.connections",
        1_000,
        Kind.INT,
        "Open connections of the HTTP API; idle ones give way to others.",
        check=_ONE,
        is_dynamic=True,
    )
    topic_defaults: Mapping[str, str] = field(default_factory=dict)  # topic settings by Kafka's names
    groups: GroupConfig = _GROUPS
    limits: Limits = _LIMITS

    @property
    def serves_http_api(self) -> bool:
        if self.http_api != "auto":
            return self.http_api == "on"
        return all(listener.tls is None or listener.tls.client_ca is None for listener in self.listeners)

    @property
    def reads_by_rack(self) -> bool:
        """Whether consumers are sent to followers in their racks, and followers serve them."""
        return self.replica_selector in RACK_AWARE_SELECTORS
