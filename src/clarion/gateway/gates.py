"""What arrives on a connection of HTTP, fed to its protocol in pieces, and a transport that several may stop reading.

A read brings up to a quarter of a megabyte: thousands of small requests, or frames of a WebSocket, that would be taken
apart in one go. So what is over when HTTP has had its part of a turn waits for the next one, and nothing is read
meanwhile. Who does not read what it is sent is not read from either, and after a while it is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from clarion.gateway.loop_share import LoopShare
from clarion.gateway.memory_room import MemoryRoom
from clarion.world import thread_seconds

PIECE_BYTES: Final = 4 * 1024  # a hundred small requests or frames, at most: a millisecond or two
BODY_PIECE_BYTES: Final = 64 * 1024  # of a body, which is only copied
OVER_SECONDS: Final = 0.1  # until frames are looked at again while HTTP is over its share
UNREAD_SECONDS_MAX: Final = 60.0  # without one byte taken of what waits for the client


class GatedTransport:
    """All that a transport is; whose reading stands still as long as anybody has stopped it."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, memory: MemoryRoom) -> None:
        self._transport = transport
        self._memory = memory
        self._loop = loop
        self._stopped_by: set[str] = set()
        self._watching: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def pause_reading(self) -> None:
        self.stop_for("the application")

    def resume_reading(self) -> None:
        self.go_on_for("the application")

    def stop_for(self, reason: str) -> None:
        if not self._stopped_by and not self._transport.is_closing():
            self._transport.pause_reading()
        self._stopped_by.add(reason)

    def go_on_for(self, reason: str) -> None:
        if reason in self._stopped_by:
            self._stopped_by.discard(reason)
            if not self._stopped_by and not self._transport.is_closing():
                self._transport.resume_reading()

    # A client that does not read

    def note_full(self) -> None:
        """More waits for the client than should."""
        self.stop_for("what is not read")
        self._memory.note_unread(self._transport)
        if self._watching is None:
            self._watch(self._transport.get_write_buffer_size())

    def note_room(self) -> None:
        self.go_on_for("what is not read")
        self.forget()

    def forget(self) -> None:
        self._memory.note_read(self._transport)
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None

    def _watch(self, waiting_bytes: int) -> None:
        self._watching = self._loop.call_later(UNREAD_SECONDS_MAX, self._look, waiting_bytes)

    def _look(self, before: int) -> None:
        waiting_bytes = self._transport.get_write_buffer_size()
        if waiting_bytes >= before:
            self._watching = None
            self._transport.abort()
        else:
            self._watch(waiting_bytes)


class Pieces:
    """What has arrived and is not taken yet."""

    def __init__(
        self,
        take: Callable[[bytes], None],
        share: LoopShare,
        loop: asyncio.AbstractEventLoop,
        on_all_taken: Callable[[], None] = lambda: None,
    ) -> None:
        self._take = take
        self._on_all_taken = on_all_taken
        self._share = share
        self._loop = loop
        self._left = b""
        self._waiting: asyncio.TimerHandle | asyncio.Future[None] | None = None
        self.transport: GatedTransport
        self.is_over = False  # nobody takes anything any longer

    def __bool__(self) -> bool:
        """Whether more is to be taken, or nothing ever again."""
        return self.is_over or bool(self._left)

    def add(self, data: bytes, piece_bytes: Callable[[], int], *, waits: bool = False) -> None:
        """`waits`: nothing is taken while HTTP is over its share."""
        self._left = self._left + data if self._left else data
        if self._waiting is None:
            self._go_on(piece_bytes, waits, is_polling=True)

    def end(self) -> None:
        self.is_over = True
        self._left = b""
        if self._waiting is not None:
            self._waiting.cancel()

    def _go_on(
        self,
        piece_bytes: Callable[[], int],
        waits: bool,
        has_paused: bool = False,
        *,
        is_polling: bool = False,
        has_turn: bool = False,
    ) -> None:
        self._waiting = None
        left, at = self._left, 0
        while at < len(left) and not self.is_over and not self.transport.is_closing():
            if self._share.turn_is_full and (at or not has_turn):
                break
            piece = left[at : at + piece_bytes()] if at or len(left) > PIECE_BYTES else left
            at += len(piece)
            began = thread_seconds()
            self._take(piece)
            self._share.spend(thread_seconds() - began, while_polling=is_polling)
        self._left = left[at:]
        if not self._left or self.is_over or self.transport.is_closing():
            self._left = b""
            self.transport.go_on_for("a full turn")
            if not self.is_over:
                self._on_all_taken()
            return
        self.transport.stop_for("a full turn")
        if waits and self._share.is_over and (at or not has_paused):  # else it would wait as long as others come
            self._waiting = self._loop.call_later(OVER_SECONDS, self._go_on, piece_bytes, waits, True)
        else:
            self._wait_for_turn(piece_bytes, waits)

    def _wait_for_turn(self, piece_bytes: Callable[[], int], waits: bool) -> None:
        """In one line with the steps of requests that are under way."""

        def on_turn(turn: asyncio.Future[None]) -> None:
            if not turn.cancelled():
                self._go_on(piece_bytes, waits, has_turn=True)

        self._waiting = self._share.next_turn()
        self._waiting.add_done_callback(on_turn)
