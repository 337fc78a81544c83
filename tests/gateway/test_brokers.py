"""Where a request of HTTP's is done: by the topic that was meant, and not by another one of its name."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from clarion.broker.authorizer import ANONYMOUS
from clarion.gateway.brokers import Brokers
from clarion.gateway.reading import MessageReader
from clarion.model.errors import ErrorCode, KafkaError
from clarion.wire.records import encode_batch
from tests.broker.harness import running, until
from tests.broker.moves import make, records, replica
from tests.broker.test_cluster import cluster_of


async def test_a_topic_that_was_made_anew_meanwhile_is_not_the_one_that_was_meant(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        brokers = Brokers(node.broker)
        meant = await node.broker.create_topic("orders", 1, {})
        batch = encode_batch([(None, b"v", (), 1)])
        assert await brokers.write(ANONYMOUS, meant, 0, batch) == 0
        await node.broker.delete_topic("orders")
        another = await node.broker.create_topic("orders", 1, {})
        for asked in (
            brokers.write(ANONYMOUS, meant, 0, batch),
            brokers.read(ANONYMOUS, meant, 0, 0),
            MessageReader(brokers).begin(ANONYMOUS, meant, [0], "earliest"),
        ):
            with pytest.raises(KafkaError, match="has been deleted") as refused:
                await asked
            assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await brokers.write(ANONYMOUS, another, 0, batch) == 0


@pytest.mark.parametrize("asked", [1, 2])
@pytest.mark.parametrize("may_repeat", [False, True])
async def test_what_a_leader_has_taken_is_not_written_again_by_the_next_one(
    tmp_path: Path, asked: int, may_repeat: bool
) -> None:
    """The broker that leads is asked, or the other one. As one producer with its sequence it would be known again."""
    async with cluster_of(tmp_path, 3) as cluster:
        await make(cluster, 1, 2, 3, retention_ms="-1")
        for one in (1, 2, 3):
            await cluster[one].broker.node.settled()
        await until(lambda: replica(cluster, 1).is_leader)
        await cluster[3].broker.node._fetchers.close()  # until another one leads nothing is committed
        brokers, topic = Brokers(cluster[asked].broker), cluster[asked].broker.image.topics["t"]
        producer = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0} if may_repeat else {}
        batch = encode_batch([(None, b"once", (), 1)], **producer)
        writing = asyncio.create_task(brokers.write(ANONYMOUS, topic, 0, batch, may_repeat=may_repeat))
        await until(lambda: replica(cluster, 2).next_offset == 1)
        await cluster[1].broker.node.membership.be_drained(True)
        if may_repeat:
            assert await writing == 0
        else:
            with pytest.raises(KafkaError, match="another broker leads") as unknown:
                await writing
            assert unknown.value.code is ErrorCode.REQUEST_TIMED_OUT
        brokers.close()
        await until(lambda: replica(cluster, 2).is_leader)
        assert records(replica(cluster, 2)) == [(None, b"once")]
