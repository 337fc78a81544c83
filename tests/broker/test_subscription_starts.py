"""Where a subscription begins is decided when it is made: what is written before its first reader comes is for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clarion.broker.authorizer import ANONYMOUS
from clarion.broker.messages import write
from clarion.broker.subscription_actions import SubscriptionActions
from clarion.cluster.schema import NO_LEADER
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import TopicPartition
from clarion.model.seeking import Seek
from clarion.model.subscription import CONSUMED, Subscription
from clarion.wire.messages.topics import DeleteTopicsRequest
from clarion.wire.records import encode_batch
from tests.broker import group_words
from tests.broker.harness import Node, running, until
from tests.broker.kept import Kept, keeping
from tests.broker.share_words import QUICK, ShareConsumer
from tests.broker.test_cluster import cluster_of, create, topic

HOUR_MS = 3_600_000


async def fill(node: Node, *values: bytes, topic: str = "orders", partition: int = 0, ago_ms: int = 0) -> None:
    now_ms = node.broker.clock.now_ms()
    batch = encode_batch([(None, value, (), now_ms - ago_ms) for value in values])
    await write(node.broker, ANONYMOUS, topic, partition, batch)


async def subscribe(node: Node, **rules: Any) -> Subscription:
    wanted = Subscription.from_json({"name": "billing", "topics": ["orders"], **rules})
    return await node.broker.subscriptions.create(wanted, ANONYMOUS)


async def pull(node: Node) -> list[bytes | None]:
    found = await node.broker.queues.pull(ANONYMOUS, "billing", consumer="me", messages_max=100, wait_ms=0)
    return [one.value for one in found]


async def test_what_is_written_before_anybody_reads_is_for_a_queue_that_begins_at_the_latest(tmp_path: Path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic("orders")
        await fill(node, b"before")
        await subscribe(node, start="latest")
        await fill(node, b"first", b"second")
        assert (await SubscriptionActions(node.broker).describe("billing", ANONYMOUS))["lag"] == 2
    async with running(tmp_path, **QUICK) as node:
        peeked = await SubscriptionActions(node.broker).peek("billing", ANONYMOUS)
        assert [one.record.value for one in peeked] == [b"first", b"second"]
        assert await pull(node) == [b"first", b"second"], "also after a restart"


async def test_a_share_consumer_of_kafkas_begins_there_too(tmp_path: Path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic("orders")
        await fill(node, b"before")
        await subscribe(node, start="latest")
        await fill(node, b"first")
        consumer = ShareConsumer(node, node, group="billing", topic="orders")
        await consumer.join()
        assert await consumer.fetch() == {1: 1}


async def test_how_long_ago_counts_from_when_it_was_made(tmp_path: Path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic("orders")
        await fill(node, b"long ago", ago_ms=3 * HOUR_MS)
        await fill(node, b"of this hour", ago_ms=HOUR_MS // 2)
        await subscribe(node, start="1h")
        await fill(node, b"new")
        assert await pull(node) == [b"of this hour", b"new"]


async def test_partitions_and_topics_that_come_later_are_read_from_their_start(tmp_path: Path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic("orders-eu")
        await fill(node, b"before", topic="orders-eu")
        await subscribe(node, topics=[], pattern="orders-.*", start="latest")
        await node.topic("orders-us", partitions=2)
        await fill(node, b"of a new topic", topic="orders-us", partition=1)
        await fill(node, b"of an old one", topic="orders-eu")
        assert sorted(one for one in await pull(node) if one) == [b"of a new topic", b"of an old one"]


async def test_a_topic_that_is_added_to_its_rules_begins_then(tmp_path: Path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic("orders")
        await node.topic("payments")
        await subscribe(node, start="latest")
        await fill(node, b"an order")
        await fill(node, b"before", topic="payments")
        await node.broker.subscriptions.update("billing", {"topics": ["orders", "payments"]}, ANONYMOUS)
        await fill(node, b"a payment", topic="payments")
        assert sorted(one for one in await pull(node) if one) == [b"a payment", b"an order"]


@pytest.mark.parametrize("start", ["earliest", "latest"])
@pytest.mark.parametrize(
    ("to", "then"),
    [
        (Seek.earliest(), [b"0", b"1", b"2", b"new"]),
        (Seek.latest(), [b"new"]),
        (Seek(offsets={TopicPartition("orders", 0): 1}), [b"1", b"2", b"new"]),
        (Seek(timestamp=2**62), [b"new"]),
    ],
)
async def test_before_the_first_reader_a_seek_is_where_it_begins(tmp_path: Path, start: str, to: Seek, then):
    async with running(tmp_path, **QUICK) as node:
        await node.topic("orders")
        await fill(node, b"0", b"1", b"2")
        made = await subscribe(node, start=start)
        actions = SubscriptionActions(node.broker)
        await actions.seek("billing", to, ANONYMOUS)
        assert node.broker.subscriptions.known("billing").rules() == made.rules(), "its rules stay as they are"
        await fill(node, b"new")
        assert (await actions.describe("billing", ANONYMOUS))["lag"] == len(then)
        assert await pull(node) == then


async def test_what_is_written_after_a_purge_is_not_passed_over(tmp_path: Path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic("orders")
        await fill(node, b"a", b"b")
        await subscribe(node)
        assert await SubscriptionActions(node.broker).purge("billing", ANONYMOUS) == 2
        await fill(node, b"c")
        assert await pull(node) == [b"c"]


async def test_a_stream_begins_where_it_was_made_whatever_its_reader_would_do(tmp_path: Path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic("orders")
        await fill(node, b"before")
        await subscribe(node, mode="stream", start="latest")
        await fill(node, b"new")
        await group_words.find(node, "billing")
        assert await group_words.committed(node, "billing", topic="orders") == 1


async def test_a_stream_reads_partitions_and_topics_that_come_later_from_their_start(tmp_path: Path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic("orders-eu")
        await fill(node, b"before", topic="orders-eu")
        await subscribe(node, topics=[], pattern="orders-.*", mode="stream", start="latest")
        await node.topic("orders-us")
        await node.topic("others")
        await fill(node, b"first", b"second", topic="orders-us")
        await group_words.find(node, "billing")
        found = [
            await group_words.committed(node, "billing", topic=name) for name in ("orders-eu", "orders-us", "others")
        ]
        assert found == [1, 0, -1], "what it does not read is its reader's matter"
        partition = node.broker.partitions.find(node.broker.image.topics["orders-us"].id, 0)
        assert partition is not None
        partition.raise_start(1)
        assert await group_words.committed(node, "billing", topic="orders-us") == 1, "an older place is none"


async def test_a_partition_that_there_is_none_of_has_no_beginning(tmp_path: Path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic("orders")
        await subscribe(node, mode="stream", start="latest")
        await group_words.find(node, "billing")
        assert await group_words.committed(node, "billing", topic="orders", partition=7) == -1


async def test_who_asks_where_a_stream_begins_whose_leader_is_away_asks_again(tmp_path: Path):
    """Its client does so by itself: it would give up if it heard of a broker that is not available."""
    async with cluster_of(tmp_path, 2) as cluster:
        node = cluster[1]
        await subscribe(node, topics=[], pattern="orders-.*", mode="stream", start="latest")
        await create(node, topic("orders-eu", assignments=((2,),)))
        await until(lambda: "orders-eu" in node.broker.image.topics)
        found = await group_words.find(node, "billing")
        coordinator = cluster[found.node_id]
        await until(lambda: all(shard.is_loaded for shard in coordinator.server.groups.shards))
        assert await group_words.committed(coordinator, "billing", topic="orders-eu") == 0
        await cluster.stop(2)
        await until(lambda: node.broker.image.topics["orders-eu"].partitions[0].leader == NO_LEADER)
        await until(lambda: all(shard.is_loaded for shard in node.server.groups.shards))
        assert await group_words.committed(node, "billing", topic="orders-eu") == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert await group_words.commit(node, 0, "billing", "orders-eu") == ErrorCode.NONE
        assert await group_words.committed(node, "billing", topic="orders-eu") == 0, "who has a place needs no leader"


async def test_a_topic_made_again_is_new_to_it(tmp_path: Path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic("orders")
        await fill(node, b"before", b"before, too")
        await subscribe(node, start="latest")
        await node.ask(DeleteTopicsRequest(topic_names=("orders",), timeout=1000), 3)
        await node.topic("orders")
        await fill(node, b"first of the new one")
        assert await pull(node) == [b"first of the new one"]


async def test_retention_keeps_what_came_since_it_was_made_and_no_more(tmp_path: Path, clock):
    async with keeping(tmp_path, clock) as node:
        await node.topic(clarion_retention_by="subscriptions", file_delete_delay_ms="0")
        kept = Kept(node, clock)
        await kept.write(b"before")
        reader = Subscription(name="reader", topics=("t",), retention_ms=CONSUMED, start="latest")
        await node.broker.subscriptions.create(reader, ANONYMOUS)
        node.partition().roll(clock.now_ms())
        await kept.write(b"since")
        await kept.pass_time(1)
        assert await kept.read() == [b"since"]


async def test_where_a_leader_is_away_nothing_is_made(tmp_path: Path):
    async with cluster_of(tmp_path, 2) as cluster:
        (made,) = await create(cluster[1], topic("orders", assignments=((1,), (2,))))
        assert made[0] == ErrorCode.NONE
        node = cluster[1]
        await cluster.stop(2)
        await until(lambda: node.broker.image.topics["orders"].partitions[1].leader == NO_LEADER)
        with pytest.raises(KafkaError, match=r"orders-1 has no leader.*try again") as refused:
            await subscribe(node, start="latest")
        assert refused.value.code == ErrorCode.LEADER_NOT_AVAILABLE
        assert node.broker.subscriptions.get("billing") is None
        await subscribe(node, start="earliest")


async def test_one_of_an_earlier_version_begins_when_it_is_read_as_it_always_did(tmp_path: Path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic("orders")
        made = await subscribe(node, start="latest")
        await node.broker.subscriptions._save(replace(made, begins=None), made.revision)
        await fill(node, b"before it was read")
        assert await pull(node) == []
        await fill(node, b"after")
        assert await pull(node) == [b"after"]
