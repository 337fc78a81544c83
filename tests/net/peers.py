"""The other side of a channel: a broker in a few lines, told what to do with each request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager

from clarion.wire import api_versions
from clarion.wire.apis import API_VERSIONS
from clarion.wire.frames import RequestHeader, parse_request_header, reply_head

Say = Callable[["Peer", RequestHeader, bytes], None]


class Peer(asyncio.Protocol):
    """Greets as a broker does; what follows is the story's."""

    def __init__(self, say: Say, greet: Say | None = None) -> None:
        self._say = say
        self._greet = greet or Peer.greet
        self._arrived = bytearray()
        self.transport: asyncio.Transport

    def connection_made(self, transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._arrived += data
        while len(self._arrived) >= 4 and len(self._arrived) >= (end := 4 + int.from_bytes(self._arrived[:4], "big")):
            frame = bytes(self._arrived[4:end])
            del self._arrived[:end]
            header = parse_request_header(frame)
            say = self._greet if header.api_key == API_VERSIONS else self._say
            say(self, header, frame[header.body_at :])

    def greet(self, header: RequestHeader, _: bytes = b"") -> None:
        self.answer(header, api_versions.encode_reply(header.api_version))

    def answer(self, header: RequestHeader, body: bytes) -> None:
        head = reply_head(header.api_key, header.api_version, header.correlation_id, len(body))
        self.transport.write(head + body)


@asynccontextmanager
async def listening(say: Say, greet: Say | None = None):
    """The port on which such a peer listens."""
    server = await asyncio.get_running_loop().create_server(lambda: Peer(say, greet), "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
