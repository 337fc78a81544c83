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
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from clarion.broker.apis.fetch_replies import Collected, Found, encode_found, fetched_from, refusal
from clarion.broker.apis.read_replicas import RackReader
from clarion.broker.apis.replica_fetches import check_replica, read_for_replica
from clarion.broker.authorizer import Operation
from clarion.broker.fetch_sessions import NO_SESSION, FetchSession, SessionPartition
from clarion.broker.messages import check_offset
from clarion.broker.resolver import check_leader_epoch
from clarion.log.batch_headers import ColdRead, Reader, read_any, read_cached
from clarion.log.slices import FileSlice
from clarion.model.errors import ErrorCode, KafkaError, MalformedError
from clarion.net import Connection, PendingReply, Reply
from clarion.replication import Partition
from clarion.wire.fetch import FetchRequest, PartitionFetched, decode_request
from clarion.wire.frames import RequestHeader
from clarion.world import event_log

if TYPE_CHECKING:
    from clarion.broker.broker import Broker
    from clarion.broker.session import Session

log = event_log("broker")

FIRST_VERSION_WITH_IDS = 13
_DECODED_AT_ONCE_BYTES: Final = 32 * 1024  # a thousand partitions
_READ_AT_ONCE: Final = 1_000  # partitions: about ten milliseconds
_READ_PER_PIECE: Final = 100
_COLD_TRIES_MAX: Final = 32  # three for each segment that is touched; then the loop waits for the disk


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


