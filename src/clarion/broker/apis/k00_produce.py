"""Produce v3-13: append batches, and answer when they are as safe as the client asked.

v3 format v2 and transactional ids · v5 log start offset · v7 zstd · v8 per-record errors · v9 flexible · v10 current
leader as a tagged field · v12 transactions without AddPartitionsToTxn · v13 topic ids. Versions 0-2 are advertised,
because old librdkafka takes the range for a feature flag, and refused: they carry message formats that are gone.

acks 0: no reply; a failure closes the connection, the only way left to tell. acks 1: after the append. acks all: after
the watermark has passed it. Left out: transactional batches, which come with transactions and are refused until then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import TopicId
from clarion.net import Connection, PendingReply, Reply
from clarion.replication import Partition
from clarion.wire.apis import PRODUCE
from clarion.wire.frames import RequestHeader, reply_head
from clarion.wire.produce import PartitionProduced, ProduceRequest, ProduceTopic, decode_request, encode_response

if TYPE_CHECKING:
    from clarion.broker.broker import Broker

ACKS_NONE = 0
ACKS_LEADER = 1
ACKS_ALL = -1
FIRST_VERSION_WITH_IDS = 13

TopicResult = tuple[str, TopicId, list[PartitionProduced]]


def serve(
    broker: Broker, connection: Connection, header: RequestHeader, body: memoryview
) -> Reply | PendingReply | None:
    request = decode_request(body, header.api_version)
    results: list[TopicResult] = []
    waiting = WaitingProduce(broker, header, results, request.timeout_ms)
    has_failed = False
    now_ms = broker.clock.now_ms()
    for topic in request.topics:
        produced: list[PartitionProduced] = []
        results.append((topic.name, topic.topic_id, produced))
        for partition in topic.partitions:
            try:
                produced.append(
                    _append(broker, header, request, topic, partition.index, partition.records, now_ms, waiting)
                )
            except KafkaError as error:
                has_failed = True
                produced.append(PartitionProduced(partition.index, int(error.code), -1, -1, -1, error.message or None))
    if request.acks == ACKS_NONE:
        if has_failed:
            connection.close()
        return None
    if request.acks == ACKS_LEADER or not waiting.subscribe():
        return _reply(header, results)
    return waiting.wait(connection)


def _append(
    broker: Broker,
    header: RequestHeader,
    request: ProduceRequest,
    topic: ProduceTopic,
    index: int,
    records: memoryview | None,
    now_ms: int,
    waiting: WaitingProduce,
) -> PartitionProduced:
    partition = _find(broker, header, topic, index)
    if request.acks not in (ACKS_ALL, ACKS_LEADER, ACKS_NONE):
        raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks is 0, 1 or all (-1), not {request.acks}")
    if request.transactional_id is not None:
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactions are not supported yet")
    if records is None or not len(records):
        raise KafkaError(ErrorCode.INVALID_RECORD, "there is no record batch to append")
    appended = partition.append(records, now_ms)
    waiting.add(partition, appended.last_offset)
    return PartitionProduced(index, 0, appended.base_offset, appended.log_append_time_ms, partition.start_offset)


def _find(broker: Broker, header: RequestHeader, topic: ProduceTopic, index: int) -> Partition:
    name = topic.name
    if header.api_version >= FIRST_VERSION_WITH_IDS:
        known = broker.registry.find_by_id(topic.topic_id)
        if known is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with id {topic.topic_id}")
        name = known.name
    if name in broker.closed_to_clients:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is written by the broker alone")
    return broker.partitions.get(name, index)


def _reply(header: RequestHeader, results: list[TopicResult]) -> Reply:
    body = encode_response(header.api_version, results)
    return [reply_head(PRODUCE, header.api_version, header.correlation_id, len(body)) + body]


class WaitingProduce:
    """A produce with acks=all whose batches are appended and not all committed."""

    __slots__ = ("_broker", "_header", "_left", "_pending", "_results", "_timeout_ms", "_written", "deadline")

    def __init__(self, broker: Broker, header: RequestHeader, results: list[TopicResult], timeout_ms: int) -> None:
        self._broker = broker
        self._header = header
        self._results = results
        self._timeout_ms = timeout_ms
        self._written: list[tuple[Partition, int, int, int]] = []
        self._left = 0
        self._pending: PendingReply | None = None
        self.deadline = 0.0

    def add(self, partition: Partition, last_offset: int) -> None:
        at = self._results[-1][2]
        self._written.append((partition, last_offset, len(self._results) - 1, len(at)))

    def subscribe(self) -> bool:
        """True if anything is still to be committed."""
        for partition, last_offset, topic_at, partition_at in self._written:
            self._left += 1

            def on_commit(code: ErrorCode, topic_at: int = topic_at, partition_at: int = partition_at) -> None:
                self._on_commit(code, topic_at, partition_at)

            if partition.when_committed(last_offset, on_commit):
                self._left -= 1
        return self._left > 0

    def wait(self, connection: Connection) -> PendingReply:
        self._pending = PendingReply(connection)
        self.deadline = self._broker.waiting_produces.add(self, self._timeout_ms)
        return self._pending

    def _on_commit(self, code: ErrorCode, topic_at: int, partition_at: int) -> None:
        if code is not ErrorCode.NONE:
            self._fail(code, topic_at, partition_at)
        self._left -= 1
        if self._left == 0:
            self._resolve()

    def time_out(self) -> None:
        """Nothing is known of what is not committed by now: it may still be."""
        for partition, last_offset, topic_at, partition_at in self._written:
            if last_offset >= partition.high_watermark.offset:
                self._fail(ErrorCode.REQUEST_TIMED_OUT, topic_at, partition_at)
        self._resolve()

    def _fail(self, code: ErrorCode, topic_at: int, partition_at: int) -> None:
        produced = self._results[topic_at][2]
        produced[partition_at] = PartitionProduced(produced[partition_at].index, int(code), -1, -1, -1)

    def _resolve(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            self._broker.waiting_produces.discard(self)
            pending.resolve(_reply(self._header, self._results))
