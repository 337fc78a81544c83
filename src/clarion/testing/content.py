"""Messages without a client: by the broker's in-process `write` and `read`, on the broker's own loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from clarion.broker import messages
from clarion.broker.authorizer import ANONYMOUS, Operation
from clarion.broker.broker import Broker
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
    batch = encode_batch([(key, value, headers, broker.clock.now_ms() if timestamp is None else timestamp)])
    return (await messages.write(broker, ANONYMOUS, topic, partition, batch)).base_offset


async def read(broker: Broker, topic: str, index: int | None) -> list[Message]:
    """Every committed message, partition by partition."""
    known = broker.resolver.topic(ANONYMOUS, Operation.READ, topic)
    indexes = range(known.partition_count) if index is None else (index,)
    return [message for one in indexes for message in await _messages(broker, topic, one)]


def count(broker: Broker, topic: str) -> int:
    """How many offsets are between start and watermark: more than the messages only where some were compacted away."""
    known = broker.image.topic(topic)
    led = [] if known is None else broker.partitions.of_topic(known)
    return sum(one.high_watermark.offset - one.start_offset for one in led)


async def _messages(broker: Broker, topic: str, index: int) -> list[Message]:
    partition = broker.resolver.partition(broker.resolver.topic(ANONYMOUS, Operation.READ, topic), index)
    first = next_offset = partition.start_offset
    end = partition.high_watermark.offset
    found: list[Message] = []
    while next_offset < end:
        batches = (await messages.read(broker, ANONYMOUS, topic, index, next_offset)).batches
        if not batches:
            break
        next_offset = read_header(batches[-1]).next_offset
        found += [
            Message(topic, index, one.offset, one.timestamp, one.key, one.value, one.headers)
            for batch in batches
            if not read_header(batch).is_control
            for one in decode_batch(batch)
            if one.offset >= first
        ]
    return found


def as_bytes(content: bytes | str | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content


def as_headers(headers: Headers | None) -> tuple[tuple[str, bytes | None], ...]:
    pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
    return tuple((name, as_bytes(value)) for name, value in pairs)
