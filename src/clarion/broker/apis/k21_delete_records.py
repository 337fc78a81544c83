"""DeleteRecords v0-2: move a partition's start forward; what lies before it is gone for readers at once.

v1 same · v2 flexible.

Left out: the timeout, since there are no followers to wait for.
"""

from __future__ import annotations

import asyncio
from typing import Final

from clarion.broker.apis.refusals import REFUSALS, refusal_of
from clarion.broker.broker import Broker, RequestContext
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.names import is_internal
from clarion.replication import Partition
from clarion.wire.messages.k21_delete_records import (
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


async def handle(broker: Broker, request: DeleteRecordsRequest, context: RequestContext) -> DeleteRecordsResponse:
    topics = []
    for topic in request.topics:
        results = []
        for asked in topic.partitions:
            results.append(_delete(broker, topic.name, asked))
            await asyncio.sleep(0)  # each may rename files
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=tuple(results)))
    return DeleteRecordsResponse(topics=tuple(topics))


def _delete(broker: Broker, topic: str, asked: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
    try:
        partition = broker.partitions.get(topic, asked.partition_index)
        offset = _new_start(partition, asked.offset)
        if offset > partition.start_offset:
            partition.log.advance_start(offset)
            log.info("records_deleted", partition=partition.tp, start=offset)
    except REFUSALS as error:
        return DeleteRecordsPartitionResult(
            partition_index=asked.partition_index,
            low_watermark=NO_WATERMARK,
            error_code=refusal_of(error, f"{topic}-{asked.partition_index}").code,
        )
    return DeleteRecordsPartitionResult(partition_index=asked.partition_index, low_watermark=partition.start_offset)


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
