"""The broker's numbers for Prometheus, and its health for whoever supervises it.

Nothing is counted twice: a scrape reads the state that is there anyway, so the hot path pays for plain integers only.
`/healthz`: the process answers. `/readyz`: groups are loaded, every log can be written, and the disk has room for it.
`/metrics`: the numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from clarion.broker.metrics_page import LEFT_OUT, Metric, MetricsPage, Sample
from clarion.cluster import Endpoint
from clarion.net.http import HttpServer, Page
from clarion.replication import Partition
from clarion.wire.apis import APIS

if TYPE_CHECKING:
    from clarion.broker.server import BrokerServer


TOPIC = ("topic",)
PARTITION = ("topic", "partition")
GROUP = ("group",)
_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
GROUP_PARTITION = ("group", "topic", "partition")

METRICS = {
    one.name: one
    for one in (
        Metric("clarion_connections", "gauge", "Open client connections."),
        Metric("clarion_connections_refused_total", "counter", "Connections refused because of the limit."),
        Metric("clarion_malformed_frames_total", "counter", "Connections ended because their bytes made no sense."),
        Metric("clarion_tls_handshakes_failed_total", "counter", "TLS connections that never shook hands."),
        Metric("clarion_frames_memory_bytes", "gauge", "Held for requests that arrive or wait and replies not sent."),
        Metric("clarion_requests_total", "counter", "Requests served, by API.", ("api",)),
        Metric("clarion_request_errors_total", "counter", "Requests that ended in an unexpected error."),
        Metric("clarion_produces_waiting", "gauge", "Produces with acks=all that wait for their commit."),
        Metric("clarion_fetch_sessions", "gauge", "Fetch sessions held."),
        Metric("clarion_flushes_total", "counter", "Group commits: flushes of a partition to disk."),
        Metric("clarion_topics", "gauge", "Topics."),
        Metric("clarion_partitions", "gauge", "Partitions."),
        Metric("clarion_partitions_offline", "gauge", "Partitions that a disk error took out of service."),
        Metric("clarion_disk_free_bytes", "gauge", "Free bytes of the disk with the data directory."),
        Metric("clarion_disk_reserve_bytes", "gauge", "Free bytes below which messages are refused."),
        Metric("clarion_retention_messages_total", "counter", "Messages deleted by retention."),
        Metric("clarion_compaction_saved_bytes_total", "counter", "Bytes that compaction gave back."),
        Metric("clarion_bytes_in_total", "counter", "Bytes of batches appended.", TOPIC),
        Metric("clarion_messages_in_total", "counter", "Messages appended.", TOPIC),
        Metric("clarion_bytes_out_total", "counter", "Bytes of batches fetched.", TOPIC),
        Metric("clarion_log_size_bytes", "gauge", "Bytes of the log on disk.", PARTITION),
        Metric("clarion_log_start_offset", "gauge", "The first offset that can be read.", PARTITION),
        Metric("clarion_log_end_offset", "gauge", "The next offset to be written.", PARTITION),
        Metric("clarion_high_watermark_offset", "gauge", "The first offset that is not committed yet.", PARTITION),
        Metric("clarion_group_members", "gauge", "Members of a group.", GROUP),
        Metric("clarion_group_committed_offset", "gauge", "The offset a group has committed.", GROUP_PARTITION),
        Metric("clarion_group_lag_messages", "gauge", "Messages that a group has not committed yet.", GROUP_PARTITION),
        Metric(LEFT_OUT, "gauge", "Series that this page had no room for."),
    )
}


class MetricsEndpoint:
    def __init__(self, server: BrokerServer) -> None:
        self._server = server
        self._page = MetricsPage(METRICS, lambda: _samples(server))
        self._http = HttpServer({"/healthz": self._healthz, "/readyz": self._readyz}, {"/metrics": self._metrics})

    async def listen(self, host: str, port: int) -> Endpoint:
        return Endpoint(*await self._http.listen(host, port))

    async def stop(self) -> None:
        await self._http.stop()
        await self._page.stop()

    async def _healthz(self) -> Page:
        return Page.text(200, "ok\n")

    async def _readyz(self) -> Page:
        loading = [str(one.partition.tp) for one in self._server.groups.shards if one.is_loading]
        closed = [f"{one.partition.tp} ({one.failure})" for one in self._server.groups.shards if one.failure]
        offline = [str(one.tp) for one in self._server.broker.partitions if one.failure is not None]
        room = self._server.broker.partitions.room
        if room.is_short:
            return Page.text(503, f"{room.sentence}\n")
        if offline:
            return Page.text(503, f"offline after a disk error: {', '.join(offline[:10])}\n")
        if closed:
            return Page.text(503, f"groups cannot be loaded: {', '.join(closed[:10])}\n")
        if loading:
            return Page.text(503, f"groups are loading: {', '.join(loading[:10])}\n")
        return Page.text(200, "ready\n")

    async def _metrics(self) -> Page:
        return Page(200, _CONTENT_TYPE, await self._page.get())


def _samples(server: BrokerServer) -> Iterator[Sample]:
    yield from _broker_samples(server)
    for topic in list(server.broker.image.topics.values()):
        partitions = server.broker.partitions.of_topic(topic)
        yield from _topic_samples(topic.name, partitions)
        for partition in partitions:
            yield from _partition_samples(partition)
    yield from _group_samples(server)


def _broker_samples(server: BrokerServer) -> Iterator[Sample]:
    broker = server.broker
    yield "clarion_connections", (), len(server.net.connections)
    yield "clarion_connections_refused_total", (), server.net.refused_total
    yield "clarion_malformed_frames_total", (), server.net.malformed_total
    yield "clarion_tls_handshakes_failed_total", (), server.net.handshakes_failed_total
    yield "clarion_frames_memory_bytes", (), server.net.budget.held_bytes
    for key, count in server.dispatch.requests_total.items():
        yield "clarion_requests_total", (APIS[key].name,), count
    yield "clarion_request_errors_total", (), server.dispatch.errors_total
    yield "clarion_produces_waiting", (), len(broker.waiting_produces)
    yield "clarion_fetch_sessions", (), len(broker.sessions)
    yield "clarion_flushes_total", (), server.commits.flushes_total
    yield "clarion_topics", (), len(broker.image.topics)
    yield "clarion_partitions", (), broker.image.partition_total
    yield "clarion_partitions_offline", (), sum(1 for one in broker.partitions if one.failure is not None)
    yield "clarion_disk_free_bytes", (), broker.partitions.room.free_bytes
    yield "clarion_disk_reserve_bytes", (), broker.partitions.room.reserve_bytes
    yield "clarion_retention_messages_total", (), broker.cleaner.retention_messages_total
    yield "clarion_compaction_saved_bytes_total", (), broker.cleaner.compaction_saved_bytes_total


def _topic_samples(topic: str, partitions: list[Partition]) -> Iterator[Sample]:
    yield "clarion_bytes_in_total", (topic,), sum(one.bytes_in_total for one in partitions)
    yield "clarion_messages_in_total", (topic,), sum(one.messages_in_total for one in partitions)
    yield "clarion_bytes_out_total", (topic,), sum(one.bytes_out_total for one in partitions)


def _partition_samples(partition: Partition) -> Iterator[Sample]:
    labels = (partition.tp.topic, str(partition.tp.partition))
    yield "clarion_log_size_bytes", labels, partition.size_bytes
    yield "clarion_log_start_offset", labels, partition.start_offset
    yield "clarion_log_end_offset", labels, partition.next_offset
    yield "clarion_high_watermark_offset", labels, partition.high_watermark.offset


def _group_samples(server: BrokerServer) -> Iterator[Sample]:
    for summary in server.groups.summaries():
        yield "clarion_group_members", (summary.group_id,), summary.members
    for group, tp, offset in server.groups.committed():
        labels = (group, tp.topic, str(tp.partition))
        yield "clarion_group_committed_offset", labels, offset
        topic = server.broker.image.topic(tp.topic)
        partition = None if topic is None else server.broker.partitions.find(topic.id, tp.partition)
        if partition is not None:
            lag = max(0, partition.high_watermark.offset - max(offset, partition.start_offset))
            yield "clarion_group_lag_messages", labels, lag
