"""The broker's numbers for Prometheus, and its health for whoever supervises it.

Nothing is counted twice: a scrape reads the state that is there anyway, so the hot path pays for plain integers only.
`/healthz`: the process answers. `/readyz`: groups are loaded, every log can be written, the disk has room for it,
and in a cluster the broker's lease is valid.
`/metrics`: the numbers. Each is declared together with how it is read, in the tables below.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from clarion.broker.cluster_metrics import OF_THE_CLUSTER, REPLICATION_LAG, cluster_samples
from clarion.broker.endpoint_health import OF_ENDPOINTS
from clarion.broker.http_numbers import OF_HTTP, HttpNumbers
from clarion.broker.loop_lag import LoopLag
from clarion.broker.metrics_page import LEFT_OUT, Metric, MetricsPage, Sample
from clarion.cluster import Endpoint
from clarion.net.http import HttpApi, HttpServer, MakePage, Page
from clarion.replication import Partition
from clarion.wire.apis import APIS, FETCH, PRODUCE

if TYPE_CHECKING:
    from clarion.broker.server import BrokerServer


OpenGateway = Callable[["BrokerServer", HttpNumbers, Mapping[str, MakePage]], HttpApi]

TOPIC = ("topic",)
PARTITION = ("topic", "partition")
GROUP = ("group",)
GROUP_PARTITION = ("group", "topic", "partition")
_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

# A metric and how it is read stand together; the page, docs/metrics.md and the test that all of them are there come
# from these tables: a new metric is one entry here.


def _of_the_broker() -> tuple[tuple[Metric, Callable[[BrokerServer], float]], ...]:
    return (
        (
            Metric("clarion_connections", "gauge", "Open client connections."),
            lambda server: len(server.net.connections),
        ),
        (
            Metric("clarion_connections_refused_total", "counter", "Connections refused because of the limit."),
            lambda server: server.net.refused_total,
        ),
        (
            Metric("clarion_malformed_frames_total", "counter", "Connections ended because their bytes made no sense."),
            lambda server: server.net.malformed_total,
        ),
        (
            Metric("clarion_tls_handshakes_failed_total", "counter", "TLS connections that never shook hands."),
            lambda server: server.net.handshakes_failed_total,
        ),
        (
            Metric(
                "clarion_frames_memory_bytes", "gauge", "Held for requests that arrive or wait and replies not sent."
            ),
            lambda server: server.net.budget.held_bytes,
        ),
        (
            Metric("clarion_request_errors_total", "counter", "Requests that ended in an unexpected error."),
            lambda server: server.dispatch.errors_total,
        ),
        (
            Metric("clarion_produces_waiting", "gauge", "Produces with acks=all that wait for their commit."),
            lambda server: len(server.broker.waiting_produces),
        ),
        (
            Metric("clarion_fetch_sessions", "gauge", "Fetch sessions held."),
            lambda server: len(server.broker.sessions),
        ),
        (
            Metric("clarion_flushes_total", "counter", "Group commits: flushes of a partition to disk."),
            lambda server: server.commits.flushes_total,
        ),
        (
            Metric("clarion_topics", "gauge", "Topics."),
            lambda server: len(server.broker.image.topics),
        ),
        (
            Metric("clarion_partitions", "gauge", "Partitions."),
            lambda server: server.broker.image.partition_total,
        ),
        (
            Metric("clarion_partitions_offline", "gauge", "Partitions that a disk error took out of service."),
            lambda server: sum(1 for one in server.broker.partitions if one.failure is not None),
        ),
        (
            Metric("clarion_subscriptions", "gauge", "Subscriptions in the catalog, as this broker knows it."),
            lambda server: len(server.broker.subscriptions.all()),
        ),
        (
            Metric(
                "clarion_catalog_up", "gauge", "1 where the catalog answers, or was never needed; 0 while it is away."
            ),
            lambda server: int(not server.broker.subscriptions.is_away),
        ),
        (
            Metric("clarion_partitions_damaged", "gauge", "Partitions that hold something else than what was written."),
            lambda server: sum(1 for one in server.broker.partitions if one.is_damaged),
        ),
        (
            Metric(
                "clarion_scrubbed_bytes_total", "counter", "Bytes of sealed files that were compared with checksums."
            ),
            lambda server: server.housekeeping.scrubber.bytes_total,
        ),
        (
            Metric("clarion_disk_free_bytes", "gauge", "Free bytes of the disk with the data directory."),
            lambda server: server.broker.partitions.room.free_bytes,
        ),
        (
            Metric("clarion_disk_reserve_bytes", "gauge", "Free bytes below which messages are refused."),
            lambda server: server.broker.partitions.room.reserve_bytes,
        ),
        (
            Metric("clarion_retention_messages_total", "counter", "Messages deleted by retention."),
            lambda server: server.broker.cleaner.retention_messages_total,
        ),
        (
            Metric("clarion_compaction_saved_bytes_total", "counter", "Bytes that compaction gave back."),
            lambda server: server.broker.cleaner.compaction_saved_bytes_total,
        ),
    )


OF_THE_BROKER: Final = _of_the_broker()
OF_A_TOPIC: Final[tuple[tuple[Metric, Callable[[Partition], float]], ...]] = (  # the sum over its partitions
    (Metric("clarion_bytes_in_total", "counter", "Bytes of batches appended.", TOPIC), lambda one: one.bytes_in_total),
    (Metric("clarion_messages_in_total", "counter", "Messages appended.", TOPIC), lambda one: one.messages_in_total),
    (Metric("clarion_bytes_out_total", "counter", "Bytes of batches fetched.", TOPIC), lambda one: one.bytes_out_total),
    (
        Metric("clarion_replication_bytes_in_total", "counter", "Bytes of batches fetched from leaders.", TOPIC),
        lambda one: one.replicated_in_total,
    ),
    (
        Metric("clarion_replication_bytes_out_total", "counter", "Bytes of batches fetched by followers.", TOPIC),
        lambda one: one.replicated_out_total,
    ),
)
OF_A_PARTITION: Final[tuple[tuple[Metric, Callable[[Partition], float]], ...]] = (
    (
        Metric("clarion_log_size_bytes", "gauge", "Bytes of the log on disk.", PARTITION),
        lambda one: one.size_bytes,
    ),
    (
        Metric("clarion_log_start_offset", "gauge", "The first offset that can be read.", PARTITION),
        lambda one: one.start_offset,
    ),
    (
        Metric("clarion_log_end_offset", "gauge", "The next offset to be written.", PARTITION),
        lambda one: one.next_offset,
    ),
    (
        Metric("clarion_high_watermark_offset", "gauge", "The first offset that is not committed yet.", PARTITION),
        lambda one: one.high_watermark.offset,
    ),
)
LOOP_LAG: Final = Metric(
    "clarion_event_loop_lag_seconds",
    "gauge",
    "The most that the event loop was late in the last 15 to 30 seconds; every client waits that long.",
)
REQUESTS: Final = Metric("clarion_requests_total", "counter", "Requests served, by API.", ("api",))
REQUEST_SECONDS: Final = Metric(
    "clarion_request_duration_seconds",
    "histogram",
    "From a request to its reply, by API; with the time for which Fetch and JoinGroup were told to wait.",
    ("api",),
)
FLUSH_SECONDS: Final = Metric(
    "clarion_flush_duration_seconds", "histogram", "Flushes of a partition to disk: what acks=all waits for."
)
MEMBERS: Final = Metric("clarion_group_members", "gauge", "Members of a group.", GROUP)
COMMITTED: Final = Metric(
    "clarion_group_committed_offset", "gauge", "The offset a group has committed.", GROUP_PARTITION
)
LAG: Final = Metric(
    "clarion_group_lag_messages", "gauge", "Messages that a group has not committed yet.", GROUP_PARTITION
)

HELD: Final = Metric(
    "clarion_retention_held_bytes",
    "gauge",
    "Bytes of a partition that are there because this subscription or group needs them, as of the last check.",
    ("topic", "partition", "holder"),
)

METRICS: Final = {
    one.name: one
    for one in (
        *(metric for metric, _ in OF_THE_BROKER),
        *(metric for metric, _ in OF_THE_CLUSTER),
        REPLICATION_LAG,
        LOOP_LAG,
        REQUESTS,
        REQUEST_SECONDS,
        FLUSH_SECONDS,
        *(metric for metric, _ in OF_A_TOPIC),
        *(metric for metric, _ in OF_A_PARTITION),
        MEMBERS,
        COMMITTED,
        LAG,
        *OF_ENDPOINTS,
        HELD,
        *OF_HTTP,
        Metric(LEFT_OUT, "gauge", "Series that this page had no room for."),
    )
}


class MetricsEndpoint:
    def __init__(self, server: BrokerServer, gateway: OpenGateway | None = None) -> None:
        self._server = server
        self._lag = LoopLag()
        self._page = MetricsPage(METRICS, self._samples)
        self._numbers = HttpNumbers()
        pages: dict[str, MakePage] = {"/healthz": self._healthz, "/readyz": self._readyz}
        large_pages: dict[str, MakePage] = {"/metrics": self._metrics}
        self.api = None if gateway is None else gateway(server, self._numbers, {**pages, **large_pages})
        self._http = HttpServer(pages, large_pages, self.api, self._own_name)

    async def listen(self, host: str, port: int, *, or_any: bool = False) -> Endpoint:
        """`or_any`: at a free port where this one is taken."""
        try:
            return Endpoint(*await self._http.listen(host, port))
        except OSError as error:
            if not or_any or error.errno != errno.EADDRINUSE:
                raise
        return Endpoint(*await self._http.listen(host, 0))

    async def stop(self) -> None:
        if self.api is not None:
            await self.api.stop()
        await self._http.stop()
        await self._page.stop()
        self._lag.stop()

    def _own_name(self) -> str:
        return self._server.broker.config.http_advertised.rpartition(":")[0]

    async def _healthz(self) -> Page:
        return Page.text(200, "ok\n")

    async def _readyz(self) -> Page:
        reason = not_ready_because(self._server)
        return Page.text(200, "ready\n") if reason is None else Page.text(503, f"{reason}\n")

    async def _metrics(self) -> Page:
        return Page(200, _CONTENT_TYPE, await self._page.get())

    def _samples(self) -> Iterator[Sample]:
        yield LOOP_LAG.name, (), self._lag.worst_seconds()
        yield from self._numbers.samples()
        yield from _samples(self._server)


def not_ready_because(server: BrokerServer) -> str | None:
    """None: it is ready."""
    loading = [str(one.partition.tp) for one in server.groups.shards if one.is_loading]
    closed = [f"{one.partition.tp} ({one.failure})" for one in server.groups.shards if one.failure]
    offline = [str(one.tp) for one in server.broker.partitions if one.failure is not None]
    room = server.broker.partitions.room
    if room.is_short:
        return room.sentence
    if server.node is not None and not server.node.lease_is_valid():
        return "this broker's lease is over: it acknowledges nothing until the store answers and it joins again"
    if offline:
        return f"offline after a disk error: {', '.join(offline[:10])}"
    if closed:
        return f"groups cannot be loaded: {', '.join(closed[:10])}"
    if loading:
        return f"groups are loading: {', '.join(loading[:10])}"
    return None


def _samples(server: BrokerServer) -> Iterator[Sample]:
    for metric, of_broker in OF_THE_BROKER:
        yield metric.name, (), of_broker(server)
    yield from cluster_samples(server.broker)
    for key, count in server.dispatch.requests_total().items():
        yield REQUESTS.name, (APIS[key].name,), count
    for key, histogram in server.dispatch.latencies.histograms(PRODUCE, FETCH).items():
        yield REQUEST_SECONDS.name, (APIS[key].name,), histogram.copy()
    yield FLUSH_SECONDS.name, (), server.commits.durations.copy()
    for topic in list(server.broker.image.topics.values()):
        yield from _topic_samples(topic.name, server.broker.partitions.of_topic(topic))
    yield from _group_samples(server)
    yield from server.broker.endpoints.samples()
    for tp, holder, held_bytes in server.broker.cleaner.held():
        yield HELD.name, (tp.topic, str(tp.partition), holder), held_bytes


def _topic_samples(topic: str, partitions: list[Partition]) -> Iterator[Sample]:
    for metric, value in OF_A_TOPIC:
        yield metric.name, (topic,), sum(map(value, partitions))
    for partition in partitions:
        labels = (topic, str(partition.tp.partition))
        for metric, value in OF_A_PARTITION:
            yield metric.name, labels, value(partition)


def _group_samples(server: BrokerServer) -> Iterator[Sample]:
    for summary in server.groups.summaries():
        yield MEMBERS.name, (summary.group_id,), summary.members
    for group, tp, offset in server.groups.committed():
        labels = (group, tp.topic, str(tp.partition))
        yield COMMITTED.name, labels, offset
        topic = server.broker.image.topic(tp.topic)
        partition = None if topic is None else server.broker.partitions.find(topic.id, tp.partition)
        if partition is not None:
            lag = max(0, partition.high_watermark.offset - max(offset, partition.start_offset))
            yield LAG.name, labels, lag
