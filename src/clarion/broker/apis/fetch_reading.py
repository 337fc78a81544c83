"""What a fetch finds when it looks: batches of the partitions that have news, as far as there is room, or why not.

Nothing here waits. What is not in memory is noted (`_cold`), for a thread to read before the next look.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from clarion.broker.apis.fetch_replies import Collected, Found, fetched_from
from clarion.broker.apis.read_replicas import RackReader
from clarion.broker.apis.replica_fetches import read_for_replica
from clarion.broker.authorizer import Operation
from clarion.broker.fetch_sessions import FetchSession, SessionPartition
from clarion.broker.messages import check_offset
from clarion.broker.resolver import check_leader_epoch
from clarion.log.batch_headers import ColdRead, Reader, read_any, read_cached
from clarion.log.slices import FileSlice
from clarion.model.errors import ErrorCode, KafkaError
from clarion.replication import Partition
from clarion.wire.fetch import FetchRequest
from clarion.wire.fetch_response import PartitionFetched
from clarion.wire.frames import RequestHeader
from clarion.world import event_log

if TYPE_CHECKING:
    from clarion.broker.broker import Broker

log = event_log("broker")

FIRST_VERSION_WITH_IDS = 13
_COLD_TRIES_MAX: Final = 32  # three for each segment that is touched; then the loop waits for the disk


class FetchReading:
    """The half of a fetch that reads."""

    __slots__ = (
        "_broker",
        "_cold",
        "_cold_tries",
        "_header",
        "_listener",
        "_missing_bytes",
        "_rack_reader",
        "_request",
        "_session",
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
        self._missing_bytes = 0  # until there is reason to answer
        self._cold: list[ColdRead] = []  # what the last look found no answer for without waiting for the disk
        self._cold_tries = 0

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
                to.must_tell = to.must_tell or bool(is_answer) or self._is_deleted_from(asked, fetched)
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

    def _is_deleted_from(self, asked: SessionPartition, fetched: PartitionFetched) -> bool:
        """Whether a follower does not know yet where the log begins: somebody may wait until it does."""
        return self._session.replica_id >= 0 and asked.start_offset < fetched.log_start_offset != asked.reported_start

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


def _slices(
    asked: SessionPartition, partition: Partition, budget: int, reader: Reader, *, is_first: bool
) -> list[FileSlice]:
    watermark = partition.high_watermark
    if asked.next_offset == watermark.offset:
        return []
    check_offset(partition, asked.next_offset)
    if asked.next_offset > watermark.offset and not partition.is_watermark_current:
        # It has been read by way of the leader before. To tell of an end that comes before it would take readers back.
        raise KafkaError(
            ErrorCode.OFFSET_NOT_AVAILABLE, f"{partition.tp}: this leader has yet to learn what is committed"
        )
    if asked.next_offset > watermark.offset or (budget <= 0 and not is_first):
        return []
    try:
        return partition.read(
            asked.next_offset, min(asked.max_bytes, budget), at_least_one_batch=is_first, reader=reader
        )
    except OSError as error:
        log.error("read_failed", partition=partition.tp, reason=str(error))
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR) from error
