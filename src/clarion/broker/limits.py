"""A broker's limits: how much of everything clients may have. Declared as every setting is (`broker.config`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from clarion.model.setting_kinds import Kind, at_least, setting, setting_in_seconds

_ONE: Final = at_least(1)
_KILOBYTE: Final = at_least(1024)
_MEGABYTE: Final = at_least(1024 * 1024)


@dataclass(frozen=True, slots=True)
class Limits:
    """Every limit protects the neighbours of whoever runs into it."""

    connections_max: int = setting(
        "max.connections",
        15_000,  # ten thousand idle clients must fit with room to spare
        Kind.INT,
        "Open connections; those that are there when it falls may stay.",
        check=_ONE,
        is_dynamic=True,
        old_names=("limits.connections_max",),
    )
    frame_bytes_max: int = setting(
        "socket.request.max.bytes",
        104_857_600,
        Kind.INT,
        "The largest request (a Produce).",
        check=_KILOBYTE,
        old_names=("limits.frame_bytes_max",),
    )
    send_buffer_bytes: int = setting(
        "socket.send.buffer.bytes",
        256 * 1024,  # more, and the kernel does the reader's half of the work in our thread: twice the CPU per byte
        Kind.INT,
        "How much the kernel holds of replies that a client has not taken; -1 is the system's own choice, which grows "
        "with the distance: for clients that are far away.",
        check=at_least(-1),
    )
    small_frame_bytes_max: int = setting(
        "clarion.request.small.max.bytes",
        4 * 1024 * 1024,  # broker/request_limits.py says who has a reason to send more
        Kind.INT,
        "The largest request that is no Produce or Fetch; those that speak for a whole group may have a quarter of "
        "`socket.request.max.bytes`.",
        check=_KILOBYTE,
        old_names=("limits.small_frame_bytes_max",),
    )
    frames_memory_max: int = setting(
        "clarion.connections.memory.max.bytes",
        128 * 1024 * 1024,
        Kind.LONG,
        "Memory for requests that arrive or wait and for replies that are not sent, of all connections. Who wants more "
        "is not read from until there is room.",
        check=_MEGABYTE,
        old_names=("limits.frames_memory_max",),
    )
    connection_memory_max: int = setting(
        "clarion.connection.memory.max.bytes",
        4 * 1024 * 1024,  # a few usual batches
        Kind.LONG,
        "The same of one connection, unless it is a single request.",
        check=at_least(64 * 1024),
        old_names=("limits.connection_memory_max",),
    )
    requests_in_flight_max: int = setting(
        "clarion.connection.requests.max",
        64,  # clients keep 5 by default
        Kind.INT,
        "Unanswered requests of one connection; more wait in the socket.",
        check=_ONE,
        old_names=("limits.requests_in_flight_max",),
    )
    frame_bytes_per_second_min: int = setting(
        "clarion.request.bytes.per.second.min",
        4096,  # slower, and a megabyte takes longer than any client waits for its answer
        Kind.INT,
        "The least speed at which a request must arrive, in bytes per second.",
        check=_ONE,
        old_names=("limits.frame_bytes_per_second_min",),
    )
    frame_seconds_max: float = setting_in_seconds(
        "clarion.request.slow.max.ms",
        30.0,
        "How long a request may stay below that speed before its connection is closed; a tenth of it while others wait "
        "for memory.",
        least_ms=100,
        old_names=("limits.frame_seconds_max",),
    )
    idle_seconds_max: float = setting_in_seconds(
        "connections.max.idle.ms",
        600.0,
        "A connection that is silent for so long is closed.",
        least_ms=1000,
        old_names=("limits.idle_seconds_max",),
    )
    fetch_bytes_max: int = setting(
        "fetch.max.bytes",
        57_671_680,
        Kind.INT,
        "The most bytes in one answer to a Fetch.",
        check=_KILOBYTE,
        old_names=("limits.fetch_bytes_max",),
    )
    fetch_sessions_max: int = setting(
        "max.incremental.fetch.session.cache.slots",
        1_000,
        Kind.INT,
        "Incremental fetch sessions of all connections.",
        check=_ONE,
        old_names=("limits.fetch_sessions_max",),
    )
    open_files_max: int = setting(
        "clarion.open.files.max",
        0,  # a quarter of what the process may open; sockets need the rest
        Kind.INT,
        "Files of the log kept open; 0 takes a share of what the process may open.",
        check=at_least(0),
        old_names=("limits.open_files_max",),
    )
    producers_max: int = setting(
        "clarion.producers.max",
        200_000,  # half a kilobyte each
        Kind.INT,
        "Idempotent producers remembered; for more, the longest idle is forgotten.",
        check=_ONE,
        old_names=("limits.producers_max",),
    )
    partition_producers_max: int = setting(
        "clarion.partition.producers.max",
        10_000,  # each snapshot lists all of them
        Kind.INT,
        "The same, of one partition.",
        check=_ONE,
        old_names=("limits.partition_producers_max",),
    )
    partitions_max: int = setting(
        "clarion.partitions.max",
        20_000,  # each has three files, and takes its share of every start, stop and scrape
        Kind.INT,
        "Partitions of all topics.",
        check=_ONE,
        old_names=("limits.partitions_max",),
    )
    topic_partitions_max: int = setting(
        "clarion.topic.partitions.max",
        10_000,  # an answer to Metadata lists all of a topic
        Kind.INT,
        "Partitions of one topic.",
        check=_ONE,
        old_names=("limits.topic_partitions_max",),
    )
    request_partitions_max: int = setting(
        "clarion.request.partitions.max",
        10_000,  # as in Kafka: others wait for that long
        Kind.INT,
        "Partitions that one request may make.",
        check=_ONE,
        old_names=("limits.request_partitions_max",),
    )
    auto_created_per_request_max: int = setting(
        "clarion.auto.create.topics.per.request.max",
        100,  # a Metadata has a few bytes for each
        Kind.INT,
        "Topics that come into being by being asked for in one request.",
        check=_ONE,
        old_names=("limits.auto_created_per_request_max",),
    )
    auto_created_per_second_max: int = setting(
        "clarion.auto.create.topics.per.second.max",
        100,
        Kind.INT,
        "Topics that come into being by being asked for, by all clients.",
        check=_ONE,
        old_names=("limits.auto_created_per_second_max",),
    )
