"""How far a pipeline is behind, per partition: in messages, bytes and seconds.

Spark tells where a batch ended, and only when it has ended. So a thread of the driver asks the brokers every few
seconds: where the partitions end, where the pipeline's group stands (the source stores that before every batch), and
for the header of the first batch that waits. From that come the size of a message (bytes are an estimate, as stored)
and since when the first one waits. A broker that does not answer leaves the lag unknown, not nought.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from struct import Struct
from typing import Final, NamedTuple

from clarion.model.errors import KafkaError
from clarion.model.ids import TopicPartition
from clarion.pipeline.connector_options import OptionError, connection_settings
from clarion.pipeline.definition import RunSettings
from clarion.pipeline.kafka.batches import HEADER_BYTES, LENGTH_PREFIX_BYTES
from clarion.pipeline.kafka.client import Client
from clarion.pipeline.kafka.errors import ConnectionLostError, CorruptDataError, TlsError
from clarion.pipeline.kafka.fetch import FETCH, WantedPartition, fetch_request, read_fetched
from clarion.pipeline.kafka.metadata import KnownTopic
from clarion.pipeline.kafka.offsets import LATEST, READ_UNCOMMITTED, fetch_committed, list_offsets
from clarion.pipeline.progress import PartitionLag, PipelineProgress
from clarion.pipeline.topic_reference import TopicReference
from clarion.world.clock import Clock, SystemClock

LOOK_SECONDS: Final = 5.0  # often enough for people and for Prometheus, and next to nothing for a broker
_PATIENCE_MS: Final = 2_000
# Each of these costs one small Fetch; whoever lags in more partitions knows enough from the largest.
FIRST_BATCHES_MAX: Final = 64
_HEADER: Final = Struct(">qi9xhiqq")  # base offset, length, …, attributes, last delta, times
_APPEND_TIME: Final = 0x08


class FirstBatch(NamedTuple):
    """The first batch that waits."""

    bytes_per_message: float
    timestamp_ms: int


def partition_lag(tp: TopicPartition, position: int, end: int, first: FirstBatch | None, now_ms: int) -> PartitionLag:
    messages = max(end - position, 0)
    if not messages:
        return PartitionLag(*tp, 0, 0, 0.0)
    if first is None:
        return PartitionLag(*tp, messages, None, None)
    # Where the producer gave it no time (-1) nobody knows since when it waits: certainly not since 1970.
    seconds = max(now_ms - first.timestamp_ms, 0) / 1000 if first.timestamp_ms >= 0 else None
    return PartitionLag(*tp, messages, round(messages * first.bytes_per_message), seconds)


def first_batch(header: bytes | memoryview) -> FirstBatch | None:
    """What a record batch's header says of its messages."""
    if len(header) < HEADER_BYTES:
        return None
    _, length, attributes, last_delta, base_ms, max_ms = _HEADER.unpack_from(header)
    size = (length + LENGTH_PREFIX_BYTES) / (last_delta + 1) if last_delta >= 0 else 0.0
    return FirstBatch(size, max_ms if attributes & _APPEND_TIME else base_ms)


class LagProbe:
    """Looks at the topics of one pipeline."""

    def __init__(
        self, progress: PipelineProgress, topics: Sequence[TopicReference], run: RunSettings, clock: Clock | None = None
    ) -> None:
        self._progress = progress
        self._group = run.group
        self._clock = clock or SystemClock()
        self._topics = topics
        self._run = run
        self._clients: dict[str, Client] = {}

    def look(self) -> None:
        try:
            found = [one for topic in self._topics for one in self._lags(topic, self._client(topic))]
        except (ConnectionLostError, CorruptDataError, TlsError, KafkaError, OptionError):
            self._progress.tell_lag(None)
        else:
            self._progress.tell_lag(found)

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def _client(self, topic: TopicReference) -> Client:
        options = topic.connection(self._run)
        where = options["bootstrap.servers"]
        if where not in self._clients:
            settings = connection_settings(options)
            self._clients[where] = Client(
                replace(settings, api_timeout_ms=_PATIENCE_MS, connect_timeout_ms=_PATIENCE_MS)
            )
        return self._clients[where]

    def _lags(self, topic: TopicReference, client: Client) -> list[PartitionLag]:
        names = None if topic.pattern else topic.names
        infos = {name: info for name, info in client.topics(names).items() if topic.matches(name)}
        places = [TopicPartition(info.name, each.number) for info in infos.values() for each in info.partitions]
        positions = self._positions(client, places)
        ends = list_offsets(client, dict.fromkeys(positions, LATEST), isolation=READ_UNCOMMITTED)
        behind = sorted((tp for tp in positions if ends[tp] > positions[tp]), key=lambda tp: positions[tp] - ends[tp])
        first = {tp: self._first(client, infos[tp.topic], tp, positions[tp]) for tp in behind[:FIRST_BATCHES_MAX]}
        now_ms = self._clock.now_ms()
        return [partition_lag(tp, positions[tp], ends[tp], first.get(tp), now_ms) for tp in sorted(positions)]

    def _positions(self, client: Client, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The group's; or where the last batch ended, which the group hears of with the next one."""
        stored = fetch_committed(client, self._group, places)
        reported = self._progress.last.ends if self._progress.last else {}
        known = {tp: max(stored[tp].offset if tp in stored else -1, reported.get(tp, -1)) for tp in places}
        return {tp: offset for tp, offset in known.items() if offset >= 0}

    def _first(self, client: Client, info: KnownTopic, tp: TopicPartition, position: int) -> FirstBatch | None:
        wanted = [WantedPartition(info.topic_id, tp.partition, position, 1)]
        request = fetch_request(wanted, isolation=READ_UNCOMMITTED, wait_ms=0, bytes_max=1)
        answer = client.ask(client.leader(*tp), FETCH, request)
        parts = read_fetched(answer)
        return first_batch(memoryview(answer.data)[parts[0].at : parts[0].at + parts[0].length]) if parts else None


class PipelineLagWatch:
    """Looks at the lag of all pipelines of a run now and then, in a thread of its own, while the block lasts."""

    def __init__(self, probes: Sequence[LagProbe]) -> None:
        self._probes = probes
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="lag", daemon=True)

    def __enter__(self) -> PipelineLagWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        for each in self._probes:
            each.close()

    def _watch(self) -> None:
        while not self._is_over.is_set():
            due = time.monotonic() + LOOK_SECONDS
            for each in self._probes:
                each.look()
            self._is_over.wait(max(due - time.monotonic(), 0.0))
