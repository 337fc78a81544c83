"""WebSockets by uvicorn's protocol, within limits: frames are taken apart in HTTP's part of the loop, and who does not
read answers to its pings, or anything else, is not read from."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from clarion.gateway.gates import PIECE_BYTES, GatedTransport, Pieces

if TYPE_CHECKING:
    from clarion.gateway.serving import Serving


class SocketProtocol(WebSocketsSansIOProtocol):
    def __init__(self, serving: Serving, **uvicorns: Any) -> None:
        super().__init__(**uvicorns, _loop=serving.loop)
        self._pieces = Pieces(super().data_received, serving.share, serving.loop)
        self._memory = serving.memory
        self._gate: GatedTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._gate = GatedTransport(cast(asyncio.Transport, transport), self.loop, self._memory)
        self._pieces.transport = self._gate
        super().connection_made(cast(asyncio.BaseTransport, self._gate))

    def data_received(self, data: bytes) -> None:
        self._pieces.add(data, lambda: PIECE_BYTES, waits=True)

    def pause_writing(self) -> None:
        self._gate.note_full()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._gate.note_room()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._pieces.end()
        self._gate.forget()
        super().connection_lost(exc)
