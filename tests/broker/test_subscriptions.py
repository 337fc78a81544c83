"""Subscriptions of a broker: in memory for who reads, in the catalog for who changes, and groups on Kafka's wire."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from clarion.broker.authorizer import ANONYMOUS, Operation, Principal, ResourceKind
from clarion.broker.subscriptions import Subscriptions
from clarion.catalog.content import CatalogUnusableError
from clarion.catalog.database import CatalogDatabase
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.subscription import Subscription
from clarion.wire.messages.groups import ConsumerGroupHeartbeatRequest, JoinGroupRequest, JoinGroupRequestProtocol
from clarion.wire.messages.share_groups import ShareGroupHeartbeatRequest
from tests.broker.harness import Node, running, until
from tests.broker.share_words import QUICK, ShareConsumer
from tests.broker.test_cluster import cluster_of
from tests.postgres import PostgresProcess


def billing(**changes: Any) -> Subscription:
    return Subscription.from_json({"name": "billing", "topics": ["orders"], **changes})


async def create(node: Node, **changes: Any) -> Subscription:
    if "orders" not in node.broker.image.topics:
        await node.topic("orders")
    return await node.broker.subscriptions.create(billing(**changes), ANONYMOUS)


async def test_without_subscriptions_there_is_no_catalog(tmp_path: Path):
    async with running(tmp_path / "data", **QUICK) as node:
        subscriptions = node.broker.subscriptions
        assert subscriptions.has_loaded
        assert subscriptions.all() == subscriptions.for_topic("orders") == []
        assert subscriptions.get("billing") is None
    assert not (tmp_path / "data/catalog.db").exists()


async def test_what_is_created_is_there_after_a_restart(tmp_path: Path):
    async with running(tmp_path, **QUICK) as node:
        made = await create(node, retention="14d", push="https://example.org/hook")
        assert made.push is not None
        assert made.push.secret.startswith("whsec_")
        assert made.created_ms > 0
        assert node.broker.subscriptions.get("billing") == made
    async with running(tmp_path, **QUICK) as node:
        assert node.broker.subscriptions.all() == [made]


async def test_changes_are_told_to_who_wants_to_know(tmp_path: Path):
    async with running(tmp_path, **QUICK) as node:
        heard: list[tuple[str, int | None]] = []
        node.broker.subscriptions.on_change(lambda name, now: heard.append((name, now.window if now else None)))
        await create(node, window=7)
        await node.broker.subscriptions.update("billing", {"window": 8}, ANONYMOUS)
        await node.broker.subscriptions.update("billing", {"window": 8}, ANONYMOUS)
        await node.broker.subscriptions.delete("billing", ANONYMOUS)
        assert heard == [("billing", 7), ("billing", 8), ("billing", None)]


async def test_a_topics_subscriptions_are_found_by_name_and_by_pattern(tmp_path: Path):
    async with running(tmp_path, **QUICK) as node:
        await create(node)
        subscriptions = node.broker.subscriptions
        await subscriptions.create(Subscription(name="all", pattern=".*"), ANONYMOUS)
        assert [one.name for one in subscriptions.for_topic("orders")] == ["all", "billing"]
        assert [one.name for one in subscriptions.for_topic("other")] == ["all"]
        assert subscriptions.for_topic("__consumer_offsets") == []
        assert subscriptions.for_topic("all.dead-letters") == []
        await subscriptions.delete("all", ANONYMOUS)
        assert [one.name for one in subscriptions.for_topic("orders")] == ["billing"]
        assert subscriptions.topics_of(billing()) == ["orders"]


async def test_who_did_not_hear_may_ask_again_and_who_wants_something_else_is_told_what_differs(tmp_path: Path):
    async with running(tmp_path, **QUICK) as node:
        made = await create(node, push="https://example.org/hook")
        assert await create(node, push="https://example.org/hook") == made
        with pytest.raises(KafkaError, match="exists with another push, window") as refused:
            await create(node, window=7)
        assert refused.value.code == ErrorCode.DUPLICATE_RESOURCE
        assert node.broker.subscriptions.all() == [made]


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({"topics": ["none"]}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "create it first"),
        ({"topics": [], "pattern": "("}, ErrorCode.INVALID_REGULAR_EXPRESSION, "missing"),
        ({"filter": "colour == 1"}, ErrorCode.INVALID_REQUEST, "there is no 'colour'"),
        (
            {"filter": 'key == "a"', "mode": "stream"},
            ErrorCode.INVALID_REQUEST,
            'write mode "queue", or leave the filter',
        ),
    ],
)
async def test_what_cannot_be_is_refused_and_leaves_nothing(tmp_path: Path, changes, code, says):
    async with running(tmp_path, **QUICK) as node:
        with pytest.raises(KafkaError, match=says) as refused:
            await create(node, **changes)
        assert refused.value.code == code
        assert node.broker.subscriptions.all() == []
        assert node.broker.dynamic.of_group("billing") == {}


async def test_a_change_of_what_is_not_there_or_never_changes_is_refused(tmp_path: Path):
    async with running(tmp_path, **QUICK) as node:
        subscriptions = node.broker.subscriptions
        for change in (subscriptions.update("none", {}, ANONYMOUS), subscriptions.delete("none", ANONYMOUS)):
            with pytest.raises(KafkaError, match="there is no subscription 'none'") as refused:
                await change
            assert refused.value.code == ErrorCode.RESOURCE_NOT_FOUND
        await create(node)
        with pytest.raises(KafkaError, match="mode cannot be changed"):
            await subscriptions.update("billing", {"mode": "stream"}, ANONYMOUS)
        await create(node, name="clicks", mode="stream")
        with pytest.raises(KafkaError, match="leave the filter out"):
            await subscriptions.update("clicks", {"filter": 'key == "a"'}, ANONYMOUS)


class OnlyReads:
    def allows(self, principal: Principal, operation: Operation, kind: ResourceKind, name: str) -> bool:
        return operation in (Operation.READ, Operation.DESCRIBE)


async def test_who_may_not_alter_the_group_makes_no_subscription(tmp_path: Path):
    async with running(tmp_path, **QUICK) as node:
        made = await create(node)
        node.broker.resolver.authorizer = OnlyReads()
        subscriptions = node.broker.subscriptions
        for change in (
            subscriptions.create(billing(name="other"), ANONYMOUS),
            subscriptions.update("billing", {"paused": True}, ANONYMOUS),
            subscriptions.delete("billing", ANONYMOUS),
        ):
            with pytest.raises(KafkaError) as refused:
                await change
            assert refused.value.code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        assert subscriptions.all() == [made]


class NoWrites:
    def allows(self, principal: Principal, operation: Operation, kind: ResourceKind, name: str) -> bool:
        return operation is not Operation.WRITE


async def test_who_may_not_write_to_a_topic_cannot_have_dead_letters_written_there(tmp_path: Path):
    async with running(tmp_path, **QUICK) as node:
        made = await create(node)
        node.broker.resolver.authorizer = NoWrites()
        subscriptions = node.broker.subscriptions
        for change in (
            subscriptions.create(billing(name="other", dead_letter_topic="payroll"), ANONYMOUS),
            subscriptions.update("billing", {"dead_letter_topic": "payroll"}, ANONYMOUS),
        ):
            with pytest.raises(KafkaError) as refused:
                await change
            assert refused.value.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert subscriptions.all() == [made]


async def test_a_change_that_broke_off_behind_the_catalog_is_completed_by_its_repetition(tmp_path: Path):
    async with running(tmp_path, **QUICK) as node:
        made = await create(node, max_deliveries=7)
        catalog = node.broker.subscriptions._catalog
        assert catalog is not None
        await catalog.save(made.changed({"max_deliveries": 3}), made.revision)  # and then the broker was killed
        await node.broker.subscriptions.update("billing", {"max_deliveries": 3}, ANONYMOUS)
        assert node.broker.groups.config_of("billing").share_delivery_count_limit == 3


async def test_kafkas_share_consumers_see_a_queues_rules_as_the_groups_settings(tmp_path: Path):
    async with running(tmp_path, **QUICK) as node:
        await create(node, ack_timeout="45s", max_deliveries=7, start="latest")
        config = node.broker.groups.config_of("billing")
        assert (config.share_record_lock_duration_ms, config.share_delivery_count_limit) == (45_000, 7)
        assert config.share_auto_offset_reset == "latest"
        await node.broker.subscriptions.update("billing", {"max_deliveries": 3}, ANONYMOUS)
        assert node.broker.groups.config_of("billing").share_delivery_count_limit == 3
        await node.broker.subscriptions.delete("billing", ANONYMOUS)
        assert node.broker.dynamic.of_group("billing") == {}


def _join(group: str) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout=45_000,
        rebalance_timeout=60_000,
        member_id="",
        protocol_type="consumer",
        protocols=(JoinGroupRequestProtocol(name="range", metadata=b""),),
    )


def _beat(group: str) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id="m",
        member_epoch=0,
        rebalance_timeout=60_000,
        subscribed_topic_names=("orders",),
        topic_partitions=(),
    )


def _share(group: str) -> ShareGroupHeartbeatRequest:
    return ShareGroupHeartbeatRequest(group_id=group, member_id="m", member_epoch=0, subscribed_topic_names=("orders",))


@pytest.mark.parametrize(
    ("rules", "says"),
    [({"filter": 'key == "a"'}, "has a filter"), ({"push": "https://example.org/hook"}, "is pushed to its endpoint")],
)
async def test_what_kafkas_protocol_cannot_do_for_a_reader_is_refused_not_ignored(tmp_path: Path, rules, says):
    async with running(tmp_path, **QUICK) as node:
        await create(node, **rules)
        for asked, version in ((_beat("billing"), 1), (_share("billing"), 1)):
            reply = await node.ask(asked, version)
            assert reply.error_code == ErrorCode.INVALID_REQUEST
            assert says in reply.error_message
        assert (await node.ask(_join("billing"), 9)).error_code == ErrorCode.INVALID_REQUEST
        consumer = ShareConsumer(node, node, group="billing", topic="orders")
        consumer.partitions = (0,)
        assert (await consumer.ask(())).error_code == ErrorCode.INVALID_REQUEST
        await node.broker.subscriptions.delete("billing", ANONYMOUS)
        assert (await node.ask(_share("billing"), 1)).error_code == ErrorCode.NONE


async def test_a_queue_is_not_read_as_a_stream_nor_a_stream_as_a_queue(tmp_path: Path):
    async with running(tmp_path, **QUICK) as node:
        await create(node)
        await create(node, name="clicks", mode="stream")
        assert (await node.ask(_join("billing"), 9)).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        reply = await node.ask(_share("clicks"), 1)
        assert reply.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert "use a consumer group" in reply.error_message
        assert (await node.ask(_share("billing"), 1)).error_code == ErrorCode.NONE
        assert (await node.ask(_beat("clicks"), 1)).error_code == ErrorCode.NONE


async def test_a_damaged_catalog_stops_the_start(tmp_path: Path):
    tmp_path.joinpath("catalog.db").write_bytes(b"something else" * 1_000)
    with pytest.raises(CatalogUnusableError, match="is damaged"):
        async with running(tmp_path, **QUICK):
            pass


async def test_of_two_brokers_with_one_catalog_each_sees_what_the_other_does(
    tmp_path: Path, postgres_server: PostgresProcess
):
    place = postgres_server.new_database()
    async with (
        running(tmp_path / "one", catalog=place, **QUICK) as one,
        running(tmp_path / "other", catalog=place, **QUICK) as other,
    ):
        made = await create(one)
        await until(lambda: other.broker.subscriptions.get("billing") == made)
        await other.topic("orders")
        changed = await other.broker.subscriptions.update("billing", {"paused": True}, ANONYMOUS)
        await until(lambda: one.broker.subscriptions.get("billing") == changed)
        await one.broker.subscriptions.delete("billing", ANONYMOUS)
        await until(lambda: other.broker.subscriptions.all() == [])
        assert not (tmp_path / "one/catalog.db").exists()


async def test_while_the_catalog_is_away_what_is_known_stays_and_changes_are_refused(
    tmp_path: Path, postgres_server: PostgresProcess
):
    async with running(tmp_path, catalog=postgres_server.new_database(), **QUICK) as node:
        made = await create(node)
        subscriptions = node.broker.subscriptions
        await asyncio.to_thread(postgres_server.stop)
        try:
            await until(lambda: subscriptions.is_away)
            assert subscriptions.get("billing") == made
            with pytest.raises(KafkaError, match="cannot be changed now") as refused:
                await subscriptions.update("billing", {"paused": True}, ANONYMOUS)
            assert refused.value.code == ErrorCode.BROKER_NOT_AVAILABLE
            with pytest.raises(KafkaError, match="cannot be reached"):
                await subscriptions.delete("billing", ANONYMOUS)
        finally:
            await asyncio.to_thread(postgres_server.start)
        await until(lambda: not subscriptions.is_away)
        assert (await subscriptions.update("billing", {"paused": True}, ANONYMOUS)).paused


async def test_a_broker_starts_without_its_catalog_and_reads_it_when_it_is_back(
    tmp_path: Path, postgres_server: PostgresProcess
):
    place = postgres_server.new_database()
    catalog = CatalogDatabase(place)
    saved = catalog.save(billing(), 0)
    catalog.close()
    await asyncio.to_thread(postgres_server.stop)
    is_stopped = True
    try:
        async with running(tmp_path, catalog=place, **QUICK) as node:
            subscriptions = node.broker.subscriptions
            assert subscriptions.is_away
            assert not subscriptions.has_loaded, "whoever deletes has to wait"
            with pytest.raises(KafkaError, match="has not been read yet"):
                subscriptions.known("billing")
            await asyncio.to_thread(postgres_server.start)
            is_stopped = False
            await until(lambda: subscriptions.has_loaded)
            assert subscriptions.all() == [saved]
    finally:
        if is_stopped:
            await asyncio.to_thread(postgres_server.start)


async def test_brokers_on_one_machine_share_the_catalog_of_their_stores_owner(tmp_path: Path):
    async with cluster_of(tmp_path, 2) as cluster:
        await cluster[1].topic("orders")
        await until(lambda: "orders" in cluster[2].broker.image.topics)
        made = await cluster[2].broker.subscriptions.create(billing(max_deliveries=9), ANONYMOUS)
        await until(lambda: cluster[1].broker.subscriptions.get("billing") == made)
        await until(lambda: cluster[1].broker.groups.config_of("billing").share_delivery_count_limit == 9)
        await cluster.stop(1)  # the owner
        changed = await cluster[2].broker.subscriptions.update("billing", {"paused": True}, ANONYMOUS)
        assert cluster[2].broker.subscriptions.all() == [changed]


async def test_a_cluster_without_a_common_catalog_says_what_it_needs(tmp_path: Path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic("orders")
        subscriptions = Subscriptions(node.broker, None)
        await subscriptions.start()
        assert subscriptions.has_loaded
        with pytest.raises(KafkaError, match=r"set clarion\.catalog to postgresql:"):
            await subscriptions.create(billing(), ANONYMOUS)
        tmp_path.joinpath("catalog.db").write_bytes(b"x")
        with pytest.raises(CatalogUnusableError, match="move the file away"):
            await subscriptions.start()


async def test_where_the_catalog_is_is_told_to_nobody(tmp_path: Path, postgres_server: PostgresProcess):
    place = postgres_server.new_database().replace("clarion@", "clarion:s3cret@")
    async with running(tmp_path, catalog=place, **QUICK) as node:
        from clarion.broker.apis.config_entries import broker_entries  # what DescribeConfigs answers from

        (entry,) = (one for one in broker_entries(node.broker) if one.name == "clarion.catalog")
        assert entry.is_sensitive
        assert entry.value is None
