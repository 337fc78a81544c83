"""Produce v3-13: append batches, and answer when they are as safe as the client asked.

v3 format v2 and transactional ids · v5 log start offset · v7 zstd · v8 per-record errors · v9 flexible · v10 current
leader and its address as tagged fields · v12 transactions without AddPartitionsToTxn · v13 topic ids. Versions 0-2 are
advertised, because old librdkafka takes the range for a feature flag, and refused: their message formats are gone.

acks 0: no reply; a failure closes the connection, the only way left to tell. acks 1: after the append. acks all: after
the watermark has passed it. Left out: transactional batches, which come with transactions and are refused until then.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from clarion.broker.apis.produce_replies import (
    TopicResult,
    UncommittedBatch,
    WaitingProduce,
    encode_reply,
    refused,
    taken,
)
from clarion.broker.messages import topic_to_write, topic_to_write_by_id
from clarion.broker.preparing import WaitingBatch
from clarion.model.errors import ErrorCode, KafkaError
from clarion.net import Connection, PendingReply, Reply
from clarion.replication import Partition
from clarion.wire.apis import PRODUCE
from clarion.wire.batch import HEADER_BYTES, read_header
from clarion.wire.compression import Codec
from clarion.wire.fields import UNREADABLE
from clarion.wire.frames import RequestHeader
from clarion.wire.limits import WorkBudget
from clarion.wire.produce import (
    PartitionProduced,
    ProduceRequest,
    ProduceTopic,
    SingleReply,
    decode_request,
    last_records,
)

if TYPE_CHECKING:
    from clarion.broker.broker import Broker
    from clarion.broker.session import Session

ACKS_NONE: Final = 0
ACKS_ALL: Final = -1
FIRST_VERSION_WITH_IDS: Final = 13
_FIRST_VERSION_WITH_ZSTD: Final = 7
_BEGINNING_BYTES_MAX: Final = 512  # of a request; a client's name may have 32 KB, and is not worth remembering then
_PLACED_AT_ONCE: Final = 200  # batches of one request: an append takes some twenty microseconds
# Where batches are looked through, so much of a request is done in the turn in which it came: about a millisecond.
_STEPS_AT_ONCE: Final = 500
_UNPACKED_BYTES_AT_ONCE: Final = 64 * 1024
_CORRELATION = Struct(">i")
_CORRELATION_AT: Final = 4
_CLIENT_ID_AT: Final = 8


def serve(
    broker: Broker, connection: Connection, session: Session, header: RequestHeader, frame: memoryview
) -> Reply | PendingReply | None:
    request = decode_request(frame[header.body_at :], header.api_version)
    if not request.records_at and sum([len(topic.partitions) for topic in request.topics]) > _PLACED_AT_ONCE:
        return _serve_long(broker, connection, session, header, connection.own(frame))
    placed = Placed(broker, connection, session, header, request)
    for topic in request.topics:
        produced = placed.begin(topic)
        for index, records in topic.partitions:
            placed.place(topic, index, records, produced)
    if placed.waiting:
        return placed.prepare(len(frame))
    if request.records_at and placed.is_plain and request.acks != ACKS_NONE:
        _note_template(broker, session, header, request, frame)
    return placed.answer()


def _serve_long(
    broker: Broker, connection: Connection, session: Session, header: RequestHeader, frame: memoryview
) -> PendingReply | None:
    """Batches for hundreds of partitions, a few in each turn."""
    request = decode_request(frame[header.body_at :], header.api_version)
    placed = Placed(broker, connection, session, header, request)

    async def run() -> None:
        for topic in request.topics:
            produced = placed.begin(topic)
            async for index, records in broker.turns.each(topic.partitions):
                placed.place(topic, index, records, produced)
        if placed.waiting:
            placed.prepare(len(frame))
        else:
            placed.finish()

    pending = placed.promise()
    broker.turns.start(run(), connection.close if pending is None else pending.fail)
    return pending


class Placed:
    """What has become of the batches of one request so far."""

    __slots__ = (
        "_broker",
        "_connection",
        "_header",
        "_now_ms",
        "_pending",
        "_places",
        "_put_off_for",
        "_request",
        "_results",
        "_session",
        "_small",
        "_uncommitted",
        "has_failed",
        "waiting",
    )

    def __init__(
        self,
        broker: Broker,
        connection: Connection,
        session: Session,
        header: RequestHeader,
        request: ProduceRequest,
    ) -> None:
        self._broker = broker
        self._connection = connection
        self._session = session
        self._header = header
        self._request = request
        self._now_ms = broker.arrival_ms()
        self._results: list[TopicResult] = []
        self._uncommitted: list[UncommittedBatch] = []
        self._pending: PendingReply | None = None
        self._small: WorkBudget | None = None  # for what is prepared at once
        self.has_failed = False
        self.waiting: list[WaitingBatch] = []
        self._put_off_for: set[Partition] = set()  # of those: named once more, a partition gets both in order
        self._places: list[tuple[list[PartitionProduced], int]] = []  # of what is waiting, in the reply

    @property
    def is_plain(self) -> bool:
        """All was taken as it came."""
        return not self.has_failed and self._small is None

    def begin(self, topic: ProduceTopic) -> list[PartitionProduced]:
        """Returns where its partitions are to be told of."""
        produced: list[PartitionProduced] = []
        self._results.append((topic.name, topic.topic_id, produced))
        return produced

    def place(
        self, topic: ProduceTopic, index: int, records: memoryview | None, produced: list[PartitionProduced]
    ) -> None:
        request = self._request
        try:
            partition = _find(self._broker, self._session, self._header, topic, index)
            batch = _checked(request, records, self._header.api_version)
            partition.check_takes(batch, self._now_ms)
            if request.acks == ACKS_ALL:
                partition.check_in_sync(batch, self._now_ms)
            if partition.preparation is not None or partition.preparing or partition in self._put_off_for:
                prepared = self._prepare_at_once(partition, batch)
                if prepared is None:
                    self._put_off(partition, batch, produced, index)
                    return
                appended = partition.append_prepared(prepared, self._now_ms)
            else:
                appended = partition.append(batch, self._now_ms)
        except KafkaError as error:
            self.has_failed = True
            listener = self._connection.listener
            leader = self._broker.resolver.leader_instead(error.code, topic.name, topic.topic_id, index, listener)
            produced.append(refused(index, error, leader))
            return
        if request.acks == ACKS_ALL and appended.last_offset >= partition.high_watermark.offset:
            self._uncommitted.append(UncommittedBatch(partition, appended.last_offset, produced, len(produced)))
        produced.append(taken(partition, appended, index))

    def answer(self) -> Reply | PendingReply | None:
        if self._request.acks == ACKS_NONE:
            if self.has_failed:
                self._connection.close()
            return None
        if self._uncommitted:
            waiting = WaitingProduce(self._broker, self._header, self._results, self._uncommitted)
            return waiting.wait(self._pending or PendingReply(self._connection), self._request.timeout_ms)
        return encode_reply(self._header, self._results)

    # What takes more than this turn

    def promise(self) -> PendingReply | None:
        """The place of the reply; until it is there, the connection takes no other request."""
        if self._pending is None:
            self._connection.hold(self)
            if self._request.acks != ACKS_NONE:
                self._pending = PendingReply(self._connection)
        return self._pending

    def finish(self) -> None:
        # What was appended in earlier turns may have been committed meanwhile, or its leader's term have ended.
        for one in self._uncommitted:
            if one.is_given_up:
                one.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._uncommitted = [one for one in self._uncommitted if not one.is_given_up and not one.is_committed]
        reply = self.answer()
        self._connection.release(self)
        if self._pending is not None and reply is not self._pending and reply is not None:
            assert not isinstance(reply, PendingReply)
            self._pending.resolve(reply)

    def prepare(self, frame_bytes: int) -> PendingReply | None:
        """The whole request has one budget, whatever the number of its partitions."""
        budget = WorkBudget.for_bytes(frame_bytes)
        self._broker.preparing.add(self.waiting, budget, self._append_prepared, self._connection.close)
        return self.promise()

    async def _append_prepared(self) -> None:
        self._now_ms = self._broker.arrival_ms()
        async for one, (produced, at) in self._broker.turns.each(zip(self.waiting, self._places, strict=True)):
            self._append(one, produced, at, self._now_ms)
        self.finish()

    def _prepare_at_once(self, partition: Partition, records: memoryview) -> memoryview | None:
        """None if that takes too long, or others are waiting, or the batch is bad: a thread finds out which."""
        preparation = partition.preparation
        if partition.preparing or preparation is None or partition in self._put_off_for:
            return None
        if len(records) > _UNPACKED_BYTES_AT_ONCE:
            return None
        if self._small is None:
            self._small = WorkBudget(_STEPS_AT_ONCE, _UNPACKED_BYTES_AT_ONCE)
        try:
            return preparation(records, self._small)
        except KafkaError:
            return None

    def _put_off(
        self, partition: Partition, records: memoryview, produced: list[PartitionProduced], index: int
    ) -> None:
        try:
            self._broker.preparing.check_room(len(records))
        except KafkaError as error:
            partition.note_refused(records, self._now_ms, error.code)
            raise
        self.waiting.append(WaitingBatch(partition, records))
        self._put_off_for.add(partition)
        self._places.append((produced, len(produced)))
        produced.append(PartitionProduced(index, 0, -1))

    def _append(self, one: WaitingBatch, produced: list[PartitionProduced], at: int, now_ms: int) -> None:
        partition, index = one.partition, produced[at].index
        try:
            if one.error is not None:
                raise one.error
            appended = partition.append_prepared(one.batch, now_ms)
        except KafkaError as error:
            self.has_failed = True
            produced[at] = refused(index, error)
            return
        produced[at] = taken(partition, appended, index)
        if self._request.acks == ACKS_ALL:
            self._uncommitted.append(UncommittedBatch(partition, appended.last_offset, produced, at))


def serve_again(
    broker: Broker, connection: Connection, session: Session, frame: memoryview
) -> Reply | PendingReply | None:
    """A request that begins like an earlier one. None if it does not, or is not as simple: then `serve` is to do it."""
    at = session.template_at
    template = session.templates.find(_beginning(frame, at), broker.resolver.version)
    if template is None or not template.partition.takes_all:
        return None
    try:
        records = last_records(frame, at, template.version)
    except UNREADABLE:
        return None
    return None if not records else template.serve(broker, connection, frame, records)


def _note_template(
    broker: Broker, session: Session, header: RequestHeader, request: ProduceRequest, frame: memoryview
) -> None:
    at = header.body_at + request.records_at
    if header.api_version < _FIRST_VERSION_WITH_ZSTD or at > _BEGINNING_BYTES_MAX:
        return
    session.template_at = at
    beginning, version = _beginning(frame, at), broker.resolver.version
    if session.templates.find(beginning, version) is None:  # else another connection's, or this one's from before
        session.templates.note(beginning, version, RequestTemplate(broker, session, header, request))


def _beginning(frame: memoryview, at: int) -> bytes:
    """All that a request says before its records, but for its correlation id."""
    return bytes(frame[:_CORRELATION_AT]) + bytes(frame[_CLIENT_ID_AT:at])


class RequestTemplate:
    """What requests mean that begin alike.

    A producer repeats itself: from one request to the next only the correlation id and the records differ. So what
    comes before the records is understood once and recognised from then on, which saves a third of a tiny request.
    """

    __slots__ = ("_acks", "_client_id", "_index", "_name", "_reply", "_timeout_ms", "_topic_id", "partition", "version")

    def __init__(self, broker: Broker, session: Session, header: RequestHeader, request: ProduceRequest) -> None:
        (topic,) = request.topics
        self._index = topic.partitions[0].index
        self.partition = _find(broker, session, header, topic, self._index)
        self.version = header.api_version
        self._client_id = header.client_id
        self._name = topic.name
        self._topic_id = topic.topic_id
        self._acks = request.acks
        self._timeout_ms = request.timeout_ms
        self._reply = SingleReply(self.version, self._name, self._topic_id, self._index)

    def serve(
        self, broker: Broker, connection: Connection, frame: memoryview, records: memoryview
    ) -> Reply | PendingReply:
        (correlation_id,) = _CORRELATION.unpack_from(frame, _CORRELATION_AT)
        partition = self.partition
        try:
            appended = partition.append(records, broker.arrival_ms())
        except KafkaError as error:
            return encode_reply(self._header(correlation_id), [self._result(refused(self._index, error))])
        start_offset = partition.start_offset
        if self._acks == ACKS_ALL and appended.last_offset >= partition.high_watermark.offset:
            produced = PartitionProduced(
                self._index, 0, appended.base_offset, appended.log_append_time_ms, start_offset
            )
            result = self._result(produced)
            uncommitted = [UncommittedBatch(partition, appended.last_offset, result[2], 0)]
            waiting = WaitingProduce(broker, self._header(correlation_id), [result], uncommitted)
            return waiting.wait(PendingReply(connection), self._timeout_ms)
        return self._reply.fill(correlation_id, appended.base_offset, appended.log_append_time_ms, start_offset)

    def _header(self, correlation_id: int) -> RequestHeader:
        return RequestHeader(PRODUCE, self.version, correlation_id, self._client_id, 0)

    def _result(self, produced: PartitionProduced) -> TopicResult:
        return self._name, self._topic_id, [produced]


def _find(broker: Broker, session: Session, header: RequestHeader, topic: ProduceTopic, index: int) -> Partition:
    """Whether this broker leads it is asked with the batch."""
    if header.api_version >= FIRST_VERSION_WITH_IDS:
        known = topic_to_write_by_id(broker, session.principal, topic.topic_id)
    else:
        known = topic_to_write(broker, session.principal, topic.name)
    return broker.resolver.replica(known, index)


def _checked(request: ProduceRequest, records: memoryview | None, version: int) -> memoryview:
    if not -1 <= request.acks <= 1:
        raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks is 0, 1 or all (-1), not {request.acks}")
    if request.transactional_id is not None:
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactions are not supported yet")
    if not records:
        raise KafkaError(ErrorCode.INVALID_RECORD, "there is no record batch to append")
    if version < _FIRST_VERSION_WITH_ZSTD and _is_zstd(records):  # consumers of that age could not read it
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"Produce v{version} knows no zstd")
    return records


def _is_zstd(records: memoryview) -> bool:
    return len(records) >= HEADER_BYTES and read_header(records).compression == Codec.ZSTD
