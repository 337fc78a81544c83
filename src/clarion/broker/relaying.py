"""Batches that the broker itself writes to a partition, wherever that is led: here, or by asking the broker that does.

async with writing_to(broker, topic, 0) as write:
    await write(batch)  # committed when it returns; KafkaError says why it is not
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from clarion.broker.messages import WRITE_TIMEOUT_MS, write_to
from clarion.cluster import Topic
from clarion.model.errors import ErrorCode, KafkaError
from clarion.net.channel import ChannelLostError, ChannelUnusableError
from clarion.wire import relayed
from clarion.wire.apis import PRODUCE

if TYPE_CHECKING:
    from clarion.broker.broker import Broker

Write = Callable[[bytearray], Awaitable[object]]


@asynccontextmanager
async def writing_to(broker: Broker, topic: Topic, index: int) -> AsyncIterator[Write]:
    """Whether anybody may write there has to be asked before: another broker hears it from this one."""
    partition = broker.partitions.find(topic.id, index)
    if partition is not None and partition.is_leader:
        yield lambda batch: write_to(broker, partition, batch)
        return
    node, leader = broker.node, topic.partitions[index].leader
    if node is None or leader not in broker.image.brokers:
        raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic.name}-{index} has no leader at the moment")
    channel = node.channel_to(broker, leader)
    try:
        opened = await channel.open()

        async def produce(batch: bytearray) -> None:
            body = relayed.produce_request(topic.id, index, batch, WRITE_TIMEOUT_MS)
            produced = relayed.read_produced(await opened.ask_encoded(PRODUCE, relayed.PRODUCE_VERSION, body))
            if produced.error_code:
                raise KafkaError(ErrorCode(produced.error_code), produced.error_message or "")

        yield produce
    except (ChannelLostError, ChannelUnusableError, TimeoutError) as error:
        raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {leader} does not answer: {error}") from error
    finally:
        channel.close()
