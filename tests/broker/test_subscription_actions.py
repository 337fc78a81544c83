"""What people do with subscriptions: look, peek, pause, seek, purge, redrive, delete."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from clarion.broker.authorizer import ANONYMOUS, Operation, Principal, ResourceKind
from clarion.broker.dead_letters import HEADER
from clarion.broker.messages import read, write
from clarion.broker.queues import Settlement
from clarion.broker.redriving import Redriving
from clarion.broker.subscription_actions import SubscriptionActions
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import NO_TOPIC_ID, TopicPartition
from clarion.model.names import SHARE_STATE_TOPIC
from clarion.model.seeking import Seek
from clarion.model.subscription import Subscription
from clarion.wire.messages.topics import DeleteTopicsRequest, DeleteTopicState
from clarion.wire.records import Record, encode_batch, iter_records
from tests.broker.group_words import commit
from tests.broker.harness import Node, running, until
from tests.broker.queue_words import subscribe
from tests.broker.share_words import ACCEPT, QUICK, REJECT, RELEASE, ShareConsumer
from tests.broker.test_cluster import _leads, cluster_of, create, topic
from tests.broker.test_queues import pull, settle

NOW = 1_800_000_000_000


async def fill(node: Node, topic: str, *values: bytes, headers: Any = ()) -> None:
    batch = encode_batch([(b"k", value, headers, node.broker.clock.now_ms()) for value in values])
    await write(node.broker, ANONYMOUS, topic, 0, batch)


async def queue(node: Node, *values: bytes, **rules: Any) -> SubscriptionActions:
    await node.topic("orders")
    subscription = Subscription.from_json({"name": "billing", "topics": ["orders"], **rules})
    await node.broker.subscriptions.create(subscription, ANONYMOUS)
    if values:
        await fill(node, "orders", *values)
    return SubscriptionActions(node.broker)


async def joined(node: Node) -> ShareConsumer:
    consumer = ShareConsumer(node, node, group="billing", topic="orders")
    await consumer.join()
    return consumer


async def records(node: Node, topic: str) -> list[Record]:
    found = await read(node.broker, ANONYMOUS, topic, 0, 0)
    return [record for batch in found.batches for record in iter_records(batch)]


async def test_a_description_says_how_far_it_is_and_who_holds_what(tmp_path: Path):
    async with running(tmp_path, **QUICK) as node:
        actions = await queue(node, b"a", b"b", b"c")
        before = await actions.describe("billing", ANONYMOUS)
        assert before["state"] == ""
        assert (before["lag"], before["partitions"][0]["position"]) == (3, None), "its first reader begins at the start"
        assert before["subscription"]["topics"] == ["orders"]
        consumer = await joined(node)
        assert await consumer.fetch() == {0: 1, 1: 1, 2: 1}
        await consumer.acknowledge((1, 1, ACCEPT))
        described = await actions.describe("billing", ANONYMOUS)
        assert (described["mode"], described["lag"], described["in_flight"]) == ("queue", 2, 2)
        assert [one["id"] for one in described["members"]] == [consumer.member]
        (row,) = described["partitions"]
        assert (row["position"], row["end_offset"], row["held"]) == (0, 3, {consumer.member: 2})
        assert described["oldest_unacknowledged_ms"] >= 0
        assert described["dead_letters"] == {"topic": "billing.dead-letters", "count": 0}


async def test_a_peek_shows_what_comes_next_and_takes_nothing(tmp_path: Path):
    async with running(tmp_path, **QUICK) as node:
        actions = await queue(node, b"a", b"b", b"c")
        assert [one.record.value for one in await actions.peek("billing", ANONYMOUS)] == [b"a", b"b", b"c"]
        consumer = await joined(node)
        await consumer.fetch()
        await consumer.acknowledge((0, 0, ACCEPT), (1, 1, RELEASE))
        peeked = await actions.peek("billing", ANONYMOUS, messages_max=2)
        assert [(one.record.value, one.deliveries, one.holder) for one in peeked] == [
            (b"b", 1, ""),
            (b"c", 1, consumer.member),
        ]
        with pytest.raises(KafkaError, match="from 1 to 1000"):
            await actions.peek("billing", ANONYMOUS, messages_max=0)


async def test_a_peek_shows_nothing_that_the_filter_passes_over(tmp_path: Path):
    async with running(tmp_path, **QUICK) as node:
        actions = await queue(node, b"1", b"2", filter="value > 2")
        assert await actions.peek("billing", ANONYMOUS) == []
        await fill(node, "orders", b"3", b"no JSON")
        await fill(node, "orders", b"4", b"1")
        assert [one.record.value for one in await actions.peek("billing", ANONYMOUS)] == [b"3", b"4"]
        assert [one.record.value for one in await actions.peek("billing", ANONYMOUS, messages_max=1)] == [b"3"]


async def test_pausing_keeps_messages_back_until_it_is_resumed(tmp_path: Path):
    async with running(tmp_path, **QUICK) as node:
        actions = await queue(node, b"a")
        consumer = await joined(node)
        assert (await actions.pause("billing", ANONYMOUS)).paused
        assert await consumer.fetch() == {}
        assert not (await actions.resume("billing", ANONYMOUS)).paused
        assert await consumer.fetch() == {0: 1}


async def test_a_seek_reads_again_or_passes_over_when_nobody_reads(tmp_path: Path):
    async with running(tmp_path, **QUICK) as node:
        actions = await queue(node, b"a", b"b")
        consumer = await joined(node)
        await consumer.fetch()
        await consumer.acknowledge((0, 1, ACCEPT))
        with pytest.raises(KafkaError, match="stop its consumers first") as refused:
            await actions.seek("billing", Seek.earliest(), ANONYMOUS)
        assert refused.value.code == ErrorCode.NON_EMPTY_GROUP
        await consumer.beat(-1)
        place = TopicPartition("orders", 0)
        assert await actions.seek("billing", Seek.earliest(), ANONYMOUS) == {place: 0}
        again = ShareConsumer(node, node, member="n", group="billing", topic="orders")
        await again.join()
        assert await again.fetch() == {0: 1, 1: 1}
        await again.beat(-1)
        assert await actions.seek("billing", Seek(offsets={place: 1}), ANONYMOUS) == {place: 1}
        assert await actions.seek("billing", Seek(timestamp=2**62), ANONYMOUS) == {place: 2}
        with pytest.raises(KafkaError, match="has the offsets 0 to 2, not 7"):
            await actions.seek("billing", Seek(offsets={place: 7}), ANONYMOUS)
        with pytest.raises(KafkaError, match="does not read other-0"):
            await actions.seek("billing", Seek(offsets={TopicPartition("other", 0): 0}), ANONYMOUS)


async def test_a_purge_passes_over_all_that_waits(tmp_path: Path):
    async with running(tmp_path, **QUICK) as node:
        actions = await queue(node, b"a", b"b")
        consumer = await joined(node)
        await consumer.fetch()
        await consumer.beat(-1)
        assert await actions.purge("billing", ANONYMOUS) == 2
        assert (await actions.describe("billing", ANONYMOUS))["lag"] == 0
        assert await actions.peek("billing", ANONYMOUS) == []


async def test_a_place_that_somebody_has_chosen_is_told_before_anybody_reads(tmp_path: Path):
    async with running(tmp_path, **QUICK) as node:
        actions = await queue(node, b"a", b"b")
        await actions.seek("billing", Seek(offsets={TopicPartition("orders", 0): 1}), ANONYMOUS)
        (row,) = (await actions.describe("billing", ANONYMOUS))["partitions"]
        assert (row["position"], row["lag"]) == (1, 1)


def _letters(node: Node) -> int:
    """Committed; its topic is known a moment before its partitions are there."""
    topic = node.broker.image.topics.get("billing.dead-letters")
    partition = None if topic is None else node.broker.partitions.find(topic.id, 0)
    return 0 if partition is None else partition.high_watermark.offset


async def _with_dead_letters(node: Node, *values: bytes) -> SubscriptionActions:
    actions = await queue(node, *values)
    consumer = await joined(node)
    await consumer.fetch()
    await consumer.acknowledge((0, len(values) - 1, REJECT))
    await until(lambda: _letters(node) == len(values))
    return actions


async def test_a_redrive_sends_dead_letters_back_as_they_were(tmp_path: Path):
    async with running(tmp_path, **QUICK) as node:
        actions = await _with_dead_letters(node, b"a", b"b", b"c")
        assert (await actions.describe("billing", ANONYMOUS))["dead_letters"]["count"] == 3
        done = await actions.redrive("billing", ANONYMOUS, messages_max=2)
        assert (done.sent, done.left, done.stopped_at) == (2, 1, None)
        done = await actions.redrive("billing", ANONYMOUS)
        assert (done.sent, done.left) == (1, 0)
        back = (await records(node, "orders"))[3:]
        assert [(one.key, one.value) for one in back] == [(b"k", b"a"), (b"k", b"b"), (b"k", b"c")]
        assert not [name for one in back for name, _ in one.headers if name.startswith(HEADER)]
        assert await actions.redrive("billing", ANONYMOUS) == (0, 0, None)


async def test_a_redrive_of_letters_of_many_sizes_makes_batches_that_the_topic_takes(tmp_path: Path):
    async with running(tmp_path, **QUICK) as node:
        sizes = (20_000, 90_000, 20_000, 20_000, 40_000, 50_000)
        await node.topic("orders", max_message_bytes="100000")
        await node.broker.subscriptions.create(Subscription(name="billing", topics=("orders",)), ANONYMOUS)
        actions = SubscriptionActions(node.broker)
        await node.topic("billing.dead-letters")
        for size in sizes:
            await fill(node, "billing.dead-letters", b"x" * size, headers=_about("orders", "0"))
        assert await actions.redrive("billing", ANONYMOUS) == (len(sizes), 0, None)
        assert node.partition("orders").high_watermark.offset == len(sizes)


@pytest.mark.parametrize("partition", ["x", "-1", "", "9" * 30])
async def test_a_letter_that_somebody_has_forged_stops_a_redrive_in_words(tmp_path: Path, partition: str):
    async with running(tmp_path, **QUICK) as node:
        actions = await queue(node)
        await node.topic("billing.dead-letters")
        await fill(node, "billing.dead-letters", b"forged", headers=_about("orders", partition))
        done = await actions.redrive("billing", ANONYMOUS)
        assert (done.sent, done.left) == (0, 1)
        assert "no dead letter" in (done.stopped_at or "")


async def test_two_redrives_at_once_send_no_letter_twice(tmp_path: Path):
    async with running(tmp_path, **QUICK) as node:
        actions = await _with_dead_letters(node, b"a", b"b")
        first, second = await asyncio.gather(
            actions.redrive("billing", ANONYMOUS), actions.redrive("billing", ANONYMOUS), return_exceptions=True
        )
        assert first == (2, 0, None)
        assert isinstance(second, KafkaError)
        assert second.code is ErrorCode.CONCURRENT_TRANSACTIONS
        assert node.partition("orders").high_watermark.offset == 4
        assert await actions.redrive("billing", ANONYMOUS) == (0, 0, None)


def _about(topic: str, partition: str) -> list[tuple[str, bytes]]:
    told = {"subscription": "billing", "topic": topic, "partition": partition}
    return [(HEADER + name, text.encode()) for name, text in told.items()]


async def test_a_redrive_that_broke_off_sends_again_rather_than_losing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async with running(tmp_path, **QUICK) as node:
        actions = await _with_dead_letters(node, b"a")

        async def break_off(*_: object) -> None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the broker ended here")

        with monkeypatch.context() as patched:
            patched.setattr(Redriving, "_delete", break_off)
            with pytest.raises(KafkaError, match="ended here"):
                await actions.redrive("billing", ANONYMOUS)
        assert (await actions.redrive("billing", ANONYMOUS)).sent == 1
        assert [one.value for one in await records(node, "orders")] == [b"a", b"a", b"a"]


async def test_a_letter_whose_topic_is_no_more_has_no_other_sent_back_twice(tmp_path: Path):
    async with running(tmp_path, **QUICK) as node:
        actions = await queue(node)
        await node.topic("billing.dead-letters")
        for value, topic in ((b"a", "orders"), (b"b", "gone"), (b"c", "orders")):
            await fill(node, "billing.dead-letters", value, headers=_about(topic, "0"))
        for sent in (1, 0):
            done = await actions.redrive("billing", ANONYMOUS)
            assert (done.sent, done.left) == (sent, 2)
            assert "at 1 what cannot be sent back: there is no topic 'gone'" in (done.stopped_at or "")
        assert [one.value for one in await records(node, "orders")] == [b"a"]
        await node.topic("gone")
        assert await actions.redrive("billing", ANONYMOUS) == (2, 0, None)
        assert [one.value for one in await records(node, "orders")] == [b"a", b"c"]


@pytest.mark.parametrize("is_made_again", [True, False])
async def test_a_redrive_ends_where_its_topic_is_deleted_and_takes_no_letter_of_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_made_again: bool
):
    async with running(tmp_path, **QUICK) as node:
        actions = await queue(node)
        await node.topic("billing.dead-letters")
        await fill(node, "billing.dead-letters", b"a", b"b", b"c", headers=_about("orders", "0"))
        send = Redriving._send

        async def deleted_meanwhile(self: Redriving, letters: list[Record]) -> tuple[int, str | None]:
            sent = await send(self, letters)
            gone = DeleteTopicState(name="billing.dead-letters", topic_id=NO_TOPIC_ID)
            await node.ask(DeleteTopicsRequest(topics=(gone,), timeout=30_000), 6)
            if is_made_again:
                await node.topic("billing.dead-letters")
                await fill(node, "billing.dead-letters", b"d", b"e", b"f", b"g", headers=_about("orders", "0"))
            return sent

        with monkeypatch.context() as patched:
            patched.setattr(Redriving, "_send", deleted_meanwhile)
            done = await asyncio.wait_for(actions.redrive("billing", ANONYMOUS), 30)
        assert (done.sent, done.left) == (3, 0)
        assert "was deleted meanwhile" in (done.stopped_at or "")
        assert await actions.redrive("billing", ANONYMOUS) == (4 if is_made_again else 0, 0, None)
        back = [one.value for one in await records(node, "orders")]
        assert back == [b"a", b"b", b"c"] + ([b"d", b"e", b"f", b"g"] if is_made_again else [])


async def test_a_redrive_ends_although_what_it_sends_back_is_given_up_again_at_once(tmp_path: Path):
    async with running(tmp_path, **QUICK) as node:
        actions = await _with_dead_letters(node, b"a", b"b")

        async def reject_everything() -> None:
            while True:
                found = await node.broker.queues.pull(
                    ANONYMOUS, "billing", consumer="c", messages_max=10, wait_ms=1_000
                )
                said = [Settlement(one.receipt, "reject") for one in found]
                await node.broker.queues.settle(ANONYMOUS, "billing", said)

        async def delete_when_it_is_back(self: Redriving, *asked: Any) -> None:
            letters = _letters(node)
            await until(lambda: _letters(node) > letters)
            await delete(self, *asked)

        delete, rejecting = Redriving._delete, asyncio.ensure_future(reject_everything())
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Redriving, "_delete", delete_when_it_is_back)
            done = await asyncio.wait_for(actions.redrive("billing", ANONYMOUS), 30)
        rejecting.cancel()
        assert done.sent == 2


async def test_what_is_no_dead_letter_of_it_is_left(tmp_path: Path):
    async with running(tmp_path, **QUICK) as node:
        actions = await _with_dead_letters(node, b"a")
        await fill(node, "billing.dead-letters", b"somebody's own")
        done = await actions.redrive("billing", ANONYMOUS)
        assert (done.sent, done.left) == (1, 1)
        assert done.stopped_at is not None
        assert "at 1 what is no dead letter" in done.stopped_at


async def test_two_subscriptions_do_not_share_a_dead_letter_topic(tmp_path: Path):
    async with running(tmp_path, **QUICK) as node:
        await queue(node, dead_letter_topic="lost")
        other = Subscription(name="other", topics=("orders",), dead_letter_topic="lost")
        with pytest.raises(KafkaError, match="is the dead letter topic of 'billing'"):
            await node.broker.subscriptions.create(other, ANONYMOUS)


async def test_a_deleted_subscription_leaves_its_dead_letters_and_nothing_else(tmp_path: Path):
    async with running(tmp_path, **QUICK) as node:
        actions = await _with_dead_letters(node, b"a")
        with pytest.raises(KafkaError, match="stop its consumers first"):
            await actions.delete("billing", ANONYMOUS)
        await ShareConsumer(node, node, group="billing", topic="orders").beat(-1)
        await actions.delete("billing", ANONYMOUS)
        assert await actions.overview(ANONYMOUS) == []
        assert "billing.dead-letters" in node.broker.image.topics
        with pytest.raises(KafkaError, match="there is no subscription or group 'billing'"):
            await actions.describe("billing", ANONYMOUS)


async def test_groups_of_kafkas_clients_are_listed_described_moved_and_deleted(tmp_path: Path):
    async with running(tmp_path, **QUICK) as node:
        actions = await queue(node, b"a", b"b", b"c")
        assert await commit(node, 1, group="readers", topic="orders") == ErrorCode.NONE
        listed = {one["name"]: one for one in await actions.overview(ANONYMOUS)}
        assert (listed["billing"]["is_subscription"], listed["billing"]["mode"]) == (True, "queue")
        assert (listed["readers"]["is_subscription"], listed["readers"]["mode"]) == (False, "stream")
        described = await actions.describe("readers", ANONYMOUS)
        assert (described["subscription"], described["lag"]) == (None, 2)
        assert [one.record.value for one in await actions.peek("readers", ANONYMOUS)] == [b"b", b"c"]
        await actions.seek("readers", Seek.latest(), ANONYMOUS)
        assert (await actions.describe("readers", ANONYMOUS))["lag"] == 0
        await actions.delete("readers", ANONYMOUS)
        assert [one["name"] for one in await actions.overview(ANONYMOUS)] == ["billing"]


class Nothing:
    def allows(self, principal: Principal, operation: Operation, kind: ResourceKind, name: str) -> bool:
        return False


async def test_who_may_nothing_hears_nothing(tmp_path: Path):
    async with running(tmp_path, **QUICK) as node:
        actions = await queue(node)
        node.broker.resolver.authorizer = Nothing()
        assert await actions.overview(ANONYMOUS) == []
        for action in (
            actions.describe("billing", ANONYMOUS),
            actions.peek("billing", ANONYMOUS),
            actions.pause("billing", ANONYMOUS),
            actions.seek("billing", Seek.latest(), ANONYMOUS),
            actions.purge("billing", ANONYMOUS),
            actions.redrive("billing", ANONYMOUS),
            actions.delete("billing", ANONYMOUS),
        ):
            with pytest.raises(KafkaError) as refused:
                await action
            assert refused.value.code == ErrorCode.GROUP_AUTHORIZATION_FAILED


async def test_in_a_cluster_whoever_is_asked_asks_the_coordinator(tmp_path: Path):
    async with cluster_of(tmp_path, 2) as cluster:
        await cluster[1].topic("orders", partitions=2)
        await until(lambda: "orders" in cluster[2].broker.image.topics)
        await until(lambda: all(one.broker.image.topics["orders"].partitions for one in cluster.nodes.values()))
        while ErrorCode.NONE not in [await commit(one, 0, "readers", "orders") for one in cluster.nodes.values()]:
            await asyncio.sleep(0.02)  # its coordinator is one of them, as soon as it has loaded
        for node in cluster.nodes.values():
            actions = SubscriptionActions(node.broker)
            described = await actions.describe("readers", ANONYMOUS)
            assert [row["end_offset"] for row in described["partitions"]] == [0, 0]
            assert [one["name"] for one in await actions.overview(ANONYMOUS)] == ["readers"]
            actions.close()


async def test_where_a_leader_is_away_a_seek_moves_all_partitions_or_none(tmp_path: Path):
    few = {"share_state_partitions": 1, "rebalances_leaders": False}
    async with cluster_of(tmp_path, 2, **few) as cluster:
        await create(cluster[1], topic("t", assignments=((1,), (2,))))
        await until(lambda: all(_leads(cluster[number], "t", number - 1) for number in (1, 2)))
        await subscribe(cluster[1])
        await until(lambda: cluster[2].broker.subscriptions.get("g"))
        for number in (1, 2):
            now_ms = cluster[number].broker.clock.now_ms()
            batch = encode_batch([(None, b"%d" % number, (), now_ms)])
            await write(cluster[number].broker, ANONYMOUS, "t", number - 1, batch)
            (one,) = await pull(cluster[number], wait_ms=60_000)
            assert await settle(cluster[number], Settlement(one.receipt, "ack")) == [ErrorCode.NONE]
        in_sync = [one.in_sync for one in cluster[1].broker.image.topics[SHARE_STATE_TOPIC].partitions]
        assert all(len(both) == 2 for both in in_sync)
        await cluster.stop(2)
        await until(lambda: cluster[1].broker.image.topics["t"].partitions[1].leader != 2)
        actions = SubscriptionActions(cluster[1].broker)
        for move in (
            lambda: actions.seek("g", Seek.earliest(), ANONYMOUS),
            lambda: actions.seek("g", Seek(timestamp=1), ANONYMOUS),
            lambda: actions.seek("g", Seek(offsets={TopicPartition("t", 1): 0}), ANONYMOUS),
            lambda: actions.purge("g", ANONYMOUS),
        ):
            with pytest.raises(KafkaError, match="t-1 has no leader that answers; nothing was changed") as refused:
                await move()
            assert refused.value.code is ErrorCode.LEADER_NOT_AVAILABLE
        assert await pull(cluster[1]) == []
        one = Seek(offsets={TopicPartition("t", 0): 0})
        assert await actions.seek("g", one, ANONYMOUS) == one.offsets, "which does not mean the other"
        assert [one.value for one in await pull(cluster[1], wait_ms=60_000)] == [b"1"]
        actions.close()


async def test_who_leads_a_partition_tells_where_another_broker_has_moved_it(tmp_path: Path):
    async with cluster_of(tmp_path, 2) as cluster:
        await cluster[1].topic("orders")
        await until(lambda: all("orders" in one.broker.image.topics for one in cluster.nodes.values()))
        subscription = Subscription.from_json({"name": "billing", "topics": ["orders"]})
        await cluster[1].broker.subscriptions.create(subscription, ANONYMOUS)
        await until(lambda: all(one.broker.subscriptions.get("billing") for one in cluster.nodes.values()))
        (number,) = [one.leader for one in cluster[1].broker.image.topics["orders"].partitions]
        leader, other = cluster[number], cluster[3 - number]
        topic_id = leader.broker.image.topics["orders"].id
        await until(lambda: (found := leader.broker.partitions.find(topic_id, 0)) is not None and found.is_leader)
        await fill(leader, "orders", b"a", b"b")
        pulled = await leader.broker.queues.pull(ANONYMOUS, "billing", consumer="me", messages_max=2, wait_ms=60_000)
        assert len(pulled) == 2
        await leader.broker.queues.settle(ANONYMOUS, "billing", [Settlement(one.receipt, "ack") for one in pulled])
        here, there = SubscriptionActions(leader.broker), SubscriptionActions(other.broker)
        assert (await here.describe("billing", ANONYMOUS))["lag"] == 0
        await there.seek("billing", Seek.earliest(), ANONYMOUS)
        assert (await here.describe("billing", ANONYMOUS))["lag"] == 2
        assert [one.record.value for one in await here.peek("billing", ANONYMOUS)] == [b"a", b"b"]
        here.close()
        there.close()


@pytest.mark.parametrize(
    ("data", "seek"),
    [
        ({"to": "earliest"}, Seek.earliest()),
        ({"to": "latest"}, Seek.latest()),
        ({"to": "1h"}, Seek(NOW - 3_600_000)),
        ({"to": "2026-11-16T12:00:00Z"}, Seek(1_794_830_400_000)),
        ({"offsets": {"orders": {"0": 42}}}, Seek(offsets={TopicPartition("orders", 0): 42})),
    ],
)
def test_where_to_seek_is_written_as_people_do(data, seek):
    assert Seek.from_json(data, NOW) == seek


@pytest.mark.parametrize(
    "data",
    [
        *(
            {},
            {"to": "latest", "offsets": {}},
            {"to": "soon"},
            {"offsets": []},
            {"offsets": {"t": {"x": 1}}},
            {"too": 1},
        ),
        *({"offsets": {"t": 1}}, {"offsets": {"t": {"0": True}}}, {"to": "latest", "more": 1}, 7),
    ],
)
def test_what_is_no_place_to_seek_is_refused(data):
    with pytest.raises(KafkaError):
        Seek.from_json(data, NOW)
