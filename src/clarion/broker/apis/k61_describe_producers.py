"""DescribeProducers v0: the idempotent producers that partitions remember (KIP-664).

Left out: transactions, and with them the coordinator's epoch and the first offset of an open one.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from clarion.broker.apis.refusals import REFUSALS, refusal_of
from clarion.broker.authorizer import Operation, Principal
from clarion.broker.broker import Broker, RequestContext
from clarion.replication.producers import Producer
from clarion.wire.messages.logs import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

PRODUCERS_MAX: Final = 100_000  # in one reply, some 4 MB; who has more sees the first ones


async def handle(
    broker: Broker, request: DescribeProducersRequest, context: RequestContext
) -> DescribeProducersResponse:
    room = PRODUCERS_MAX
    topics = []
    async for topic in broker.turns.each(request.topics):
        partitions = []
        async for index in broker.turns.each(topic.partition_indexes):
            partitions.append(await _answer(broker, context.principal, topic.name, index, room))
            room -= len(partitions[-1].active_producers)
        topics.append(TopicResponse(name=topic.name, partitions=tuple(partitions)))
    return DescribeProducersResponse(topics=tuple(topics))


async def _answer(broker: Broker, who: Principal, topic: str, index: int, room: int) -> PartitionResponse:
    try:
        partition = broker.resolver.partition(broker.resolver.topic(who, Operation.READ, topic), index)
    except REFUSALS as error:
        code, message = refusal_of(error, f"{topic}-{index}")
        return PartitionResponse(partition_index=index, error_code=code, error_message=message)
    known = list(islice(partition.producers, room))  # others come and go between two turns
    producers = [_state(one) async for one in broker.turns.each(known)]
    return PartitionResponse(partition_index=index, active_producers=tuple(producers))


def _state(producer: Producer) -> ProducerState:
    last = producer.batches[-1] if producer.batches else None
    return ProducerState(
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        last_sequence=last.last_sequence if last else -1,
        last_timestamp=last.timestamp_ms if last else producer.last_timestamp_ms,
    )
