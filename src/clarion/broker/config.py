"""What the composition root tells a broker: one frozen value, filled from file, environment and flags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


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
class Limits:
    """Every limit protects the neighbours of whoever runs into it."""

    connections_max: int = 15_000  # ten thousand idle clients must fit with room to spare
    frame_bytes_max: int = 104_857_600  # Kafka's socket.request.max.bytes
    small_frame_bytes_max: int = 4 * 1024 * 1024  # broker/door.py says who has a reason to send more
    frames_memory_max: int = 128 * 1024 * 1024  # requests that arrive or wait, and replies not sent, of all connections
    connection_memory_max: int = 4 * 1024 * 1024  # the same of one, unless it is a single frame; a few usual batches
    requests_in_flight_max: int = 64  # per connection; clients keep 5 by default
    frame_bytes_per_second_min: int = 4096  # slower, and a megabyte takes longer than any client waits for its answer
    frame_seconds_max: float = 30.0  # so long may an unfinished frame stay below that rate
    idle_seconds_max: float = 600.0  # Kafka's connections.max.idle.ms
    fetch_bytes_max: int = 57_671_680  # Kafka's fetch.max.bytes
    groups_memory_max: int = 256 * 1024 * 1024  # members and offsets of all groups; half a million offsets
    group_memory_max: int = 16 * 1024 * 1024  # of one group's members: ten thousand with a kilobyte each
    fetch_sessions_max: int = 1_000  # Kafka's max.incremental.fetch.session.cache.slots
    open_files_max: int = 0  # 0: a quarter of what the process may open; sockets need the rest
    producers_max: int = 200_000  # idempotent ones that are remembered: half a kilobyte each
    partition_producers_max: int = 10_000  # the same of one partition: each snapshot lists all of them
    partitions_max: int = 20_000  # each has three files, and takes its share of every start, stop and scrape
    topic_partitions_max: int = 10_000  # an answer to Metadata lists all of a topic
    request_partitions_max: int = 10_000  # made by one request, as in Kafka: others wait for that long
    auto_created_per_request_max: int = 100  # topics that one Metadata may make: it has a few bytes for each
    auto_created_per_second_max: int = 100  # by all clients together


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    data_dir: str
    listeners: tuple[ListenerConfig, ...] = (ListenerConfig(),)
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None  # None: no metrics endpoint; 0 picks a free port
    durability: Durability = Durability.FSYNC
    node_id: int = 1
    auto_create_topics: bool = True
    default_partitions: int = 1
    offsets_partitions: int = 16  # partitions of __consumer_offsets; fixed once the topic exists
    retention_check_seconds: float = 5.0  # a message past its retention is kept at most this much longer
    compaction_check_seconds: float = 15.0
    checkpoint_seconds: float = 30.0  # how much of the log a start after `kill -9` has to check again
    group_initial_rebalance_delay_ms: int = 3_000
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_consumer_heartbeat_interval_ms: int = 5_000  # of KIP-848 groups, as in Kafka
    group_consumer_session_timeout_ms: int = 45_000
    group_max_size: int = 10_000
    offsets_retention_minutes: int = 10_080
    producer_id_expiration_ms: int = 86_400_000
    reserve_bytes: int = -1  # of the disk, for what the broker writes itself; -1: 1 GB, or 5 % of a smaller disk
    topic_defaults: Mapping[str, str] = field(default_factory=dict)  # topic settings by Kafka's names
    limits: Limits = Limits()
