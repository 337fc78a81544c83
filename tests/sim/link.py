"""A connection of a simulated client: it asks in Kafka's protocol, through `clarion.wire`, and gives up when told so.

Produce and Fetch are written by hand in one plain version each: the broker's own codecs know only the other direction.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from struct import Struct
from typing import Any, NamedTuple

from clarion.wire.apis import APIS, FETCH, PRODUCE
from clarion.wire.bridge import decode, encode
from clarion.wire.frames import parse_response_header, request_frame

PORT = 9092
PATIENCE_SECONDS = 3.0
PRODUCE_TIMEOUT_MS = 1000  # short enough that its end is heard, patience permitting
PRODUCE_VERSION = 8
FETCH_VERSION = 11
KEYS = {api.name: api.key for api in APIS.values()}

# What a client takes for a broken connection: it connects anew and asks again.
LOST = (ConnectionError, TimeoutError)


class Link(asyncio.Protocol):
    def __init__(self) -> None:
        self._data = bytearray()
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._next_id = 0
        self._transport: Any = None
        self._is_lost = False

    @classmethod
    async def open(cls, port: int = PORT) -> Link:
        _, link = await asyncio.get_running_loop().create_connection(cls, "broker", port)
        return link

    @classmethod
    @asynccontextmanager
    async def alone(cls, port: int = PORT) -> AsyncIterator[Link]:
        """Left when nothing that was sent can arrive any more, so that what comes next cannot be overtaken by it."""
        link = await cls.open(port)
        try:
            try:
                yield link
            finally:
                link.close()
        except Exception:
            await link._has_ended()
            raise
        await link._has_ended()

    async def _has_ended(self) -> None:
        while self._transport.peer.is_open:
            await asyncio.sleep(0.01)

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._is_lost = True
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ConnectionResetError("lost"))
        self._waiting.clear()

    def close(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= 4 and len(self._data) >= 4 + (size := int.from_bytes(self._data[:4], "big")):
            frame = bytes(self._data[4 : 4 + size])
            del self._data[: 4 + size]
            answer = self._waiting.pop(int.from_bytes(frame[:4], "big"), None)
            if answer is not None and not answer.done():
                answer.set_result(frame)

    # Asking

    async def ask(self, request: Any, version: int) -> Any:
        key = KEYS[type(request).__name__.removesuffix("Request")]
        body = await self.send(key, version, encode(request, key, version, "request"))
        return decode(APIS[key].response, key, version, "response", body)

    async def produce(self, topic: str, index: int, batch: bytes, acks: int = -1) -> Produced:
        body = (
            struct.pack(">hhii", -1, acks, PRODUCE_TIMEOUT_MS, 1)
            + _string(topic)
            + struct.pack(">iii", 1, index, len(batch))
            + batch
        )
        answer = await self.send(PRODUCE, PRODUCE_VERSION, body)
        _, error, offset = struct.unpack_from(">ihq", answer, 4 + 2 + len(topic) + 4)
        return Produced(error, offset)

    async def fetch(self, topic: str, offsets: dict[int, int], *, max_wait_ms: int, max_bytes: int) -> list[Fetched]:
        body = struct.pack(">iiiibii", -1, max_wait_ms, 1, max_bytes, 0, 0, -1)
        body += struct.pack(">i", 1) + _string(topic) + struct.pack(">i", len(offsets))
        for index, offset in offsets.items():
            body += struct.pack(">iiqqi", index, -1, offset, -1, max_bytes)
        answer = await self.send(FETCH, FETCH_VERSION, body + struct.pack(">i", 0) + _string(""))
        return list(_read_fetched(answer))

    async def send(self, key: int, version: int, body: bytes) -> bytes:
        """The body of the answer."""
        if self._is_lost:
            raise ConnectionResetError("lost")
        self._next_id += 1
        loop = asyncio.get_running_loop()
        answer = self._waiting[self._next_id] = loop.create_future()
        self._transport.write(request_frame(key, version, self._next_id, "sim", body))
        patience = loop.call_later(PATIENCE_SECONDS, _give_up, answer)  # `wait_for` takes three more turns of the loop
        try:
            frame = await answer
        finally:
            patience.cancel()
        _, at = parse_response_header(frame, key, version)
        return frame[at:]


def _give_up(answer: asyncio.Future[bytes]) -> None:
    if not answer.done():
        answer.set_exception(TimeoutError())


class Produced(NamedTuple):
    error: int
    base_offset: int


class Fetched(NamedTuple):
    index: int
    error: int
    high_watermark: int
    records: bytes


_FETCH_HEAD = Struct(">ihi")
_FETCH_PARTITION = Struct(">ihqqq")


def _read_fetched(answer: bytes):
    """Of Fetch v11: throttle, error, session, topics (name, partitions (state, aborted, replica, records))."""
    (topics,) = struct.unpack_from(">i", answer, _FETCH_HEAD.size)
    at = _FETCH_HEAD.size + 4
    for _ in range(topics):
        (length,) = struct.unpack_from(">h", answer, at)
        (count,) = struct.unpack_from(">i", answer, at + 2 + length)
        at += 6 + length
        for _ in range(count):
            index, error, high_watermark, _, _ = _FETCH_PARTITION.unpack_from(answer, at)
            aborted, _, size = struct.unpack_from(">iii", answer, at + _FETCH_PARTITION.size)
            assert aborted <= 0, "there are no transactions"
            at += _FETCH_PARTITION.size + 12
            yield Fetched(index, error, high_watermark, answer[at : at + max(size, 0)])
            at += max(size, 0)


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()
