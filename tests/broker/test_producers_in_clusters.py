"""Idempotent producers of a cluster: what they send in order lies in order, whoever is not ready yet."""

from __future__ import annotations

from pathlib import Path

from clarion.model.errors import ErrorCode
from clarion.replication.producers import FIRST_KEYED_ID
from tests.broker.harness import Node, until
from tests.broker.talk import batch
from tests.broker.test_cluster import _leads, cluster_of, create, topic


async def send(node: Node, sequence: int, producer: int = 7) -> ErrorCode:
    sent = batch(b"%d" % sequence, producer_id=producer, producer_epoch=0, base_sequence=sequence)
    return ErrorCode((await node.client.produce({("t", 0): sent}, acks=-1))[("t", 0)].error_code)


async def test_what_was_sent_before_the_leader_knew_of_a_new_topic_is_not_overtaken(tmp_path: Path) -> None:
    """Clients hear of it from another broker first. Told of a wrong order when it comes again, librdkafka would begin
    a new epoch, and write it behind what has overtaken it."""
    async with cluster_of(tmp_path, 2) as cluster:
        assert await send(cluster[2], 0) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await create(cluster[1], topic("t", assignments=((2, 1),)))
        await until(lambda: _leads(cluster[2], "t", 0))
        assert await send(cluster[2], 0, producer=8) == ErrorCode.NONE
        assert [await send(cluster[2], one) for one in (1, 2)] == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
        assert [await send(cluster[2], one) for one in (0, 1, 2)] == [ErrorCode.NONE] * 3


async def test_a_producer_that_goes_on_in_a_topic_that_was_made_anew_has_to_ask_twice(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 1) as cluster:
        await create(cluster[1], topic("t", assignments=((1,),)))
        await until(lambda: _leads(cluster[1], "t", 0))
        assert [await send(cluster[1], one) for one in (57, 58)] == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
        assert [await send(cluster[1], one) for one in (57, 58)] == [ErrorCode.NONE] * 2
        assert await send(cluster[1], 4711, producer=FIRST_KEYED_ID + 1) == ErrorCode.NONE, "an idempotency key has one"
