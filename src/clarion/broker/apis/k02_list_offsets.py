"""ListOffsets v1-11: the offset at a time, at the start, at the end.

v2 isolation level, throttle time · v4 leader epochs · v6 flexible · v7 time -3 (the record with the greatest timestamp)
· v8 time -4 (earliest on this disk: the same as the earliest) · v9 time -5 (last one in remote storage) · v10 timeout ·
v11 time -6 (first one not yet in remote storage).

Left out: there is no remote storage, so -5 and -6 find nothing; there are no transactions, so READ_COMMITTED ends at
the watermark; the timeout is for remote storage. A replica's request is answered like a consumer's.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Final, NamedTuple

from clarion.broker.apis.refusals import REFUSALS, refusal_of
from clarion.broker.authorizer import Operation
from clarion.broker.broker import Broker, RequestContext
from clarion.broker.threads import in_thread
from clarion.log.batch_headers import DamagedSegment
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.seeking import EARLIEST, LATEST
from clarion.replication import Partition
from clarion.wire.messages.logs import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
_FIRST_VERSIONS: Final = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
_OF_THE_START: Final = (EARLIEST, EARLIEST_LOCAL)
_OFFSET_NOT_AVAILABLE_SINCE: Final = 5  # the version in which clients know this error
_SEARCH_TRIES: Final = 3  # a file is taken away at most once per sweep of the cleaner


class FoundOffset(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: int


NOTHING: Final = FoundOffset(-1, -1, -1)


async def handle(broker: Broker, request: ListOffsetsRequest, context: RequestContext) -> ListOffsetsResponse:
    times_named = Counter((topic.name, one.partition_index) for topic in request.topics for one in topic.partitions)
    topics = []
    async for topic in broker.turns.each(request.topics):
        partitions = []
        async for asked in broker.turns.each(topic.partitions):
            is_named_twice = times_named[topic.name, asked.partition_index] > 1
            partitions.append(await _answer(broker, topic.name, asked, context, is_named_twice))
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=tuple(partitions)))
    return ListOffsetsResponse(topics=tuple(topics))


async def _answer(
    broker: Broker, topic: str, asked: ListOffsetsPartition, context: RequestContext, is_named_twice: bool
) -> ListOffsetsPartitionResponse:
    try:
        if is_named_twice:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a partition is named twice")
        _check_version(asked.timestamp, context.version)
        known = broker.resolver.topic(context.principal, Operation.DESCRIBE, topic)
        partition = broker.resolver.partition(known, asked.partition_index, asked.current_leader_epoch)
        if asked.timestamp not in _OF_THE_START and not partition.is_watermark_current:
            is_known = context.version >= _OFFSET_NOT_AVAILABLE_SINCE
            code = ErrorCode.OFFSET_NOT_AVAILABLE if is_known else ErrorCode.LEADER_NOT_AVAILABLE
            raise KafkaError(code, f"{partition.tp} has a new leader, which does not know yet what is committed")
        found = await _find(broker, partition, asked.timestamp)
    except REFUSALS as error:
        code = refusal_of(error, f"{topic}-{asked.partition_index}").code
        return ListOffsetsPartitionResponse(partition_index=asked.partition_index, error_code=code)
    return ListOffsetsPartitionResponse(
        partition_index=asked.partition_index,
        timestamp=found.timestamp,
        offset=found.offset,
        leader_epoch=found.leader_epoch,
    )


def _check_version(timestamp: int, version: int) -> None:
    first_version = 0 if timestamp >= 0 else _FIRST_VERSIONS.get(timestamp)
    if first_version is None or version < first_version:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"time {timestamp} means nothing in version {version}")


async def _find(broker: Broker, partition: Partition, timestamp: int) -> FoundOffset:
    match timestamp:
        case -1:  # LATEST
            return FoundOffset(-1, partition.high_watermark.offset, partition.leader_epoch)
        case -2 | -4:  # EARLIEST, EARLIEST_LOCAL
            return FoundOffset(-1, partition.start_offset, partition.epoch_at(partition.start_offset))
        case -5 | -6:  # LATEST_TIERED, EARLIEST_PENDING_UPLOAD
            return NOTHING
    found = await search_time(broker, partition, timestamp)
    if found is None or found[1] < 0:
        return NOTHING
    return FoundOffset(found[0], found[1], partition.epoch_at(found[1]))


async def search_time(broker: Broker, partition: Partition, timestamp: int) -> tuple[int, int] | None:
    """In a thread, a few at a time: a search reads from the disk, and may unpack a batch."""
    for tries_left in reversed(range(_SEARCH_TRIES)):
        async with broker.time_searches:
            search = partition.search_times()
            try:
                if timestamp == MAX_TIMESTAMP:
                    return await in_thread(search.latest)
                return await in_thread(partial(search.first_from, timestamp))
            except (FileNotFoundError, DamagedSegment):
                if not tries_left or partition.is_gone:
                    raise
                # Retention or compaction took a file away meanwhile: what stands there now is searched instead.
            finally:
                search.close()
    raise AssertionError("the last try returns or raises")
