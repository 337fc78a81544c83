"""What subscriptions and groups have read goes, what they need stays; and in a cluster, whoever coordinates them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from clarion.broker.authorizer import ANONYMOUS
from clarion.broker.group_positions import probe_of
from clarion.broker.group_service import OURSELVES
from clarion.broker.housekeeping import Housekeeping
from clarion.consumers.retention import UNKNOWN_GROUPS
from clarion.groups.placement import partition_for
from clarion.model.errors import ErrorCode
from clarion.model.names import OFFSETS_TOPIC, SHARE_STATE_TOPIC
from clarion.model.subscription import CONSUMED, QUEUE, STREAM, Subscription
from clarion.wire.messages.replicas import DescribableLogDirTopic, DescribeLogDirsRequest
from tests.broker import group_words, share_words
from tests.broker.harness import Node, until
from tests.broker.kept import HOUR, Kept, commit, keeping
from tests.broker.share_words import ACCEPT, ShareConsumer, earliest
from tests.broker.talk import batch
from tests.broker.test_cluster import Cluster, _leads, cluster_of
from tests.broker.test_cluster_replication import make_topic, produce, replica
from tests.broker.test_queues_meanwhile import add_partitions

DAY_MS = 24 * HOUR * 1000
BY_SUBSCRIPTIONS = {"clarion_retention_by": "subscriptions", "file_delete_delay_ms": "0"}


def stream(name: str, retention_ms: int | None) -> Subscription:
    return Subscription(name=name, topics=("t",), mode=STREAM, retention_ms=retention_ms)


def queue(name: str, retention_ms: int | None) -> Subscription:
    return Subscription(name=name, topics=("t",), mode=QUEUE, retention_ms=retention_ms)


async def subscribe(node: Node, *subscriptions: Subscription) -> None:
    for one in subscriptions:
        await node.broker.subscriptions.create(one, ANONYMOUS)


async def sealed(node: Node, kept: Kept, *files: tuple[bytes, ...]) -> None:
    """Each of them a file; the last one is still being written."""
    for number, values in enumerate(files):
        if number:
            node.partition().roll(kept.clock.now_ms())
        await kept.write(*values)


def files(folder: Path) -> list[str]:
    return sorted(one.name for one in (folder / "t-0").glob("*.log*"))


async def test_a_group_lets_go_of_what_it_has_committed_and_of_nothing_else(tmp_path, clock):
    async with keeping(tmp_path, clock) as node:
        await node.topic(**BY_SUBSCRIPTIONS)
        kept = Kept(node, clock)
        await kept.write(b"a", b"b", b"c")
        await kept.pass_time(1)
        assert len(await kept.read()) == 3, "nobody reads it: the topic's own retention"
        await commit(node, "g", 2)
        await kept.pass_time(1)
        assert await kept.read() == [b"c"]
        await commit(node, "late", 0)
        await commit(node, "g", 3)
        await kept.pass_time(1)
        assert await kept.read() == [b"c"], "another group needs it"
        await kept.pass_time(8 * 24 * HOUR)
        assert await kept.read() == [], "no longer than the topic keeps it"


async def test_a_group_that_has_committed_in_one_partition_needs_the_others_too(tmp_path, clock):
    async with keeping(tmp_path, clock) as node:
        await node.topic("t", 2, **BY_SUBSCRIPTIONS)
        kept = Kept(node, clock)
        for index in (0, 1):
            await node.client.produce({("t", index): batch(b"a", at=clock.now_ms())})
        await commit(node, "slow", 1)
        for index in (0, 1):
            await group_words.commit(node, 1, "fast", partition=index)
        await kept.pass_time(1)
        assert [node.partition("t", index).start_offset for index in (0, 1)] == [1, 0]
        await group_words.commit(node, 1, "slow", partition=1)
        await kept.pass_time(1)
        assert node.partition("t", 1).start_offset == 1


async def test_a_share_group_that_is_yet_to_read_from_a_partition_needs_all_of_it(tmp_path, clock):
    async with keeping(tmp_path, clock) as node:
        await node.topic("t", 2, **BY_SUBSCRIPTIONS)
        await earliest(node)
        kept = Kept(node, clock)
        consumer = await ShareConsumer(node, node).join()
        for index in (0, 1):
            await node.client.produce({("t", index): batch(b"a", at=clock.now_ms())})
            await group_words.commit(node, 1, "fast", partition=index)
        await kept.pass_time(1)
        assert [node.partition("t", index).start_offset for index in (0, 1)] == [0, 0]
        await consumer.ask(max_wait=60_000)
        for index in (0, 1):
            await until(lambda index=index: node.broker.shares.leaders.known("g", consumer.topic_id, index))
            assert await consumer.acknowledge((0, 0, ACCEPT), index=index) is ErrorCode.NONE
        await kept.pass_time(1)
        assert [node.partition("t", index).start_offset for index in (0, 1)] == [1, 1]


async def test_a_share_group_needs_all_of_a_partition_that_was_added_and_that_it_has_yet_to_hear_of(tmp_path, clock):
    async with keeping(tmp_path, clock) as node:
        await node.topic("t", 1, **BY_SUBSCRIPTIONS)
        await earliest(node)
        kept = Kept(node, clock)
        consumer = await ShareConsumer(node, node).join()
        await node.client.produce({("t", 0): batch(b"a", at=clock.now_ms())})
        assert await consumer.fetch(max_wait=60_000) == {0: 1}
        await add_partitions(node, 2)
        await node.client.produce({("t", 1): batch(b"needed", at=clock.now_ms())})
        for index in (0, 1):
            await group_words.commit(node, 1, "fast", partition=index)
        await kept.pass_time(1)  # its member is silent for a moment
        assert node.partition("t", 1).start_offset == 0
        async with asyncio.timeout(60):
            while consumer.partitions != (0, 1):
                await consumer.beat()
                await asyncio.sleep(0.01)
        consumer.session_epoch = 0
        assert share_words.values(await consumer.ask(max_wait=60_000)) == [b"needed"]


async def test_what_a_queue_has_acknowledged_goes_and_its_open_records_stay(tmp_path, clock):
    async with keeping(tmp_path, clock) as node:
        await node.topic(**BY_SUBSCRIPTIONS)
        await subscribe(node, queue("g", CONSUMED))
        await earliest(node)
        kept = Kept(node, clock)
        await kept.write(b"a", b"b", b"c", b"d")
        await kept.pass_time(1)
        assert len(await kept.read()) == 4, "it has not begun to read"
        consumer = await ShareConsumer(node, node).join()
        await consumer.fetch()
        await consumer.acknowledge((0, 0, ACCEPT), (2, 2, ACCEPT))
        await kept.pass_time(1)
        assert await kept.read() == [b"b", b"c", b"d"], "the second is in somebody's hands"
        await consumer.acknowledge((1, 1, ACCEPT))
        await kept.pass_time(1)
        assert await kept.read() == [b"d"]
        await kept.pass_time(31 * 24 * HOUR)
        assert await kept.read() == [], "a forgotten subscription holds it no longer than the maximum"


async def test_a_bank_keeps_for_fourteen_days_what_a_job_beside_it_has_consumed(tmp_path, clock):
    async with keeping(tmp_path, clock) as node:
        await node.topic(**BY_SUBSCRIPTIONS)
        await subscribe(node, stream("job", CONSUMED), stream("bank", 14 * DAY_MS))
        kept = Kept(node, clock)
        await kept.write(b"a", b"b")
        await commit(node, "job", 2)
        await commit(node, "bank", 2)
        await kept.pass_time(13 * 24 * HOUR)
        assert len(await kept.read()) == 2
        await kept.pass_time(2 * 24 * HOUR)
        assert await kept.read() == []
        await kept.write(b"c")
        await kept.pass_time(1)
        assert await kept.read() == [b"c"]
        await node.broker.subscriptions.delete("bank", ANONYMOUS)
        await node.server.groups.delete_group("bank", OURSELVES)
        await commit(node, "job", 3)
        await kept.pass_time(1)
        assert await kept.read() == [], "nobody needs it for a time any longer"


async def test_a_subscription_extends_what_a_topic_promises_and_never_shortens_it(tmp_path, clock):
    async with keeping(tmp_path, clock) as node:
        await node.topic()
        await subscribe(node, stream("bank", 14 * DAY_MS), stream("job", CONSUMED))
        kept = Kept(node, clock)
        await kept.write(b"a")
        await commit(node, "job", 1)
        await kept.pass_time(6 * 24 * HOUR)
        assert await kept.read() == [b"a"], "the topic promises it"
        await kept.pass_time(4 * 24 * HOUR)
        assert await kept.read() == [b"a"], "the bank needs it"
        await node.broker.subscriptions.delete("bank", ANONYMOUS)
        await kept.pass_time(1)
        assert await kept.read() == []


async def test_a_broker_that_has_not_read_the_catalog_deletes_nothing(tmp_path, clock):
    async with keeping(tmp_path, clock) as node:
        await node.topic(**BY_SUBSCRIPTIONS)
        node.broker.subscriptions.has_loaded = False
        kept = Kept(node, clock)
        await kept.write(b"a")
        await commit(node, "g", 1)
        await kept.pass_time(100 * 24 * HOUR)
        await kept.house.retain_acknowledged()
        assert await kept.read() == [b"a"]
        node.broker.subscriptions.has_loaded = True
        await kept.pass_time(1)
        assert await kept.read() == []


async def test_a_file_goes_soon_after_all_have_read_it_and_the_one_being_written_stays(tmp_path, clock):
    async with keeping(tmp_path, clock) as node:
        await node.topic(**BY_SUBSCRIPTIONS)
        kept = Kept(node, clock)
        await sealed(node, kept, (b"a", b"b"), (b"c", b"d"), (b"e",))
        await commit(node, "g", 1)
        await soon(kept.house)
        assert (node.partition().start_offset, len(files(tmp_path))) == (0, 3), "no file is read as a whole"
        await commit(node, "g", 3)
        await soon(kept.house)
        assert node.partition().start_offset == 3
        assert files(tmp_path) == ["00000000000000000002.log", "00000000000000000004.log"]
        await commit(node, "g", 5)
        await soon(kept.house)
        assert files(tmp_path) == ["00000000000000000004.log"], "rolled by nobody"
        await kept.pass_time(1)
        assert await kept.read() == []
        assert files(tmp_path) == ["00000000000000000004.log"], "it may be written to all the time"
        await kept.write(b"f")
        await commit(node, "g", 6)
        await kept.pass_time(1)
        assert files(tmp_path) == ["00000000000000000004.log"]
        for _ in range(3):
            await kept.pass_time(1)
        assert files(tmp_path) == ["00000000000000000006.log"], "nothing happens any more: it goes, too"


async def test_who_asks_about_a_topic_hears_who_needs_how_much_of_it_and_since_when(tmp_path, clock):
    async with keeping(tmp_path, clock) as node:
        await node.topic(**BY_SUBSCRIPTIONS)
        await subscribe(node, stream("bank", 14 * DAY_MS), stream("job", CONSUMED))
        kept = Kept(node, clock)
        await kept.write(b"a" * 1000, b"b" * 1000)
        first_ms = clock.now_ms()
        clock.advance(HOUR)
        await kept.write(b"c" * 1000)
        await commit(node, "job", 2)
        asked = DescribableLogDirTopic(topic="t", partitions=(0,))
        ((told,),) = [
            topic.partitions
            for result in (await node.ask(DescribeLogDirsRequest(topics=(asked,)), 4)).results
            for topic in result.topics
        ]
        size = told.partition_size
        assert [(one.name, one.is_group, one.until_acknowledged, one.from_offset) for one in told.holders] == [
            ("bank", False, False, 0),
            ("job", False, True, 2),
        ]
        assert [one.held_bytes for one in told.holders] == [size, pytest.approx(size / 3, rel=0.01)]
        of_bank, of_job = (one.since_ms for one in told.holders)
        assert of_bank <= first_ms < first_ms + HOUR * 1000 <= of_job <= clock.now_ms()
        everything = await node.ask(DescribeLogDirsRequest(topics=None), 4)
        assert not any(
            one.holders for result in everything.results for topic in result.topics for one in topic.partitions
        )


async def test_housekeeping_sees_by_itself_that_a_file_has_been_read(tmp_path, clock):
    async with keeping(tmp_path, clock) as node:
        await node.topic(**BY_SUBSCRIPTIONS)
        await sealed(node, Kept(node, clock), (b"a",), (b"b",))
        await commit(node, "g", 1)
        await until(lambda: files(tmp_path) == ["00000000000000000001.log"], 60)


async def test_a_topic_that_is_changed_to_go_by_subscriptions_is_looked_at_every_second_from_then_on(tmp_path, clock):
    async with keeping(tmp_path, clock) as node:
        await node.topic(file_delete_delay_ms="0")
        kept = Kept(node, clock)
        await sealed(node, kept, (b"a",), (b"b",))
        await commit(node, "g", 1)
        await soon(kept.house)
        assert len(files(tmp_path)) == 2
        await node.broker.configure_topic(
            "t", lambda topic: {**topic.overrides, "clarion.retention.by": "subscriptions"}
        )
        await soon(kept.house)
        assert files(tmp_path) == ["00000000000000000001.log"]


async def test_what_a_failover_could_undo_does_not_count_as_read(tmp_path, clock):
    """A coordinator answers only when what it has written down is committed: here that never happens."""
    async with keeping(tmp_path, clock, offsets_partitions=1) as node:
        await node.topic(**BY_SUBSCRIPTIONS)
        await Kept(node, clock).write(b"a", b"b")
        await commit(node, "g", 1)
        (shard,) = node.server.groups.shards
        shard.partition.high_watermark = shard.partition.high_watermark._replace(offset=0)
        looking = asyncio.ensure_future(node.broker.needs.look([node.partition()]))
        await until(lambda: shard.partition._waiting or looking.done())
        assert not looking.done()
        shard.partition._give_up_waiting(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        found = await looking
        assert [need.holder for need in found.of(node.partition())] == [UNKNOWN_GROUPS]


async def test_a_stream_does_not_go_on_past_its_own_retention(tmp_path, clock):
    async with keeping(tmp_path, clock) as node:
        await node.topic()
        await subscribe(node, stream("short", HOUR * 1000), stream("latest", HOUR * 1000))
        await node.broker.subscriptions.update("latest", {"start": "latest"}, ANONYMOUS)
        kept = Kept(node, clock)
        await kept.write(b"old", b"old, too")
        await kept.pass_time(2 * HOUR)
        await kept.write(b"young")
        await group_words.find(node, "short")
        assert await group_words.committed(node, "short") == 2, "it starts where its retention does"
        await commit(node, "short", 1)
        await commit(node, "other", 1)
        assert [await group_words.committed(node, group) for group in ("short", "other")] == [2, 1]
        await commit(node, "short", 3)
        assert await group_words.committed(node, "short") == 3
        assert await group_words.committed(node, "latest") == 2, "all is new to it, and it has the same retention"
        await kept.pass_time(2 * HOUR)
        await commit(node, "short", 0)
        assert await group_words.committed(node, "short") == 3, "there is nothing for it but what comes next"


# ------------------------------------------------------------------------------------------------ three brokers


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster_of(tmp_path, 3) as cluster:
        yield cluster


def coordinator_of(cluster: Cluster, group: str) -> int:
    topic = cluster[1].broker.image.topics[OFFSETS_TOPIC]
    return topic.partitions[partition_for(group, topic.partition_count)].leader


async def group_elsewhere(cluster: Cluster, leader: int) -> str:
    """A group whose coordinator is not the leader of the topic; it has committed nothing yet."""
    await group_words.find(cluster[1], "first")
    await until(lambda: all(OFFSETS_TOPIC in node.broker.image.topics for node in cluster.nodes.values()), 60)
    names = (f"group-{number}" for number in range(1000))
    return next(name for name in names if coordinator_of(cluster, name) != leader)


async def ready_for(cluster: Cluster, group: str) -> Node:
    """Its coordinator, when it knows that it is."""
    node = cluster[coordinator_of(cluster, group)]
    await until(lambda: node.server.groups.runtime.find(group) is not None, 60)
    await until(lambda: node.server.groups.runtime.find(group).is_loaded, 60)
    return node


async def commit_at(cluster: Cluster, group: str, offset: int) -> None:
    node = await ready_for(cluster, group)
    assert await group_words.commit(node, offset, group) == 0


async def test_a_leader_asks_the_coordinators_of_other_brokers(three: Cluster) -> None:
    leader = await make_topic(three, **BY_SUBSCRIPTIONS)
    await produce(three, b"a", b"b", b"c")
    group = await group_elsewhere(three, leader)
    await commit_at(three, group, 2)
    broker = three[leader].broker
    found = await _complete_look(three, leader)
    assert [(need.holder, need.position) for need in found.of(replica(three, leader))] == [(group, 2)]
    await three[leader].server.housekeeping.retain()
    assert replica(three, leader).start_offset == 2
    follower = next(one for one in (1, 2, 3) if one != leader)
    assert found.of(replica(three, follower)) is None, "only the leader decides"
    await produce(three, b"d")
    await until(lambda: all(replica(three, one).start_offset == 2 for one in (1, 2, 3)), 60)
    assert broker.needs is not None


async def test_a_share_group_needs_what_it_has_yet_to_begin_where_its_other_partitions_are_led_elsewhere(
    three: Cluster,
) -> None:
    leader = await make_topic(three, **BY_SUBSCRIPTIONS)
    other = next(number for number in (1, 2, 3) if number != leader)
    group = await group_elsewhere(three, leader)
    coordinator = await ready_for(three, group)
    member = await ShareConsumer(coordinator, coordinator, group=group).join()
    async with asyncio.timeout(60):
        while member.partitions != (0,):
            await member.beat()
            await asyncio.sleep(0.01)
    await add_partitions(three[leader], 2, other, *{1, 2, 3} - {other})
    await until(lambda: _leads(three[other], "t", 1) and SHARE_STATE_TOPIC in three[other].broker.image.topics)
    added = three[other].broker.partitions.find(member.topic_id, 1)
    async with asyncio.timeout(60):
        while not (found := await three[other].broker.needs.look([added])).has_all_groups:
            await asyncio.sleep(0.05)  # coordinators may still be loading
    assert [(need.holder, need.position) for need in found.of(added)] == [(group, None)]


async def test_a_coordinator_asks_the_leader_where_the_retention_of_a_stream_begins(three: Cluster) -> None:
    leader = await make_topic(three)
    old = batch(b"old", at=three[leader].broker.clock.now_ms() - 10 * HOUR * 1000)
    assert (await three[leader].client.produce({("t", 0): old}, acks=-1))["t", 0].error_code == 0
    group = await group_elsewhere(three, leader)
    await three[leader].broker.subscriptions.create(stream(group, HOUR * 1000), ANONYMOUS)
    coordinator = three[coordinator_of(three, group)]
    await until(lambda: coordinator.broker.subscriptions.get(group) is not None, 60)
    await commit_at(three, group, 0)
    assert await group_words.committed(coordinator, group) == 1, "nothing is young enough: the end"
    await produce(three, b"young")
    assert await group_words.committed(coordinator, group) == 1


async def test_while_a_coordinator_is_away_its_groups_count_as_having_read_nothing(three: Cluster) -> None:
    leader = await make_topic(three, **BY_SUBSCRIPTIONS)
    await produce(three, b"a", b"b", b"c")
    group = await group_elsewhere(three, leader)
    await commit_at(three, group, 2)
    await _complete_look(three, leader)
    away = coordinator_of(three, group)
    address = three[leader].broker.needs.channel_to(away)
    address.close()  # no connection to it can be had
    await three[leader].server.housekeeping.retain()
    found = await three[leader].broker.needs.look([replica(three, leader)])
    assert UNKNOWN_GROUPS in [need.holder for need in found.of(replica(three, leader))]
    assert replica(three, leader).start_offset == 0


def test_there_is_a_probe_for_every_partition() -> None:
    assert [partition_for(probe_of(index, 50), 50) for index in range(50)] == list(range(50))


async def _complete_look(cluster: Cluster, leader: int):
    """Coordinators may still be loading at first."""
    seen = []

    async def look() -> bool:
        seen.append(await cluster[leader].broker.needs.look([replica(cluster, leader)]))
        return seen[-1].has_all_groups

    while not await look():
        assert len(seen) < 600
    return seen[-1]


async def soon(house: Housekeeping) -> None:
    """Files are taken out of the log, seen, and removed, each a second apart."""
    for _ in range(3):
        await house.retain_acknowledged()
