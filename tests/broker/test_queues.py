"""Queues without Kafka's protocol: consumers pull and settle, by name alone."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from clarion.broker.authorizer import ANONYMOUS, Operation, Principal, ResourceKind
from clarion.broker.queues import Delivery, Settlement
from clarion.broker.share_leader import ShareFetched, Waiter
from clarion.broker.subscription_actions import SubscriptionActions
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.seeking import Seek
from clarion.model.subscription import Subscription
from clarion.queues.acquisition import AcquireMode
from tests.broker.harness import Node, running, until
from tests.broker.queue_words import content, subscribe, texts, write
from tests.broker.share_words import ACCEPT, QUICK, joined
from tests.broker.test_cluster import _leads, cluster_of, create, topic


async def pull(node: Node, consumer: str = "c", count: int = 100, wait_ms: int = 0, name: str = "g") -> list[Delivery]:
    return await node.broker.queues.pull(ANONYMOUS, name, consumer=consumer, messages_max=count, wait_ms=wait_ms)


async def settle(node: Node, *settlements: Settlement) -> list[ErrorCode]:
    return [one.code for one in await node.broker.queues.settle(ANONYMOUS, "g", settlements)]


def leaders(node: Node) -> list:
    return list(node.broker.shares.leaders._leaders.values())


async def test_messages_are_pulled_and_settled_one_by_one_in_any_order(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 2)
        await subscribe(node)
        await write(node, (b"k", b"one", (("h", b"1"),), 1_000), (None, b"two"), (None, b"three"))
        await write(node, (None, b"four"), partition=1)
        found = {one.value: one for one in await pull(node)}
        assert set(found) == {b"one", b"two", b"three", b"four"}
        one = found[b"one"]
        assert (one.topic, one.partition, one.offset, one.deliveries) == ("t", 0, 0, 1)
        assert (one.key, one.headers, one.timestamp_ms) == (b"k", (("h", b"1"),), 1_000)
        assert one.topic_id == node.broker.image.topics["t"].id
        said = [
            Settlement(found[b"three"].receipt, "ack"),
            Settlement(found[b"one"].receipt, "release", delay_ms=0),
            Settlement(found[b"two"].receipt, "reject", reason="no good"),
            Settlement(found[b"four"].receipt, "extend", extend_ms=3_600_000),
        ]
        assert await settle(node, *said) == [ErrorCode.NONE] * 4
        assert await settle(node, *said[:2]) == [ErrorCode.INVALID_RECORD_STATE] * 2, "it was settled before"
        (again,) = await pull(node)
        assert (again.value, again.deliveries) == (b"one", 2)
        assert await settle(node, Settlement(one.receipt, "ack")) == [ErrorCode.INVALID_RECORD_STATE], "of before"
        assert await settle(node, Settlement(again.receipt, "ack")) == [ErrorCode.NONE]
        await until(lambda: "g.dead-letters" in node.broker.image.topics)


async def test_what_is_settled_stays_so_after_a_restart_and_receipts_of_before_count_no_more(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await subscribe(node)
        await write(node, (None, b"one"), (None, b"two"))
        first, second = await pull(node)
        assert await settle(node, Settlement(first.receipt, "ack")) == [ErrorCode.NONE]
    async with running(tmp_path, **QUICK) as node:
        assert await settle(node, Settlement(second.receipt, "ack")) == [ErrorCode.INVALID_RECORD_STATE]
        (again,) = await pull(node, "d", wait_ms=60_000)
        assert (again.value, again.deliveries) == (b"two", 2)


async def test_a_hundred_consumers_share_what_comes_and_each_message_is_taken_once(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 3)
        await subscribe(node)
        taken: list[bytes | None] = []

        async def work(name: str) -> None:
            while len(taken) < 300:
                for one in await pull(node, name, 2, wait_ms=1_000):
                    taken.append(one.value)
                    assert await settle(node, Settlement(one.receipt, "ack")) == [ErrorCode.NONE]

        workers = [asyncio.create_task(work(f"w{number}")) for number in range(100)]
        for number in range(0, 300, 10):
            batch = [(None, b"%d" % at) for at in range(number, number + 10)]
            await write(node, *batch, partition=number // 10 % 3)
        await asyncio.wait_for(asyncio.gather(*workers), 60)
        assert sorted(taken) == sorted(b"%d" % number for number in range(300))
        assert [leader.share.open_count for leader in leaders(node)] == [0, 0, 0]


async def test_who_goes_while_it_waits_takes_nothing_and_what_it_has_taken_goes_back(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await subscribe(node)
        waiting = asyncio.create_task(pull(node, wait_ms=60_000))
        await until(lambda: leaders(node) and leaders(node)[0]._line)
        waiting.cancel()
        await asyncio.wait([waiting])
        await write(node, (None, b"one"))
        for _ in range(3):  # cancelled wherever it happens to be
            going = asyncio.create_task(pull(node))
            (leader,) = leaders(node)
            await until(lambda leader=leader, going=going: leader.share.open_count or going.done())
            going.cancel()
            await asyncio.wait([going])
            if not going.cancelled():
                node.broker.queues.give_back("g", going.result())
            assert leader.share.open_count == 0
        (one,) = await pull(node)
        assert one.deliveries == 1


async def test_what_is_given_back_late_is_not_taken_from_who_has_it_by_then(tmp_path: Path) -> None:
    """Several connections may be one consumer by name; one of them hung until its locks had ended."""
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await subscribe(node)
        await write(node, (None, b"one"))
        (slow,) = await pull(node)
        assert await settle(node, Settlement(slow.receipt, "release", delay_ms=0)) == [ErrorCode.NONE]
        (again,) = await pull(node)
        node.broker.queues.give_back("g", [slow])
        assert await pull(node) == []
        assert await settle(node, Settlement(again.receipt, "ack")) == [ErrorCode.NONE]


async def test_who_goes_while_a_write_is_under_way_takes_it_from_nobody_else(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await subscribe(node)
        await write(node, (None, b"one"))
        await pull(node)
        (leader,) = leaders(node)
        leader.give_back("c")
        waiting = [asyncio.create_task(leader.wait_saved()) for _ in range(2)]
        await asyncio.sleep(0)  # both wait for the same write
        assert leader.saved() is not None
        waiting[0].cancel()
        await asyncio.wait_for(waiting[1], 60)


async def test_who_goes_while_it_reads_leaves_the_line_to_the_next_and_a_pause_meanwhile_counts(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await subscribe(node)
        await pull(node)
        (leader,) = leaders(node)
        await write(node, (None, b"one"))

        async def reading() -> asyncio.Task[ShareFetched | None]:
            task = asyncio.create_task(leader.fetch("a", leader.rules, 1, 1 << 20, AcquireMode.RECORD_LIMIT))
            await asyncio.sleep(0)
            assert leader._is_reading
            return task

        going = await reading()
        waiter = Waiter([leader])
        assert not waiter.woken.done(), "somebody else is looking"
        going.cancel()
        await asyncio.wait([going])
        assert waiter.woken.done()
        waiter.leave()
        slow = await reading()
        leader.use(leader.rules._replace(is_paused=True))
        assert await slow is None
        assert leader.share.open_count == 0


async def test_what_changes_after_a_lock_has_ended_and_before_that_was_seen_is_no_mistake(tmp_path: Path) -> None:
    """The timer goes off at once then, and its handle is another one than that of a later time."""
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await subscribe(node)
        await write(node, (None, b"one"))
        await pull(node)
        (leader,) = leaders(node)
        leader.share._deadline_ms = leader._now_ms() - 1_000
        for _ in range(2):
            leader.changed()
        await until(lambda: leader.share.next_deadline_ms() > leader._now_ms())


async def test_a_consumer_of_kafka_reads_beside_it(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await subscribe(node)
        await write(node, (None, b"one"))
        await write(node, (None, b"two"))
        (one,) = await pull(node, count=1)
        consumer = await joined(node)
        assert await consumer.fetch(max_wait=60_000) == {1: 1}
        assert await consumer.acknowledge((1, 1, ACCEPT)) is ErrorCode.NONE
        assert await settle(node, Settlement(one.receipt, "ack")) == [ErrorCode.NONE]
        assert leaders(node)[0].share.start_offset == 2


async def test_what_a_filter_passes_over_is_done_without_delivery(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await subscribe(node, filter='value.total > 100 || headers["vip"] == "yes"')
        small, large = b'{"total": 5}', b'{"total": 500}'
        await write(node, (None, small), (None, large), (None, small, (("vip", b"yes"),)), (None, b"no json"))
        found = await pull(node)
        assert [one.offset for one in found] == [1, 2]
        assert await settle(node, *(Settlement(one.receipt, "ack") for one in found)) == [ErrorCode.NONE] * 2
        assert leaders(node)[0].share.start_offset == 4
        assert "g.dead-letters" not in node.broker.image.topics


async def test_topics_that_a_pattern_matches_later_are_read_too_and_dead_letters_are_not(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.broker.subscriptions.create(Subscription(name="g", pattern="t.*|g.*"), ANONYMOUS)
        waiting = asyncio.create_task(pull(node, wait_ms=60_000))
        await node.topic("t2", 1)
        await write(node, (None, b"one"), topic="t2")
        (one,) = await waiting
        assert await settle(node, Settlement(one.receipt, "reject", reason="why not")) == [ErrorCode.NONE]
        await until(lambda: leaders(node)[0].share.start_offset == 1)
        assert await pull(node) == []
        (letter,) = await content(node, "g.dead-letters")
        assert texts(letter.headers)["clarion-dead-letter-reason"] == "why not"


async def test_a_queue_that_is_only_pulled_from_is_moved_and_deleted_with_what_was_known_of_it(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 2)
        await subscribe(node)
        await write(node, (None, b"one"), (None, b"two"))
        actions = SubscriptionActions(node.broker)

        async def read() -> list[bytes | None]:
            found = await pull(node)
            assert set(await settle(node, *(Settlement(one.receipt, "ack") for one in found))) <= {ErrorCode.NONE}
            return [one.value for one in found]

        assert await read() == [b"one", b"two"]
        assert await read() == []
        await actions.seek("g", Seek.earliest(), ANONYMOUS)
        assert await read() == [b"one", b"two"]
        await actions.seek("g", Seek.earliest(), ANONYMOUS)
        await actions.purge("g", ANONYMOUS)
        assert await read() == []
        await actions.delete("g", ANONYMOUS)
        await subscribe(node)
        assert await read() == [b"one", b"two"]


async def test_a_queue_that_was_moved_by_another_broker_is_read_from_there(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 2, share_state_partitions=2) as cluster:
        await create(cluster[1], topic("t", assignments=((1, 2),)))
        await until(lambda: "t" in cluster[2].broker.image.topics and _leads(cluster[1], "t", 0))
        await subscribe(cluster[1])
        await until(lambda: cluster[2].broker.subscriptions.get("g"))
        await write(cluster[1], (None, b"one"))
        (one,) = await pull(cluster[1], wait_ms=60_000)
        assert await settle(cluster[1], Settlement(one.receipt, "ack")) == [ErrorCode.NONE]
        (leader,) = leaders(cluster[1])
        actions = SubscriptionActions(cluster[2].broker)
        await actions.seek("g", Seek.earliest(), ANONYMOUS)
        actions.close()
        leader.confirmed_at = 0.0  # a while ago
        again = await pull(cluster[1], wait_ms=60_000)
        assert [(one.value, one.deliveries) for one in again] == [(b"one", 1)]


async def test_what_is_done_is_described_as_done_also_after_a_restart_and_peeked_at_no_more(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await subscribe(node)
        await write(node, *((None, b"%d" % number) for number in range(4)))
        found = await pull(node)
        done = [Settlement(found[number].receipt, "ack") for number in (0, 2)]
        assert await settle(node, *done) == [ErrorCode.NONE] * 2
    async with running(tmp_path, **QUICK) as node:
        actions = SubscriptionActions(node.broker)
        await until(lambda: all(one.is_loaded for one in node.broker.shares.states.runtime.shards))
        assert [one.record.value for one in await actions.peek("g", ANONYMOUS)] == [b"1", b"3"]
        described = await actions.describe("g", ANONYMOUS)
        assert (described["lag"], described["partitions"][0]["position"]) == (2, 1)


async def test_any_broker_can_say_how_far_a_queue_is_that_is_only_pulled_from(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 2, share_state_partitions=2) as cluster:
        await create(cluster[1], topic("t", assignments=((1, 2),)))
        await until(lambda: "t" in cluster[2].broker.image.topics and _leads(cluster[1], "t", 0))
        await subscribe(cluster[1])
        await until(lambda: cluster[2].broker.subscriptions.get("g"))
        await write(cluster[1], *((None, b"%d" % number) for number in range(4)))
        found = await pull(cluster[1], wait_ms=60_000)
        done = [Settlement(found[number].receipt, "ack") for number in (0, 2)]
        assert await settle(cluster[1], *done) == [ErrorCode.NONE] * 2
        for node in cluster.nodes.values():
            actions = SubscriptionActions(node.broker)
            described = await actions.describe("g", ANONYMOUS)
            actions.close()
            assert (described["lag"], described["partitions"][0]["position"]) == (2, 1)


async def test_of_a_queue_that_is_deleted_while_another_broker_is_pulled_from_nothing_is_left(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 2, share_state_partitions=2) as cluster:
        await create(cluster[1], topic("t", assignments=((1, 2),)))
        await until(lambda: "t" in cluster[2].broker.image.topics and _leads(cluster[1], "t", 0))
        await subscribe(cluster[1])
        await until(lambda: cluster[2].broker.subscriptions.get("g"))
        offsets: list[int] = []

        async def work() -> None:
            with suppress(KafkaError):  # it is no more
                while True:
                    await write(cluster[1], (None, b"one more"))
                    for one in await pull(cluster[1]):
                        await settle(cluster[1], Settlement(one.receipt, "ack"))
                        offsets.append(one.offset)

        working = asyncio.ensure_future(work())
        await until(lambda: offsets)
        actions = SubscriptionActions(cluster[2].broker)
        await actions.delete("g", ANONYMOUS)
        actions.close()
        await asyncio.wait_for(working, 60)
        assert offsets == sorted(set(offsets)), "what it had read came again"
        await subscribe(cluster[1])
        again = await pull(cluster[1], wait_ms=60_000)
        assert (again[0].offset, again[0].deliveries) == (0, 1)


async def test_dead_letters_go_back_to_a_partition_that_another_broker_leads(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 2, share_state_partitions=1, rebalances_leaders=False) as cluster:
        one, two = cluster[1], cluster[2]
        await create(one, topic("t", assignments=((1, 2),)), topic("g.dead-letters", assignments=((2, 1),)))
        await until(lambda: _leads(one, "t", 0) and _leads(two, "g.dead-letters", 0))
        await subscribe(one)
        await until(lambda: two.broker.subscriptions.get("g") is not None)
        await write(one, (b"k", b"message", (("h", b"1"),)))
        (given,) = await pull(one, wait_ms=60_000)
        assert await settle(one, Settlement(given.receipt, "reject")) == [ErrorCode.NONE]
        letters = two.broker.partitions.find(two.broker.image.topics["g.dead-letters"].id, 0)
        await until(lambda: letters.high_watermark.offset == 1)
        assert await SubscriptionActions(two.broker).redrive("g", ANONYMOUS) == (1, 0, None)
        (again,) = await pull(one, wait_ms=60_000)
        assert (again.offset, again.key, again.value, again.headers) == (1, b"k", b"message", (("h", b"1"),))
        assert letters.start_offset == 1


async def test_a_deletion_that_fails_half_way_can_be_made_again_and_leaves_no_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await subscribe(node)
        await write(node, (None, b"one"))
        (one,) = await pull(node)
        assert await settle(node, Settlement(one.receipt, "ack")) == [ErrorCode.NONE]
        actions = SubscriptionActions(node.broker)

        async def fails(key: object) -> None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

        with monkeypatch.context() as patch:
            patch.setattr(node.broker.shares, "end", fails)
            with pytest.raises(KafkaError):
                await actions.delete("g", ANONYMOUS)
        assert await pull(node) == []
        await actions.delete("g", ANONYMOUS)
        await subscribe(node)
        assert [one.value for one in await pull(node)] == [b"one"]


async def test_of_a_deleted_queue_nothing_is_left_in_topics_that_it_has_read_before(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await node.topic("u", 1)
        await subscribe(node)
        await write(node, (None, b"one"))
        (one,) = await pull(node)
        assert await settle(node, Settlement(one.receipt, "ack")) == [ErrorCode.NONE]
        await node.broker.subscriptions.update("g", {"topics": ["u"]}, ANONYMOUS)
        await SubscriptionActions(node.broker).delete("g", ANONYMOUS)
        await subscribe(node)
        assert [one.value for one in await pull(node)] == [b"one"]


async def test_of_a_deleted_queue_that_kafkas_consumers_read_too_nothing_is_left(tmp_path: Path) -> None:
    """What was pulled from a topic that no member of the group has subscribed to, the group knows nothing of."""
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await node.topic("u", 1)
        await subscribe(node, topics=("t", "u"))
        await write(node, (None, b"one"), topic="u")
        consumer = await joined(node)
        (one,) = await pull(node)
        assert await settle(node, Settlement(one.receipt, "ack")) == [ErrorCode.NONE]
        await consumer.beat(-1)
        await SubscriptionActions(node.broker).delete("g", ANONYMOUS)
        await subscribe(node, topics=("t", "u"))
        assert [one.value for one in await pull(node)] == [b"one"]


@pytest.mark.parametrize("receipt", ["", "x", "ü", "A" * 40, "A" * 5_000])
async def test_what_is_no_receipt_is_refused_and_does_not_concern_the_others(tmp_path: Path, receipt: str) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await subscribe(node)
        await write(node, (None, b"one"), (None, b"two"))
        first, second = await pull(node)
        codes = await settle(
            node, Settlement(receipt, "ack"), Settlement(first.receipt, "ack"), Settlement(second.receipt, "eat")
        )
        assert codes[0] in (ErrorCode.INVALID_REQUEST, ErrorCode.UNKNOWN_TOPIC_ID)
        assert codes[1:] == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]


async def test_what_is_not_there_or_not_a_queue_or_too_much_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await subscribe(node, name="s", mode="stream")
        await subscribe(node)
        for name, count, code in (
            ("nobody", 1, ErrorCode.RESOURCE_NOT_FOUND),
            ("s", 1, ErrorCode.INVALID_REQUEST),
            ("g", 0, ErrorCode.INVALID_REQUEST),
            ("g", 1_001, ErrorCode.INVALID_REQUEST),
        ):
            with pytest.raises(KafkaError) as refused:
                await pull(node, count=count, name=name)
            assert refused.value.code is code


async def test_the_authorizer_is_asked_for_the_group_and_the_topic(tmp_path: Path) -> None:
    class Refuses:
        def __init__(self, kind: ResourceKind) -> None:
            self.kind = kind

        def allows(self, who: Principal, operation: Operation, kind: ResourceKind, name: str) -> bool:
            return kind is not self.kind

    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await subscribe(node)
        await write(node, (None, b"one"))
        (one,) = await pull(node)
        for kind, code in (
            (ResourceKind.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED),
            (ResourceKind.TOPIC, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        ):
            node.broker.resolver.authorizer = Refuses(kind)
            with pytest.raises(KafkaError) as refused:
                await pull(node)
            assert refused.value.code is code
        assert await settle(node, Settlement(one.receipt, "ack")) == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
