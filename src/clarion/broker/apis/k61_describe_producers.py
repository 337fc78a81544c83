"""DescribeProducers v0: the idempotent producers that partitions remember (KIP-664).

Left out: transactions, and with them the coordinator's epoch and the first offset of an open one.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Final

from clarion.broker.apis.refusals import REFUSALS, refusal_of
from clarion.broker.broker import Broker, RequestContext
from clarion.replication.producers import Producer
from clarion.wire.apis import DESCRIBE_PRODUCERS
from clarion.wire.bridge import encode
from clarion.wire.messages.k61_describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

PRODUCERS_MAX: Final = 100_000  # in one reply, some 4 MB; who has more sees the first ones
_ENCODED_IN_LOOP_MAX: Final = 1_000  # producers; more take long enough to be felt by others


async def handle(
    broker: Broker, request: DescribeProducersRequest, context: RequestContext
) -> DescribeProducersResponse | bytes:
    room = PRODUCERS_MAX
    topics = []
    for topic in request.topics:
        partitions = []
        for index in topic.partition_indexes:
            answer = _answer(broker, topic.name, index, room)
            room -= len(answer.active_producers)
            partitions.append(answer)
            await asyncio.sleep(0)
        topics.append(TopicResponse(name=topic.name, partitions=tuple(partitions)))
    response = DescribeProducersResponse(topics=tuple(topics))
    if PRODUCERS_MAX - room <= _ENCODED_IN_LOOP_MAX:
        return response
    return await asyncio.get_running_loop().run_in_executor(
        None, encode, response, DESCRIBE_PRODUCERS, context.version, "response"
    )


def _answer(broker: Broker, topic: str, index: int, room: int) -> PartitionResponse:
    try:
        partition = broker.partitions.get(topic, index)
    except REFUSALS as error:
        code, message = refusal_of(error, f"{topic}-{index}")
        return PartitionResponse(partition_index=index, error_code=code, error_message=message)
    producers = tuple(_state(one) for one in islice(partition.producers, room))
    return PartitionResponse(partition_index=index, active_producers=producers)


def _state(producer: Producer) -> ProducerState:
    last = producer.batches[-1] if producer.batches else None
    return ProducerState(
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        last_sequence=last.last_sequence if last else -1,
        last_timestamp=last.timestamp_ms if last else producer.last_timestamp_ms,
    )
