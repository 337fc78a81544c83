"""What the cluster manager decides is kept in a topic: each event once, in order, also after restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path

from clarion.cluster.events import ClusterEvent, read_events
from clarion.model.errors import ErrorCode
from clarion.model.names import EVENTS_TOPIC
from clarion.wire.records import decode_batch
from tests.broker.harness import REPLY_SECONDS, Node, until
from tests.broker.talk import batch
from tests.broker.test_cluster import Cluster


def kept(node: Node) -> list[ClusterEvent]:
    topic = node.broker.image.topic(EVENTS_TOPIC)
    partition = None if topic is None else node.broker.partitions.find(topic.id, 0)
    if partition is None:
        return []
    return [ClusterEvent.of(one.value) for each in partition.batches() for one in decode_batch(each)]


async def all_are_kept(cluster: Cluster, by: int) -> list[ClusterEvent]:
    """Returns them when a broker has what the store has."""
    async with asyncio.timeout(REPLY_SECONDS):
        while True:
            in_store = await read_events(cluster[by].server.store)
            if in_store and kept(cluster[by])[-len(in_store) :] == in_store:
                return kept(cluster[by])
            await asyncio.sleep(0.02)


def numbers(events: list[ClusterEvent]) -> list[int]:
    return [one.number for one in events]


async def test_every_decision_is_in_the_topic_once_and_in_order_also_after_restarts(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    try:
        for number in (1, 2, 3):
            await cluster.start(number, keeps_events=True)
        await cluster.everybody_knows(1, 2, 3)
        before = await all_are_kept(cluster, 1)
        assert "broker 1 is the controller" in [one.sentence for one in before]
        assert numbers(before) == list(range(len(before)))
        await until(lambda: len(cluster[1].broker.image.topics[EVENTS_TOPIC].partitions[0].in_sync) == 3)
        await cluster.stop(1)  # another one decides, and leads the topic
        await until(lambda: cluster[2].broker.image.topics[EVENTS_TOPIC].partitions[0].leader in (2, 3))
        leader = cluster[2].broker.image.topics[EVENTS_TOPIC].partitions[0].leader
        await until(lambda: any("is the controller" in one.sentence for one in kept(cluster[leader])[len(before) :]))
        after = await all_are_kept(cluster, leader)
        assert after[: len(before)] == before
        await cluster.close()
        for number in (1, 2, 3):
            await cluster.start(number, keeps_events=True)
        await cluster.everybody_knows(1, 2, 3)

        def leads() -> int:
            return cluster[1].broker.image.topics[EVENTS_TOPIC].partitions[0].leader

        await until(lambda: leads() in (1, 2, 3))
        again = await all_are_kept(cluster, leads())
        assert again[: len(after)] == after
        assert numbers(again) == list(range(len(again)))
    finally:
        await cluster.close()


async def test_clients_read_the_topic_and_do_not_write_it(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    try:
        node = await cluster.start(1, keeps_events=True)
        await all_are_kept(cluster, 1)
        place = (EVENTS_TOPIC, 0)
        produced = await node.client.produce({place: batch(b"not decided by anybody")})
        assert produced[place].error_code != ErrorCode.NONE
        await until(lambda: node.partition(EVENTS_TOPIC).high_watermark.offset > 0)
        found = (await node.client.fetch({place: 0})).values(*place)
        assert ClusterEvent.of(found[0] or b"").number == 0
    finally:
        await cluster.close()


async def test_numbers_that_begin_anew_are_kept_too(tmp_path: Path) -> None:
    """The folder's store was lost, and a new one made: its events are as new as any."""
    cluster = Cluster(tmp_path)
    try:
        node = await cluster.start(1, keeps_events=True)
        await all_are_kept(cluster, 1)
        topic = node.server.node._event_topic
        assert topic is not None
        partition = node.partition(EVENTS_TOPIC)
        topic._append(partition, [ClusterEvent(1000, 1, "of another store")], last=-1)
        count = len(kept(node))
        await cluster.stop(1)
        node = await cluster.start(1, keeps_events=True)
        await until(lambda: len(kept(node)) > count)
        assert kept(node)[count].number == 0
    finally:
        await cluster.close()
