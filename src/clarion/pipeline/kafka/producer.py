"""An idempotent writer: batches leave in order, several requests are under way, nothing is written twice by a retry.

Every batch carries this producer's id and a sequence, so a broker that sees it again (the answer was lost, the broker
restarted) answers with the first time's offset. As long as all goes well, requests are sent ahead of their answers, at
most five at a time, which is as far as a broker remembers. Only the first batch of a partition goes alone: a broker
that has nothing of a producer yet takes whatever sequence comes, also the second batch's if it refused the first. When
anything may have gone wrong, all that has no answer is collected and sent again, one batch of each partition at a time,
in order, until it is through or the time is over; then the writer goes on as before.

A batch that is too large for its topic is halved until it fits. A producer that the broker no longer knows (its log
lost what it had of us) starts again under a new id: that may write a batch twice, and never loses one.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import TopicPartition
from clarion.pipeline.kafka.client import Client
from clarion.pipeline.kafka.connection import BrokerConnection, Buffer
from clarion.pipeline.kafka.encode import EncodedBatch, Messages, assemble, cut_batches, encode_records, size_bounds
from clarion.pipeline.kafka.errors import ConnectionLostError, RefusedRowError, may_pass, refusal
from clarion.pipeline.kafka.produce import (
    INIT_PRODUCER_ID,
    PRODUCE,
    Produced,
    ProducerId,
    init_producer_request,
    produce_request,
    read_produced,
    read_producer_id,
)

IN_FLIGHT_MAX: Final = 5  # requests per broker: as many batches as a broker remembers of a producer
_SEQUENCE_MASK: Final = 0x7FFFFFFF
_DONE: Final = (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
# The broker and we disagree about what came last: normal behind a batch that failed, else a reason to start anew.
_OUT_OF_STEP: Final = (
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INVALID_PRODUCER_EPOCH,
)


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    compression: int = 0
    # Kafka's default for a topic's largest batch is 1048588 bytes; what we make stays under it.
    batch_bytes_max: int = 1_000_000
    request_bytes_max: int = 1_048_576
    request_timeout_ms: int = 30_000
    delivery_timeout_ms: int = 120_000


@dataclass(slots=True)
class ProducerBatch:
    """Rows on their way to one partition."""

    tp: TopicPartition
    rows: Messages
    positions: NDArray[np.int64]  # of the rows in what the caller was given, for messages to people
    sequence: int
    data: EncodedBatch

    def __str__(self) -> str:
        first, last = int(self.positions[0]), int(self.positions[-1])
        return f"row {first}" if first == last else f"one of the rows {first} to {last}"


class IdempotentProducer:
    def __init__(self, client: Client, settings: ProducerSettings) -> None:
        self.written: Counter[TopicPartition] = Counter()  # messages, since `begin`
        self._client = client
        self._settings = settings
        self._batch_bytes_max: dict[str, int] = {}  # of topics that take less than the settings say
        self._id: ProducerId | None = None
        self._sequences: dict[TopicPartition, int] = {}
        self._known: set[TopicPartition] = set()  # partitions that have taken a batch of ours, since `begin`
        self._in_flight: dict[int, deque[list[ProducerBatch]]] = {}
        self._connections: dict[int, BrokerConnection] = {}
        self._unsure: list[ProducerBatch] = []  # sent, and neither acknowledged nor refused for good

    def begin(self) -> None:
        """Forget what earlier callers wrote. The producer's id and its connections stay: a broker remembers every id
        for a day, so a new one for every task would cost it a gigabyte of memory."""
        assert not self._unsure, "what was not flushed may not be written; whoever failed must not go on with it"
        self.written.clear()
        self._known.clear()  # the broker may have forgotten us meanwhile, or the topic been made again

    def write(self, rows: Messages, groups: Sequence[tuple[TopicPartition, int]], positions: NDArray[np.int64]) -> None:
        """Send rows that are sorted by partition; `groups` says at which row each partition begins.

        Returns when the last of them is on its way, not when it has arrived.
        """
        for leader, batches in self._requests(self._encode(rows, groups, positions)):
            self._send(leader, batches)

    def flush(self) -> None:
        """Wait until everything is acknowledged."""
        self._take_all_answers()
        if self._unsure:
            self._send_again()

    def close(self) -> None:
        """Whatever has not been flushed may or may not be written."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # Encoding

    def _encode(
        self, rows: Messages, groups: Sequence[tuple[TopicPartition, int]], positions: NDArray[np.int64]
    ) -> list[ProducerBatch]:
        group_starts = np.array([start for _, start in groups], np.int64)
        limit = self._settings.batch_bytes_max
        bytes_max = min(self._batch_bytes_max.get(tp.topic, limit) for tp, _ in groups)
        starts = cut_batches(size_bounds(rows), group_starts, bytes_max)
        owners = np.searchsorted(group_starts, starts, side="right") - 1
        records = encode_records(rows, starts)
        out: list[ProducerBatch] = []
        for nth, (start, owner) in enumerate(zip(starts.tolist(), owners.tolist(), strict=True)):
            tp, count = groups[owner][0], records.counts[nth]
            data = assemble(records, nth, compression=self._settings.compression)
            batch = ProducerBatch(tp, rows.slice(start, count), positions[start : start + count], 0, data)
            self._number(batch)
            out.append(batch)
        return out

    def _number(self, batch: ProducerBatch) -> None:
        """Give a batch its place behind the last one of its partition."""
        producer = self._producer_id()
        batch.sequence = self._sequences.get(batch.tp, 0)
        self._sequences[batch.tp] = (batch.sequence + batch.rows.count) & _SEQUENCE_MASK
        batch.data.stamp(producer.number, producer.epoch, batch.sequence)

    def _producer_id(self) -> ProducerId:
        if self._id is None:
            self._id = self._client.keep_trying(
                lambda: read_producer_id(self._client.ask_any(INIT_PRODUCER_ID, init_producer_request()))
            )
        return self._id

    def _requests(self, batches: list[ProducerBatch]) -> list[tuple[int, list[ProducerBatch]]]:
        """Batches by leader, at most one of each partition in a request."""
        out: list[tuple[int, list[ProducerBatch]]] = []
        latest: dict[int, list[ProducerBatch]] = {}
        for batch in batches:
            leader = self._leader(batch.tp)
            request = latest.get(leader)
            if request is None or not self._has_room(request, batch):
                request = latest[leader] = []
                out.append((leader, request))
            request.append(batch)
        return out

    def _has_room(self, request: list[ProducerBatch], batch: ProducerBatch) -> bool:
        size = sum(one.data.size for one in request) + batch.data.size
        return size <= self._settings.request_bytes_max and all(one.tp != batch.tp for one in request)

    def _leader(self, tp: TopicPartition) -> int:
        return self._client.keep_trying(lambda: self._client.leader(*tp))

    # As long as all goes well

    def _send(self, leader: int, batches: list[ProducerBatch]) -> None:
        self._wait_for_first_answers({batch.tp for batch in batches} - self._known)
        in_flight = self._in_flight.setdefault(leader, deque())
        while len(in_flight) >= IN_FLIGHT_MAX:
            self._take_answer(leader)
        if self._unsure:
            self._unsure += batches
            self._send_again()
            return
        in_flight.append(batches)
        try:
            if leader not in self._connections:
                self._connections[leader] = self._client.open_connection(leader)
            self._connections[leader].send(PRODUCE, *self._request(batches))
        except ConnectionLostError:
            self._lose(leader)

    def _wait_for_first_answers(self, unknown: set[TopicPartition]) -> None:
        for leader, in_flight in list(self._in_flight.items()) if unknown else ():
            while any(batch.tp in unknown for batches in in_flight for batch in batches):
                self._take_answer(leader)

    def _request(self, batches: list[ProducerBatch]) -> list[Buffer]:
        ones = [(batch.tp.topic, batch.tp.partition, batch.data) for batch in batches]
        return produce_request(ones, timeout_ms=self._settings.request_timeout_ms)

    def _take_answer(self, leader: int) -> None:
        """The oldest answer that a broker owes."""
        try:
            answer = self._connections[leader].receive(extra_ms=self._settings.request_timeout_ms)
        except ConnectionLostError:
            self._lose(leader)
            return
        batches = self._in_flight[leader].popleft()
        self._unsure += self._settle(batches, read_produced(answer))

    def _take_all_answers(self) -> None:
        for leader, in_flight in list(self._in_flight.items()):
            while in_flight:
                self._take_answer(leader)

    def _lose(self, leader: int) -> None:
        """A connection is gone: whatever had no answer may or may not have been written."""
        connection = self._connections.pop(leader, None)
        if connection is not None:
            connection.close()
        in_flight = self._in_flight[leader]
        while in_flight:
            self._unsure += in_flight.popleft()

    # Answers

    def _settle(self, batches: list[ProducerBatch], answers: list[Produced]) -> list[ProducerBatch]:
        """Note what was written; give back what must be sent again."""
        by_place = {TopicPartition(one.topic, one.partition): one for one in answers}
        again: list[ProducerBatch] = []
        for batch in batches:
            answer = by_place.get(batch.tp)
            if answer is None:
                again.append(batch)
            elif answer.error_code in _DONE:
                self.written[batch.tp] += batch.rows.count
                self._known.add(batch.tp)
            elif answer.error_code == ErrorCode.MESSAGE_TOO_LARGE:
                again += self._halve(batch)
            else:
                self._judge(batch, answer)
                again.append(batch)
        return again

    def _judge(self, batch: ProducerBatch, answer: Produced) -> None:
        """Raise what will not be different next time."""
        error = refusal(answer.error_code, f"write to {batch.tp}", answer.message)
        if error.code == ErrorCode.INVALID_RECORD:
            raise RefusedRowError(f"{batch} cannot be written to {batch.tp}: {answer.message or error.code.name}")
        if not (may_pass(error) or error.code in (*_OUT_OF_STEP, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)):
            raise error
        self._client.forget_leaders([batch.tp.topic])

    def _halve(self, batch: ProducerBatch) -> list[ProducerBatch]:
        """The same rows and sequences in two batches; later batches are made smaller from the start."""
        count = batch.rows.count
        if count == 1:
            raise RefusedRowError(f"{batch} is too large for {batch.tp.topic}: {batch.data.size} bytes")
        smaller = int(size_bounds(batch.rows).sum()) // 2 + 1
        known = self._batch_bytes_max.get(batch.tp.topic, self._settings.batch_bytes_max)
        self._batch_bytes_max[batch.tp.topic] = min(known, smaller)
        starts = np.array([0, count // 2], np.int64)
        records = encode_records(batch.rows, starts)
        halves: list[ProducerBatch] = []
        producer = self._producer_id()
        for nth, start in enumerate(starts.tolist()):
            data = assemble(records, nth, compression=self._settings.compression)
            sequence = (batch.sequence + start) & _SEQUENCE_MASK
            data.stamp(producer.number, producer.epoch, sequence)
            positions = batch.positions[start : start + records.counts[nth]]
            halves.append(
                ProducerBatch(batch.tp, batch.rows.slice(start, records.counts[nth]), positions, sequence, data)
            )
        return halves

    # When something may have gone wrong

    def _send_again(self) -> None:
        """Everything unsure, in order, each batch answered before its partition's next."""
        self._take_all_answers()
        deadline = time.monotonic() + self._settings.delivery_timeout_ms / 1000
        pause_ms = self._client.settings.retry_backoff_ms
        self._unsure.sort(key=lambda batch: (batch.tp, int(batch.positions[0])))
        while self._unsure:
            before = len(self._unsure)
            error = self._try_once()
            if error is None and len(self._unsure) != before:
                pause_ms = self._client.settings.retry_backoff_ms
                continue
            if time.monotonic() > deadline:
                raise self._given_up(error)
            time.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, self._client.settings.retry_backoff_max_ms)

    def _try_once(self) -> Exception | None:
        """One request per leader, with the first unsure batch of every partition."""
        firsts: dict[TopicPartition, ProducerBatch] = {}
        for batch in self._unsure:
            firsts.setdefault(batch.tp, batch)
        try:
            for leader, batches in self._requests(list(firsts.values())):
                answer = self._client.ask(
                    leader, PRODUCE, b"".join(self._request(batches)), extra_ms=self._settings.request_timeout_ms
                )
                self._settle_again(batches, read_produced(answer))
        except ConnectionLostError as error:
            self._client.forget_leaders({tp.topic for tp in firsts})
            return error
        return None

    def _settle_again(self, batches: list[ProducerBatch], answers: list[Produced]) -> None:
        again = self._settle(batches, answers)
        gone = [id(batch) for batch in batches]
        self._unsure = [batch for batch in self._unsure if id(batch) not in gone] + again
        self._unsure.sort(key=lambda batch: (batch.tp, int(batch.positions[0])))
        if any(one.error_code in _OUT_OF_STEP for one in answers):
            self._start_anew()

    def _start_anew(self) -> None:
        """A new producer id, under which everything unsure is numbered again from nought."""
        self._id = None
        self._sequences.clear()
        self._known.clear()
        for batch in self._unsure:
            self._number(batch)

    def _given_up(self, error: Exception | None) -> Exception:
        first = self._unsure[0]
        reason = f": {error}" if error else ""
        return KafkaError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"{first} of {len(self._unsure)} batches was not acknowledged by {first.tp} within "
            f"{self._settings.delivery_timeout_ms / 1000:g} s{reason}",
        )
