"""One gate for the large replies of all connections: the next is made when those before it have left enough room.

A reply lies in our memory until its client has read it. One connection has one such reply at a time
(`broker/request_limits`); a thousand connections have a thousand. So they are made one after the other, which costs
nothing, because there is one thread to make them, and none is begun while more than `bytes_max` of them are unsent.
Whoever does not read its replies meanwhile is closed by the budget's rule for the slow (`net/budget`), so that the gate
opens again. That rule spares who holds little, so what every connection may hold anyway does not count here.
"""

from __future__ import annotations

import asyncio


class ReplyRoom:
    """`async with` it from before a large reply is made until it is given to its connection."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._making = asyncio.Lock()  # whoever comes first goes first
        self._has_room: asyncio.Future[None] | None = None  # while somebody waits for that
        self.unsent_bytes = 0

    @property
    def is_waited_for(self) -> bool:
        return self._has_room is not None

    def count(self, more_bytes: int) -> None:
        """So much more of replies is not sent, or less."""
        self.unsent_bytes += more_bytes
        waiting = self._has_room
        if waiting is not None and self.unsent_bytes < self._bytes_max and not waiting.done():
            waiting.set_result(None)

    async def __aenter__(self) -> None:
        await self._making.acquire()
        try:
            await self._wait_for_room()
        except BaseException:
            self._making.release()
            raise

    async def __aexit__(self, *_: object) -> None:
        try:
            await asyncio.sleep(0)  # a reply leaves at the end of the turn, and what does not leave is counted then
        finally:
            self._making.release()

    async def _wait_for_room(self) -> None:
        while self.unsent_bytes >= self._bytes_max:
            self._has_room = asyncio.get_running_loop().create_future()
            try:
                await self._has_room
            finally:
                self._has_room = None
