"""Fetch v4-18: committed batches from an offset on, untouched, or a wait until there are enough.

v4 isolation level · v5 log start offset · v7 sessions (KIP-227) · v9 leader epochs · v11 racks · v12 flexible,
diverging epochs · v13 topic ids · v15 replica state as a tagged field · v16 node endpoints · v17-18 directory ids.

What is asked for is found without waiting for the disk, or looked for again when a thread has read it (`_warm_up`).

Followers fetch with the same requests (`replica_fetches`): up to the log's end, and what they say of themselves moves
the watermark. Consumers that say their rack may read from a follower there (`read_replicas`). Left out: aborted
transactions come with transactions, so READ_COMMITTED reads up to the watermark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from clarion.broker.apis.fetch_reading import FIRST_VERSION_WITH_IDS, FetchReading
from clarion.broker.apis.fetch_replies import Collected, Found, encode_found, refusal
from clarion.broker.apis.read_replicas import RackReader
from clarion.broker.apis.replica_fetches import check_replica
from clarion.broker.fetch_sessions import NO_SESSION, FetchSession
from clarion.log.batch_headers import ColdRead
from clarion.model.errors import KafkaError, MalformedError
from clarion.net import Connection, PendingReply, Reply
from clarion.wire.fetch import FetchRequest, decode_request
from clarion.wire.frames import RequestHeader
from clarion.world import event_log

if TYPE_CHECKING:
    from clarion.broker.broker import Broker
    from clarion.broker.session import Session

log = event_log("broker")

_DECODED_AT_ONCE_BYTES: Final = 32 * 1024  # a thousand partitions
_READ_AT_ONCE: Final = 1_000  # partitions: about ten milliseconds
_READ_PER_PIECE: Final = 100


def serve(
    broker: Broker, connection: Connection, client: Session, header: RequestHeader, body: memoryview
) -> Reply | PendingReply:
    if len(body) > _DECODED_AT_ONCE_BYTES:
        return _serve_long(broker, connection, client, header, bytes(body))
    fetch = _open(broker, client, header, decode_request(body, header.api_version), connection.listener)
    if not isinstance(fetch, Fetch):
        return fetch
    return fetch.answer_in_turns(connection) if fetch.is_long else fetch.answer(connection)


def _open(
    broker: Broker, client: Session, header: RequestHeader, request: FetchRequest, listener: int
) -> Fetch | bytes:
    try:
        if request.replica_id >= 0:
            check_replica(broker, request)
        uses_ids = header.api_version >= FIRST_VERSION_WITH_IDS
        session = broker.sessions.open(
            request, asyncio.get_running_loop().time(), uses_ids=uses_ids, who=client.principal
        )
        session.replica_life = request.broker_epoch
    except KafkaError as error:
        return refusal(header, error)
    return Fetch(broker, header, request, session, listener, RackReader.of(broker, client, request))


def _serve_long(
    broker: Broker, connection: Connection, client: Session, header: RequestHeader, body: bytes
) -> PendingReply:
    """A request that names thousands of partitions is decoded in a thread."""
    pending = PendingReply(connection)

    async def run() -> None:
        try:
            request = await broker.turns.aside(decode_request, body, header.api_version)
            fetch = _open(broker, client, header, request, connection.listener)
            if isinstance(fetch, Fetch):
                await fetch.run_in_turns(connection, pending)
            else:
                pending.resolve(fetch)
        except MalformedError as error:
            connection.refuse_later(pending, error)
        finally:
            connection.release(pending)

    connection.hold(pending)
    broker.turns.start(run(), pending.fail)
    return pending


class Fetch(FetchReading):
    """One fetch, from the request to the reply; while it waits, its session tells it of news."""

    __slots__ = ("_is_last_look", "_is_warming_up", "_pending", "_timer")

    def __init__(
        self,
        broker: Broker,
        header: RequestHeader,
        request: FetchRequest,
        session: FetchSession,
        listener: int,
        rack_reader: RackReader | None,
    ) -> None:
        super().__init__(broker, header, request, session, listener, rack_reader)
        self._pending: PendingReply | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_warming_up = False
        self._is_last_look = request.max_wait_ms <= 0

    @property
    def is_long(self) -> bool:
        session = self._session
        return len(session.ready) > _READ_AT_ONCE or (session.wants_all and len(session.partitions) > _READ_AT_ONCE)

    def answer(self, connection: Connection) -> Reply | PendingReply:
        found = self._collect()
        if not self._session.partitions:
            self._is_last_look = True
        if not self._cold and (self._missing_bytes <= 0 or self._is_last_look):
            return self._reply(found)
        pending = self._pending = PendingReply(connection)
        pending.on_abandon = self._stop_waiting
        if self._cold:
            self._warm_up()
        else:
            self._wait()
        return pending

    # Waiting

    def _wait(self) -> None:
        self._session.on_news = self._on_news
        if self._session.replica_id >= 0:
            self._session.on_superseded = self._on_time_over
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._request.max_wait_ms / 1000, self._on_time_over)

    def _warm_up(self) -> None:
        """Have a thread read what was not in memory, and look again."""
        self._is_warming_up = True
        reading = asyncio.get_running_loop().run_in_executor(None, _read_cold, self._take_cold())
        reading.add_done_callback(self._on_warm)

    def _take_cold(self) -> list[ColdRead]:
        self._cold_tries += 1
        cold, self._cold = self._cold, []
        return cold

    def _on_warm(self, done: asyncio.Future[None]) -> None:
        self._is_warming_up = False
        if not done.cancelled():
            done.exception()
        if self._pending is not None:
            self._look_again(is_last=False)

    def _on_news(self, more_bytes: int) -> None:
        """Count first: who waits for a megabyte from many partitions must not make every append look at all of them."""
        self._missing_bytes -= more_bytes
        if self._missing_bytes <= 0:
            self._look_again(is_last=False)

    def _on_time_over(self) -> None:
        self._look_again(is_last=True)

    def _look_again(self, *, is_last: bool) -> None:
        """The boundary of a fetch that waits: whoever brings the news must not hear of our mistakes."""
        self._is_last_look = self._is_last_look or is_last
        if self._is_warming_up:
            return
        try:
            found = self._collect()
            if self._cold:
                self._warm_up()
            elif self._is_last_look or self._missing_bytes <= 0:
                self._resolve(found)
            elif self._timer is None:
                self._wait()
        except Exception as error:
            # Our own mistake. It must not reach whoever woke us: another client's Produce, or a timer.
            log.error("request_failed", api="Fetch", version=self._header.api_version, error=error)
            pending = self._pending
            self._stop_waiting()
            if pending is not None:
                pending.fail()

    def _resolve(self, found: list[Found]) -> None:
        reply, pending = self._reply(found), self._pending
        self._stop_waiting()
        if pending is not None:
            pending.resolve(reply)

    def _stop_waiting(self) -> None:
        self._pending = None
        if self._session.on_news == self._on_news:  # unless the client has asked again meanwhile
            self._session.on_news = self._session.on_superseded = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._session.id == NO_SESSION:
            self._session.close()

    # In turns

    def answer_in_turns(self, connection: Connection) -> PendingReply:
        """Over thousands of partitions: others are served in between, and the connection takes no other request."""
        pending = PendingReply(connection)
        connection.hold(pending)
        self._broker.turns.start(self.run_in_turns(connection, pending), pending.fail)
        return pending

    async def run_in_turns(self, connection: Connection, pending: PendingReply) -> None:
        self._pending = pending
        pending.on_abandon = self._stop_waiting
        try:
            found = await self._look_in_turns(connection, pending)
            if self._session.wants_all:
                found = await self._with_the_quiet_ones_in_turns(found)
            self._note_reported(found)
            reply = await self._broker.turns.aside(encode_found, self._header, self._session.id, found)
            if self._pending is not None:
                self._pending.resolve(reply)
        finally:
            self._stop_waiting()
            connection.release(pending)

    async def _look_in_turns(self, connection: Connection, pending: PendingReply) -> list[Found]:
        """What can be sent; when that is too little, news, or what there is when the client's patience ends."""
        session, loop = self._session, asyncio.get_running_loop()
        deadline = loop.time() + self._request.max_wait_ms / 1000
        news = asyncio.Event()

        def on_news(_more_bytes: int) -> None:
            news.set()

        session.on_news = on_news
        try:
            while True:
                news.clear()
                found = await self._collect_in_turns()
                if self._cold:
                    await loop.run_in_executor(None, _read_cold, self._take_cold())
                    continue
                is_enough = self._missing_bytes <= 0 or not session.partitions
                if is_enough or loop.time() >= deadline or session.on_news is not on_news:
                    return found
                connection.release(pending)  # from here on it waits for others
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(deadline):
                        await news.wait()
        finally:
            if session.on_news is on_news:  # else the client has asked again meanwhile
                session.on_news = None

    async def _collect_in_turns(self) -> list[Found]:
        ready, found = list(self._session.ready.values()), Collected()
        async for at in self._broker.turns.each(range(0, len(ready), _READ_PER_PIECE)):
            if not self._collect_from(ready[at : at + _READ_PER_PIECE], found):
                break
        return self._judge(found)

    async def _with_the_quiet_ones_in_turns(self, found: list[Found]) -> list[Found]:
        missing = self._not_among(found)
        return found + [self._read(asked, 0, is_first=False) async for asked in self._broker.turns.each(missing)]

    # Replying

    def _reply(self, found: list[Found]) -> Reply:
        session = self._session
        if session.wants_all:
            found += [self._read(asked, 0, is_first=False) for asked in self._not_among(found)]
        self._note_reported(found)
        if session.id == NO_SESSION:
            session.close()
        return encode_found(self._header, session.id, found)


def _read_cold(cold: Sequence[ColdRead]) -> None:
    """In a thread. Where that fails, the next look finds out why."""
    for one in cold:
        try:
            one.warm_up()
        except OSError as error:
            log.warning("read_failed", reason=str(error))
