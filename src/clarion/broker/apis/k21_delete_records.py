"""DeleteRecords v0-2: move a partition's start forward; what lies before it is gone for readers at once.

The new start is on disk before it is answered, and before any file goes: no crash brings a deleted record back. Nor
does another leader: the followers of which the next one is chosen have to say that they have the new start on disk,
too, within the request's timeout (REQUEST_TIMED_OUT).

v1 same · v2 flexible.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from clarion.broker.apis.refusals import REFUSALS, refusal_of
from clarion.broker.authorizer import Operation, Principal
from clarion.broker.broker import Broker, RequestContext
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.names import is_internal
from clarion.replication import Partition
from clarion.wire.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from clarion.world import event_log

log = event_log("broker")

ALL_COMMITTED: Final = -1
NO_WATERMARK: Final = -1
_LOOK_SECONDS: Final = 0.005  # followers are told at once, and answer within a few milliseconds
_LOOK_SECONDS_MAX: Final = 0.1  # who has not by then is away, perhaps: others may be waiting for it as well
_LOOK_SECONDS_EACH: Final = 0.00003  # ten times as long as it takes to look at one


async def handle(broker: Broker, request: DeleteRecordsRequest, context: RequestContext) -> DeleteRecordsResponse:
    raised: list[Partition] = []
    each, who = broker.turns.each, context.principal
    topics = [
        (topic.name, [_raise_start(broker, who, topic.name, asked, raised) async for asked in each(topic.partitions)])
        async for topic in each(request.topics)
    ]
    try:
        if raised:
            await broker.making_room(broker.checkpoints.save_now)
    except OSError as error:
        code = refusal_of(error, "DeleteRecords").code
        topics = [(name, [_unless_refused(result, code) for result in results]) for name, results in topics]
    else:
        await _drop_segments(raised)
        late = await _unheard(broker, raised, request.timeout, context.has_left)
        topics = [(name, [late.get((name, one.partition_index), one) for one in results]) for name, results in topics]
    return DeleteRecordsResponse(
        topics=tuple(DeleteRecordsTopicResult(name=name, partitions=tuple(results)) for name, results in topics)
    )


def _raise_start(
    broker: Broker, who: Principal, topic: str, asked: DeleteRecordsPartition, raised: list[Partition]
) -> DeleteRecordsPartitionResult:
    """For readers at once, and not yet for good."""
    try:
        partition = broker.resolver.partition(
            broker.resolver.topic(who, Operation.DELETE, topic), asked.partition_index
        )
        _raise_to(partition, asked.offset)
        raised.append(partition)
    except REFUSALS as error:
        return _refused(asked.partition_index, refusal_of(error, f"{topic}-{asked.partition_index}").code)
    return DeleteRecordsPartitionResult(partition_index=asked.partition_index, low_watermark=partition.start_offset)


def _raise_to(partition: Partition, asked: int) -> None:
    offset = _new_start(partition, asked)
    if offset > partition.start_offset:
        partition.raise_start(offset)
        log.info("records_deleted", partition=partition.tp, start=offset)


async def delete_before(broker: Broker, partition: Partition, offset: int, timeout_ms: int) -> None:
    """For who has read this very partition: its topic's name may be another one's by now. KafkaError says why not."""
    try:
        partition.check_leads()
        _raise_to(partition, offset)
        await broker.making_room(broker.checkpoints.save_now)
    except REFUSALS as error:
        raise KafkaError(*refusal_of(error, partition.tp)) from error
    await _drop_segments([partition])
    for refused in (await _unheard(broker, [partition], timeout_ms, lambda: False)).values():
        raise KafkaError(ErrorCode(refused.error_code), f"{partition.tp}: not every replica has heard of it")


async def _drop_segments(raised: list[Partition]) -> None:
    """The new starts are on disk; what lies before them is nobody's, whatever a crash leaves of it."""
    for partition in raised:
        try:
            if not partition.is_gone and partition.failure is None:
                partition.drop_below_start(is_start_saved=True)
        except OSError as error:
            log.warning("segments_stay", partition=partition.tp, reason=str(error))
        await asyncio.sleep(0)  # each may rename files


async def _unheard(
    broker: Broker, raised: list[Partition], timeout_ms: int, has_left: Callable[[], bool]
) -> dict[tuple[str, int], DeleteRecordsPartitionResult]:
    """Those of which not all in sync have said in time that they know the new start."""
    loop = asyncio.get_running_loop()
    until = loop.time() + timeout_ms / 1000
    starts = {one: one.start_offset for one in raised}
    each, waiting, pause = broker.turns.each, list(starts), _LOOK_SECONDS
    deposed: dict[Partition, ErrorCode] = {}  # for as long as this request: who led meanwhile may have the records yet
    async for one in each(waiting):
        one.tell_start()
    while waiting := [one async for one in each(waiting) if not _is_known(broker, one, starts[one])]:
        deposed |= {one: ErrorCode.NOT_LEADER_OR_FOLLOWER for one in waiting if not one.is_leader}
        waiting = [one for one in waiting if one not in deposed]
        if not waiting or loop.time() >= until or has_left():
            break
        await asyncio.sleep(min(pause + len(waiting) * _LOOK_SECONDS_EACH, max(0.0, until - loop.time())))
        pause = min(2 * pause, _LOOK_SECONDS_MAX)
    timed_out = dict.fromkeys(waiting, ErrorCode.REQUEST_TIMED_OUT)
    return {
        (one.tp.topic, one.tp.partition): _refused(one.tp.partition, code)
        for one, code in (timed_out | deposed).items()
    }


def _is_known(broker: Broker, partition: Partition, start: int) -> bool:
    """To all of which one may lead it next."""
    if partition.state is None:
        return True
    if not partition.is_leader:
        return False
    now = asyncio.get_running_loop().time()
    for one in partition.may_lead_next:
        if one != broker.node_id:
            followed = broker.sessions.follower(one, partition.topic_id, partition.tp.partition, now)
            if followed is None or followed.start_offset < start:
                return False
    return True


def _refused(index: int, code: ErrorCode) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(partition_index=index, low_watermark=NO_WATERMARK, error_code=code)


def _unless_refused(result: DeleteRecordsPartitionResult, code: ErrorCode) -> DeleteRecordsPartitionResult:
    return result if result.error_code else _refused(result.partition_index, code)


def _new_start(partition: Partition, offset: int) -> int:
    if is_internal(partition.tp.topic):
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{partition.tp.topic} is internal")
    if partition.settings.is_compacted and not partition.settings.is_deleted:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION, f"{partition.tp.topic} is compacted: its records are never deleted"
        )
    watermark = partition.high_watermark.offset
    if offset == ALL_COMMITTED:
        return watermark
    if not 0 <= offset <= watermark:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{offset} is not in 0..{watermark}")
    return offset