class Fetch:
    """One fetch, from the request to the reply; while it waits, its session tells it of news."""

    __slots__ = (
        "_broker",
        "_cold",
        "_cold_tries",
        "_header",
        "_is_last_look",
        "_is_warming_up",
        "_listener",
        "_missing_bytes",
        "_pending",
        "_rack_reader",
        "_request",
        "_session",
        "_timer",
    )

    def __init__(
        self,
        broker: Broker,
        header: RequestHeader,
        request: FetchRequest,
        session: FetchSession,
        listener: int,
        rack_reader: RackReader | None,
    ) -> None:
        self._broker = broker
        self._rack_reader = rack_reader
        self._header = header
        self._request = request
        self._session = session
        self._listener = listener  # of the client's connection
        self._pending: PendingReply | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._missing_bytes = 0  # until there is reason to answer
        self._cold: list[ColdRead] = []  # what the last look found no answer for without waiting for the disk
        self._cold_tries = 0
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

    # Reading

    def _collect(self) -> list[Found]:
        """What can be sent now."""
        found = Collected()
        self._collect_from(self._session.ready.values(), found)
        return self._judge(found)

    def _collect_from(self, ready: Iterable[SessionPartition], to: Collected) -> bool:
        """False if the reply is full."""
        budget = self._bytes_max
        total = to.total
        for asked in ready:
            one = self._read(asked, budget - total, is_first=total == 0)
            fetched = one.fetched
            has_answer = fetched.records_length or fetched.error_code or fetched.diverging_epoch
            if has_answer or fetched.preferred_replica >= 0 or self._is_news(asked, fetched):
                to.found.append(one)
                total += fetched.records_length
                is_answer = fetched.error_code or fetched.diverging_epoch or fetched.preferred_replica >= 0
                to.must_tell = to.must_tell or bool(is_answer)
            elif asked.next_offset >= fetched.high_watermark and not self._lacks_uncommitted(asked):
                to.quiet.append(asked)
            elif total and budget - total < asked.max_bytes:
                to.total = total
                return False  # no room is left; this one and the others stay ready, and come first next time
        to.total = total
        return True

    def _judge(self, collected: Collected) -> list[Found]:
        """Notes how much is missing until what was found is reason enough to answer."""
        for asked in collected.quiet:
            self._session.has_no_news(asked)
        wanted = min(self._request.min_bytes, self._bytes_max)
        self._missing_bytes = 0 if collected.must_tell else wanted - collected.total
        return collected.found

    @property
    def _bytes_max(self) -> int:
        return min(self._request.max_bytes, self._broker.config.limits.fetch_bytes_max)

    def _lacks_uncommitted(self, asked: SessionPartition) -> bool:
        """Of followers, who read that too."""
        partition = asked.partition
        if self._session.replica_id < 0 or partition is None:
            return False
        return asked.next_offset < partition.next_offset

    @staticmethod
    def _is_news(asked: SessionPartition, fetched: PartitionFetched) -> bool:
        """Whether an empty partition has something to tell to a session."""
        return fetched.high_watermark != asked.reported_watermark or fetched.log_start_offset != asked.reported_start

    def _read(self, asked: SessionPartition, budget: int, *, is_first: bool) -> Found:
        if self._session.replica_id >= 0:
            return self._read_for_replica(asked, budget, is_first=is_first)
        try:
            partition = self._find(asked)
            check_leader_epoch(asked.leader_epoch, partition)
            if self._rack_reader is not None:
                self._rack_reader.check_serves(partition, asked.next_offset)
            elif partition.membership is not None:
                partition.check_leads()
            self._session.watch(asked, partition)
            diverging = partition.diverging_epoch(asked.last_fetched_epoch, asked.next_offset)
            if diverging is not None:
                return Found(asked, fetched_from(asked.index, partition, 0, diverging), [])
            if self._rack_reader is not None and (referral := self._rack_reader.referral(asked, partition)) is not None:
                return Found(asked, referral, [])
            slices = _slices(asked, partition, budget, self._reader, is_first=is_first)
        except ColdRead as cold:
            self._cold.append(cold)
            return Found(asked, fetched_from(asked.index, partition, 0), [])
        except KafkaError as error:
            leader = self._broker.resolver.leader_instead(
                error.code, asked.name, asked.topic_id, asked.index, self._listener
            )
            return Found(asked, PartitionFetched(asked.index, int(error.code), -1, -1, -1, 0, None, leader), [])
        return Found(asked, fetched_from(asked.index, partition, sum([one.length for one in slices])), slices)

    def _read_for_replica(self, asked: SessionPartition, budget: int, *, is_first: bool) -> Found:
        try:
            return read_for_replica(self._broker, self._session, asked, budget, self._reader, is_first=is_first)
        except ColdRead as cold:
            self._cold.append(cold)
            assert asked.partition is not None
            return Found(asked, fetched_from(asked.index, asked.partition, 0), [])

    @property
    def _reader(self) -> Reader:
        return read_cached if self._cold_tries < _COLD_TRIES_MAX else read_any

    def _find(self, asked: SessionPartition) -> Partition:
        known, resolver = asked.partition, self._broker.resolver
        if known is not None and known.is_leader and asked.resolved_in == resolver.version:
            return known
        who, by_id = self._session.who, self._header.api_version >= FIRST_VERSION_WITH_IDS
        topic = (
            resolver.topic_by_id(who, Operation.READ, asked.topic_id)
            if by_id
            else resolver.topic(who, Operation.READ, asked.name)
        )
        partition = (resolver.partition if self._rack_reader is None else resolver.replica)(topic, asked.index)
        asked.resolved_in = resolver.version
        return partition

    # Replying

    def _reply(self, found: list[Found]) -> Reply:
        session = self._session
        if session.wants_all:
            found += [self._read(asked, 0, is_first=False) for asked in self._not_among(found)]
        self._note_reported(found)
        if session.id == NO_SESSION:
            session.close()
        return encode_found(self._header, session.id, found)

    def _note_reported(self, found: list[Found]) -> None:
        session = self._session
        if self._rack_reader is not None:
            self._rack_reader.note(found)
        for one in found:
            if session.replica_id >= 0 and not one.fetched.error_code:
                session.note_told(one.asked, one.fetched.high_watermark)
            one.asked.reported_watermark = one.fetched.high_watermark
            one.asked.reported_start = one.fetched.log_start_offset
            if one.fetched.records_length:
                session.served(one.asked)
                partition = one.asked.partition
                if partition is None:
                    continue
                if session.replica_id < 0:
                    partition.bytes_out_total += one.fetched.records_length
                else:
                    partition.replicated_out_total += one.fetched.records_length

    def _not_among(self, found: list[Found]) -> list[SessionPartition]:
        """The partitions that have nothing to tell, but are to be told of."""
        if len(found) == len(self._session.partitions):
            return []
        keys = {one.asked.key for one in found}
        return [asked for asked in self._session.partitions.values() if asked.key not in keys]


def _read_cold(cold: Sequence[ColdRead]) -> None:
    """In a thread. Where that fails, the next look finds out why."""
    for one in cold:
        try:
            one.warm_up()
        except OSError as error:
            log.warning("read_failed", reason=str(error))


def _slices(
    asked: SessionPartition, partition: Partition, budget: int, reader: Reader, *, is_first: bool
) -> list[FileSlice]:
    watermark = partition.high_watermark
    if asked.next_offset == watermark.offset:
        return []
    check_offset(partition, asked.next_offset)
    if asked.next_offset > watermark.offset or (budget <= 0 and not is_first):
        return []
    try:
        return partition.read(
            asked.next_offset, min(asked.max_bytes, budget), at_least_one_batch=is_first, reader=reader
        )
    except OSError as error:
        log.error("read_failed", partition=partition.tp, reason=str(error))
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR) from error
