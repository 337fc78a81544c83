"""Messages without a client: written to and read from the broker's partitions directly, on the broker's own loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from clarion.broker.broker import Broker
from clarion.model.errors import ErrorCode, KafkaError
from clarion.replication import Partition
from clarion.wire.batch import read_header
from clarion.wire.records import decode_batch, encode_batch

Headers = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]


class Message(NamedTuple):
    """One message as it lies in the log."""

    topic: str
    partition: int
    offset: int
    timestamp: int  # milliseconds since 1970
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


async def write(
    broker: Broker,
    topic: str,
    partition: int,
    key: bytes | None,
    value: bytes | None,
    headers: tuple[tuple[str, bytes | None], ...],
    timestamp: int | None,
) -> int:
    """Returns the offset, once the message is committed. A missing topic is made, if the broker makes topics."""
    if broker.image.topic(topic) is None and broker.config.auto_create_topics:
        await broker.create_topic(topic, broker.config.default_partitions, {})
    now_ms = broker.clock.now_ms()
    batch = encode_batch([(key, value, headers, now_ms if timestamp is None else timestamp)])
    place = broker.resolver.partition(broker.registry.known(topic), partition)
    appended = place.append(memoryview(batch), now_ms)
    await _committed(place, appended.last_offset)
    return appended.base_offset


async def _committed(partition: Partition, offset: int) -> None:
    done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    if partition.when_committed(offset, done.set_result):
        return
    code = await done
    if code is not ErrorCode.NONE:
        raise KafkaError(code)


def read(broker: Broker, topic: str, index: int | None) -> list[Message]:
    """Every committed message, partition by partition."""
    return [message for partition in _partitions(broker, topic, index) for message in _messages(partition)]


def count(broker: Broker, topic: str) -> int:
    """How many offsets are between start and watermark: more than the messages only where some were compacted away."""
    known = broker.image.topic(topic)
    led = [] if known is None else broker.partitions.of_topic(known)
    return sum(one.high_watermark.offset - one.start_offset for one in led)


def _partitions(broker: Broker, topic: str, index: int | None) -> list[Partition]:
    known = broker.registry.known(topic)
    return broker.partitions.of_topic(known) if index is None else [broker.resolver.partition(known, index)]


def _messages(partition: Partition) -> Iterable[Message]:
    topic, index = partition.tp
    for batch in partition.log.batches(partition.start_offset, partition.high_watermark):
        if read_header(batch).is_control:
            continue
        for record in decode_batch(batch):
            if record.offset >= partition.start_offset:
                yield Message(topic, index, record.offset, record.timestamp, record.key, record.value, record.headers)


def as_bytes(content: bytes | str | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content


def as_headers(headers: Headers | None) -> tuple[tuple[str, bytes | None], ...]:
    pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
    return tuple((name, as_bytes(value)) for name, value in pairs)
