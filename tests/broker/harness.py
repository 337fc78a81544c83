"""A real broker on a real socket inside the test's loop, and a client that speaks any version of any API.

async with running(tmp_path) as node:
    reply = await node.ask(MetadataRequest(topics=None), 12)
    await node.client.produce({("t", 0): batch(b"value")})
    assert (await node.client.fetch({("t", 0): 0})).values() == [b"value"]
"""

import asyncio
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from clarion.broker.broker import Broker
from clarion.broker.config import ListenerConfig
from clarion.broker.server import BrokerServer
from clarion.broker.settings import broker_config
from clarion.model.errors import ErrorCode
from clarion.replication import Partition
from clarion.wire.apis import APIS
from clarion.wire.bridge import decode, encode
from clarion.wire.frames import parse_response_header, request_frame
from clarion.wire.records import encode_batch
from tests.broker import talk
from tests.broker.talk import Fetched, Place

REPLY_SECONDS = 60  # a bound, not a measure: the machine may be busy with other things
WORLD = ("disk", "clock", "randomness", "intercept", "gateway")
BY_NAME = {api.name: api for api in APIS.values()}


@asynccontextmanager
async def running(data_dir: Path, **settings: Any) -> AsyncIterator["Node"]:
    """A broker with one client; `settings` are those of BrokerConfig, or a `disk` or a `clock` of the test's own."""
    settings.setdefault("listeners", (ListenerConfig(port=0),))
    world = {name: settings.pop(name) for name in WORLD if name in settings}
    server = BrokerServer(broker_config(str(data_dir), **settings), **world)
    await server.start()
    try:
        client = await Client.connect(*server.addresses[0])
        try:
            yield Node(server, client)
        finally:
            client.close()
    finally:
        await server.stop(drain_seconds=0)


def versions_of(name: str) -> range:
    api = BY_NAME[name]
    return range(api.min_version, api.max_version + 1)


async def until(condition: Callable[[], object], seconds: float = REPLY_SECONDS) -> None:
    """Returns when the condition holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)


class Client:
    """One connection. `ask`, `produce` and `fetch` wait for their answer; `post` does not."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._correlation = 0
        self._fetches: deque[int] = deque()  # versions of those that are under way

    @classmethod
    async def connect(cls, host: str, port: int, **how: Any) -> "Client":
        return cls(*await asyncio.open_connection(host, port, limit=1 << 26, **how))

    async def ask(self, request: Any, version: int) -> Any:
        api = BY_NAME[type(request).__name__.removesuffix("Request")]
        self._correlation += 1
        body = encode(request, api.key, version, "request")
        self.post(request_frame(api.key, version, self._correlation, "tests", body))
        frame = await self.next_frame()
        correlation, body_at = parse_response_header(frame, api.key, version)
        assert correlation == self._correlation
        return decode(api.response, api.key, version, "response", frame[body_at:])

    async def produce(self, batches: Mapping[Place, bytes | None], *, version: int = 9, **how: Any) -> dict[Place, Any]:
        self.post(talk.produce_frame(batches, version=version, **how))
        return talk.read_produced(await self.next_frame(), version)

    async def fetch(self, offsets: Mapping[Place, int], *, version: int = 12, **how: Any) -> Fetched:
        self.post_fetch(offsets, version=version, **how)
        return await self.fetched()

    def post_fetch(self, offsets: Mapping[Place, int], *, version: int = 12, **how: Any) -> None:
        self._fetches.append(version)
        self.post(talk.fetch_frame(offsets, version=version, **how))

    async def fetched(self) -> Fetched:
        return talk.read_fetched(await self.next_frame(), self._fetches.popleft())

    def post(self, frame: bytes) -> None:
        """Length prefix included."""
        self._writer.write(frame)

    async def next_frame(self) -> bytes:
        return await asyncio.wait_for(self._read_frame(), REPLY_SECONDS)

    async def is_refused(self) -> bool:
        """Whether the broker ends the connection without another word."""
        try:
            return await asyncio.wait_for(self._reader.read(1), REPLY_SECONDS) == b""
        except ConnectionError:
            return True

    async def _read_frame(self) -> bytes:
        (length,) = struct.unpack(">i", await self._reader.readexactly(4))
        return await self._reader.readexactly(length)

    def close(self) -> None:
        self._writer.close()

    def end_sending(self) -> None:
        """It still reads."""
        self._writer.write_eof()

    def reset(self) -> None:
        """Gone for good; of a client that only closes, the broker cannot know whether it still reads."""
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


class Node:
    def __init__(self, server: BrokerServer, client: Client) -> None:
        self.server = server
        self.client = client
        self.ask = client.ask

    @property
    def broker(self) -> Broker:
        return self.server.broker

    @asynccontextmanager
    async def another(self) -> AsyncIterator[Client]:
        """One more client."""
        client = await Client.connect(*self.server.addresses[0])
        try:
            yield client
        finally:
            client.close()

    def partition(self, topic: str = "t", index: int = 0) -> Partition:
        return self.broker.resolver.partition(self.broker.image.topics[topic], index)

    async def topic(self, name: str = "t", partitions: int = 1, **overrides: str) -> None:
        """Settings by Kafka's names, with `_` for `.`."""
        given = {key.replace("_", "."): value for key, value in overrides.items()}
        await self.broker.create_topic(name, partitions, given)

    async def write(self, topic: str, timestamps: Sequence[int], partition: int = 0) -> None:
        """One batch with a record per timestamp; returns when it is committed."""
        target = self.partition(topic, partition)
        batch = encode_batch([(b"k%d" % number, b"v", (), at) for number, at in enumerate(timestamps)])
        committed: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        appended = target.append(memoryview(batch), self.broker.clock.now_ms())
        if not target.when_committed(appended.last_offset, committed.set_result):
            assert await asyncio.wait_for(committed, REPLY_SECONDS) is ErrorCode.NONE


async def refusal(node: Node, records: bytes | None, place: tuple[str, int] = ("t", 0), **how: Any) -> int:
    """The error code of a Produce of one batch."""
    return int((await node.client.produce({place: records}, **how))[place].error_code)
