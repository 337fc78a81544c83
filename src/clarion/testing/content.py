"""Messages without a client: by the broker's in-process `write` and `read`, on the broker's own loop."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from clarion.broker import messages
from clarion.broker.authorizer import ANONYMOUS, Operation
from clarion.broker.broker import Broker
from clarion.wire.batch import read_header
from clarion.wire.records import decode_batch, encode_batch

__tracebackhide__: Final = True  # by pytest, as in embedded_broker

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

    @property
    def text(self) -> str | None:
        """The value as text, which must be UTF-8; None for a tombstone."""
        return None if self.value is None else self.value.decode()

    def json(self) -> Any:
        """The value read as JSON; None for a tombstone, too."""
        return None if self.value is None else json.loads(self.value)


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


def as_bytes(content: object, what: str) -> bytes | None:
    if isinstance(content, str):
        return content.encode()
    if content is None or isinstance(content, bytes):
        return content
    if isinstance(content, bytearray | memoryview):
        return bytes(content)
    hint = "; produce_json() takes it" if what == "value" and isinstance(content, dict | list) else ""
    raise TypeError(f"{what} must be bytes, str or None, not {type(content).__name__}{hint}")


def as_headers(headers: Headers | None) -> tuple[tuple[str, bytes | None], ...]:
    pairs = [*headers.items()] if isinstance(headers, Mapping) else [*(headers or ())]
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs):
        raise TypeError(f'headers must look like {{"name": "value"}} or [("name", "value")], not {headers!r}')
    return tuple((name, as_bytes(value, f"the header {name!r}")) for name, value in pairs)


def as_json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def check_type(what: str, value: object, wanted: type) -> None:
    """What a test passes by mistake fails here, not deep inside the broker."""
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise TypeError(f"{what} must be {wanted.__name__}, not {type(value).__name__}: {value!r}")
