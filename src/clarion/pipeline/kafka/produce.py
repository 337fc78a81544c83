"""Produce v8 and InitProducerId v1: the two requests of an idempotent writer. See `producer` for how they are used."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

from clarion.pipeline.kafka.connection import ClientApi
from clarion.pipeline.kafka.encode import EncodedBatch
from clarion.pipeline.kafka.errors import refusal
from clarion.wire.cursor import FieldReader, FieldWriter

PRODUCE: Final = ClientApi("Produce", 0, 8, is_flexible=False)
INIT_PRODUCER_ID: Final = ClientApi("InitProducerId", 22, 1, is_flexible=False)

ACKS_ALL: Final = -1


class ProducerId(NamedTuple):
    number: int
    epoch: int


def init_producer_request() -> bytearray:
    return FieldWriter().string(None).int32(60_000).out


def read_producer_id(answer: FieldReader) -> ProducerId:
    answer.int32()  # throttle time
    error_code, number, epoch = answer.int16(), answer.int64(), answer.int16()
    if error_code:
        raise refusal(error_code, "producer id")
    return ProducerId(number, epoch)


def produce_request(
    batches: Sequence[tuple[str, int, EncodedBatch]], *, timeout_ms: int
) -> list[bytes | bytearray | memoryview]:
    """The request in pieces, so that the batches (topic, partition, bytes) go to the socket without being copied."""
    by_topic: dict[str, list[tuple[int, EncodedBatch]]] = defaultdict(list)
    for topic, partition, batch in batches:
        by_topic[topic].append((partition, batch))
    pieces: list[bytes | bytearray | memoryview] = []
    to = FieldWriter().string(None).int16(ACKS_ALL).int32(timeout_ms).int32(len(by_topic))
    for topic, ones in by_topic.items():
        to.string(topic).int32(len(ones))
        for partition, batch in ones:
            to.int32(partition).int32(batch.size)
            pieces += [to.out + batch.head, batch.body]
            to = FieldWriter()
    return pieces


class Produced(NamedTuple):
    topic: str
    partition: int
    error_code: int
    message: str | None


def read_produced(answer: FieldReader) -> list[Produced]:
    def one(each: FieldReader) -> tuple[int, int, str | None]:
        partition, error_code = each.int32(), each.int16()
        each.int64()  # base offset
        each.int64()  # append time
        each.int64()  # start of the log
        record_errors = each.array(lambda error: (error.int32(), error.nullable_string()))
        message = each.nullable_string() or next((text for _, text in record_errors if text), None)
        return partition, error_code, message

    topics = answer.array(lambda each: (each.text(), each.array(one)))
    return [Produced(topic, *partition) for topic, partitions in topics for partition in partitions]
