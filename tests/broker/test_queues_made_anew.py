"""A subscription is deleted, and another one made under its name: what was known for the first is not the second's."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from clarion.broker.authorizer import ANONYMOUS
from clarion.broker.config import Durability
from clarion.broker.queues import Settlement
from clarion.broker.retention_needs import RetentionNeeds
from clarion.broker.subscription_actions import SubscriptionActions
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.subscription import CONSUMED
from clarion.queues.state_records import ShareKey
from tests.broker.harness import Node, running, until
from tests.broker.queue_words import subscribe, write
from tests.broker.share_words import QUICK, ShareConsumer, earliest, fetch_codes, joined, values
from tests.broker.test_cluster import _leads, cluster_of, create, topic
from tests.broker.test_queues import leaders, pull, settle

TWELVE = [b"%d" % number for number in range(12)]


async def delete(node: Node) -> None:
    actions = SubscriptionActions(node.broker)
    await actions.delete("g", ANONYMOUS)
    actions.close()


async def all_of(node: Node) -> list[bytes | None]:
    found: list[bytes | None] = []
    async with asyncio.timeout(60):
        while some := await pull(node, wait_ms=1_000):
            found += [one.value for one in some]
    return sorted(found, key=lambda value: int(value or b""))


@pytest.mark.parametrize("durability", list(Durability))
async def test_a_first_pull_that_goes_on_behind_the_deletion_begins_nothing_for_the_next_of_the_name(
    tmp_path: Path, durability: Durability
) -> None:
    async with running(tmp_path, durability=durability) as node:
        await node.topic("t", 40)
        for index in range(40):
            await write(node, (None, b"%d" % index), partition=index)
        await subscribe(node)
        pulling = asyncio.create_task(pull(node, wait_ms=5_000))
        await until(lambda: len(leaders(node)) >= 3)
        await delete(node)
        with suppress(KafkaError):  # it is no more; unless the pull had found something before
            await pulling
        assert leaders(node) == []
        await subscribe(node)
        assert await all_of(node) == [b"%d" % index for index in range(40)]


async def test_a_broker_that_has_not_heard_of_the_deletion_begins_nothing_for_the_next_of_the_name(
    tmp_path: Path,
) -> None:
    """It hears within half a second, and its consumers settle and pull meanwhile; by the rules of the one before, a
    queue would begin further on."""
    async with cluster_of(tmp_path, 2, share_state_partitions=2) as cluster:
        await create(cluster[1], topic("t", assignments=((1, 2),) * 4))
        await until(lambda: "t" in cluster[2].broker.image.topics and all(_leads(cluster[1], "t", n) for n in range(4)))
        for number, value in enumerate(TWELVE[:8]):
            await write(cluster[1], (None, value), partition=number % 4)
        await subscribe(cluster[1], start="latest")
        assert await pull(cluster[1], wait_ms=100) == []
        await until(lambda: cluster[2].broker.subscriptions.get("g"))
        for number, value in enumerate(TWELVE[8:]):
            await write(cluster[1], (None, value), partition=number % 4)
        held = await pull(cluster[1], wait_ms=60_000)
        known = cluster[1].broker.subscriptions
        known._following.cancel()  # as between two of its looks at the catalog
        await delete(cluster[2])
        said = [Settlement(one.receipt, "release") for one in held]
        assert ErrorCode.NONE not in await settle(cluster[1], *said), "what was written down of it is gone"
        assert await settle(cluster[1], *said) == [ErrorCode.INVALID_RECORD_STATE] * len(said), "its lock has ended"
        assert leaders(cluster[1]) == [] or not any(leader.is_current for leader in leaders(cluster[1]))
        again = {one.value for one in await pull(cluster[1], wait_ms=100)}
        assert again <= {*TWELVE[8:]}, "by the rules of before it begins behind the first eight"
        await known.look_again()
        await subscribe(cluster[2], start="earliest")
        await known.look_again()
        assert await all_of(cluster[1]) == TWELVE


async def test_a_state_that_begins_late_behind_a_deletion_counts_for_nobody(tmp_path: Path) -> None:
    """Another broker has asked for it, and its request was under way for long."""
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await subscribe(node)
        await write(node, *[(None, value) for value in TWELVE])
        key = ShareKey("g", node.broker.image.topics["t"].id, 0)
        before = node.broker.subscriptions.known("g").created_ms
        await delete(node)
        await node.broker.shares.states.initialize(key, 0, 7, subscription_ms=before)
        await until(lambda: node.broker.clock.now_ms() > before)
        await subscribe(node, retention_ms=CONSUMED)
    async with running(tmp_path, **QUICK) as node:
        actions = SubscriptionActions(node.broker)
        assert (await actions.describe("g", ANONYMOUS))["lag"] == 12
        needs = RetentionNeeds(node.broker)
        (need,) = (await needs.look([node.partition()])).of(node.partition())
        assert need.position is None, "it has read nothing, and needs all that there is"
        needs.close()
        assert await all_of(node) == TWELVE
        (leader,) = leaders(node)
        assert leader.share.start_offset == 0


async def test_where_the_catalog_does_not_say_whose_a_state_is_nobody_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await subscribe(node)
        await write(node, (None, b"0"))
        key = ShareKey("g", node.broker.image.topics["t"].id, 0)
        await node.broker.shares.states.initialize(key, 0, 1, subscription_ms=1)

        async def is_away() -> bool:
            return False

        with monkeypatch.context() as patch:
            patch.setattr(node.broker.subscriptions, "look_again", is_away)
            assert await pull(node) == []
            assert (await node.broker.shares.states.summary(key)).subscription_ms == 1
        assert await all_of(node) == [b"0"]


async def test_a_pause_that_comes_while_a_pull_looks_holds_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 5)
        for index in range(5):
            await write(node, (None, b"%d" % index), partition=index)
        await subscribe(node)
        load = node.broker.shares.leaders.get

        async def paused_meanwhile(*what: Any) -> Any:
            loaded = await load(*what)
            if len(leaders(node)) == 3:
                await node.broker.subscriptions.update("g", {"paused": True}, ANONYMOUS)
            return loaded

        with monkeypatch.context() as patch:
            patch.setattr(node.broker.shares.leaders, "get", paused_meanwhile)
            assert await pull(node) == []
        assert [leader.rules.is_paused for leader in leaders(node)] == [True] * 3, "and nobody undoes it"
        await node.broker.subscriptions.update("g", {"paused": False}, ANONYMOUS)
        assert await all_of(node) == [b"%d" % index for index in range(5)]


# Kafka's consumers


@pytest.mark.parametrize("where", ["queues.forget", "subscriptions.delete"])
async def test_who_joins_while_the_subscription_is_deleted_reads_from_the_next_of_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await subscribe(node)
        await write(node, (None, b"one"))
        for one in await pull(node):
            assert await settle(node, Settlement(one.receipt, "ack")) == [ErrorCode.NONE]
        members: list[ShareConsumer] = []
        room, name = where.split(".")
        go_on = getattr(getattr(node.broker, room), name)

        async def joined_meanwhile(*what: Any) -> Any:
            members.append(await joined(node))
            return await go_on(*what)

        with monkeypatch.context() as patch:
            patch.setattr(getattr(node.broker, room), name, joined_meanwhile)
            await delete(node)
        (consumer,) = members
        assert consumer.partitions == (), "nothing begins for a subscription that is being deleted"
        await subscribe(node)
        await write(node, (None, b"two"))
        await consumer.beat()
        assert values(await consumer.ask(max_wait=60_000)) == [b"one", b"two"]


async def test_a_subscription_whose_group_somebody_joins_when_its_deletion_begins_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await subscribe(node)
        await write(node, (None, b"one"))
        go_on, members = node.broker.subscriptions.suspend, list[ShareConsumer]()

        async def joined_before(*what: Any) -> None:
            members.append(await joined(node))
            await go_on(*what)

        with monkeypatch.context() as patch:
            patch.setattr(node.broker.subscriptions, "suspend", joined_before)
            with pytest.raises(KafkaError) as refused:
                await delete(node)
        assert refused.value.code is ErrorCode.NON_EMPTY_GROUP
        await node.broker.subscriptions.update("g", {"paused": False}, ANONYMOUS)
        assert values(await members[0].ask(max_wait=60_000)) == [b"one"]


async def test_who_joins_a_paused_subscription_is_given_its_partitions_when_it_goes_on(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await subscribe(node, paused=True)
        await write(node, (None, b"one"))
        consumer = await joined(node)
        assert consumer.partitions == ()
        await node.broker.subscriptions.update("g", {"paused": False}, ANONYMOUS)
        await consumer.beat()
        assert values(await consumer.ask(max_wait=60_000)) == [b"one"]


async def test_a_group_whose_state_is_gone_begins_anew_and_reads_again(tmp_path: Path) -> None:
    """Whatever has taken it; a group that goes on knowing of it could read nothing, ever."""
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await earliest(node)
        consumer = await joined(node)
        await write(node, (None, b"one"))
        assert await consumer.fetch() == {0: 1}
        key = ShareKey("g", consumer.topic_id, 0)
        await node.broker.shares.states.delete(key)
        node.broker.shares.leaders.forget(key)
        assert fetch_codes(await consumer.ask()) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        await until(lambda: not node.broker.shares.group("g").initialized)
        await consumer.beat()
        assert consumer.partitions == (0,)
        assert values(await consumer.ask(max_wait=60_000)) == [b"one"]
