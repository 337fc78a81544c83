"""What is deleted because all have read it, while subscriptions and topics change at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from uuid import UUID

import pytest

from clarion.broker.authorizer import ANONYMOUS
from clarion.broker.broker import Broker
from clarion.broker.group_positions import GroupPositions
from clarion.broker.subscriptions import Subscriptions
from clarion.catalog.content import CatalogAwayError
from clarion.cluster import ClusterImage
from clarion.consumers.retention import UNKNOWN_SUBSCRIPTIONS
from clarion.model.subscription import CONSUMED
from tests.broker.harness import until
from tests.broker.kept import Kept, commit, keeping
from tests.broker.test_cluster import cluster_of
from tests.broker.test_cluster_replication import make_topic, produce, replica
from tests.broker.test_retention_by_subscriptions import (
    BY_SUBSCRIPTIONS,
    DAY_MS,
    _complete_look,
    commit_at,
    group_elsewhere,
    stream,
    subscribe,
)


async def test_a_subscription_made_while_positions_are_asked_for_keeps_what_is_written_from_then_on(tmp_path, clock):
    async with keeping(tmp_path, clock) as node:
        await node.topic(**BY_SUBSCRIPTIONS)
        await subscribe(node, stream("job", CONSUMED))
        kept = Kept(node, clock)
        await commit(node, "job", 0)
        find, begun, may_go_on = node.broker.needs._positions.find, asyncio.Event(), asyncio.Event()

        async def slowly(*asked, **how):
            begun.set()
            await may_go_on.wait()
            return await find(*asked, **how)

        node.broker.needs._positions.find = slowly
        looking = asyncio.ensure_future(kept.house.retain())
        await begun.wait()
        await subscribe(node, stream("bank", 14 * DAY_MS))
        await kept.write(b"the bank's")
        await commit(node, "job", 1)
        may_go_on.set()
        await looking
        assert await kept.read() == [b"the bank's"]


async def test_a_subscription_made_at_another_broker_keeps_what_is_written_from_then_on(tmp_path):
    async with cluster_of(tmp_path, 3) as three:
        leader = await make_topic(three, **BY_SUBSCRIPTIONS)
        other = next(one for one in (1, 2, 3) if one != leader)
        group = await group_elsewhere(three, leader)
        three[leader].broker.subscriptions._following.cancel()  # as between two of its looks at the catalog
        await three[other].broker.subscriptions.create(stream("bank", 14 * DAY_MS), ANONYMOUS)
        await produce(three, b"a", b"b")
        await commit_at(three, group, 2)
        found = await _complete_look(three, leader)
        assert "bank" in [need.holder for need in found.of(replica(three, leader))]
        await three[leader].server.housekeeping.retain()
        assert replica(three, leader).start_offset == 0


async def test_a_broker_whose_catalog_is_away_deletes_nothing_that_a_subscription_made_elsewhere_may_need(tmp_path):
    async with cluster_of(tmp_path, 3) as three:
        leader = await make_topic(three, **BY_SUBSCRIPTIONS)
        other = next(one for one in (1, 2, 3) if one != leader)
        group = await group_elsewhere(three, leader)
        with _without_catalog(three[leader].broker) as known:
            await until(lambda: known.is_away)
            await three[other].broker.subscriptions.create(stream("bank", 14 * DAY_MS), ANONYMOUS)
            await produce(three, b"the bank's")
            await commit_at(three, group, 1)
            found = await _complete_look(three, leader)
            assert UNKNOWN_SUBSCRIPTIONS in [need.holder for need in found.of(replica(three, leader))]
            await three[leader].server.housekeeping.retain()
            assert replica(three, leader).start_offset == 0
        await until(lambda: not known.is_away)
        await three[leader].server.housekeeping.retain()
        assert replica(three, leader).start_offset == 0, "the bank's"
        await three[other].broker.subscriptions.delete("bank", ANONYMOUS)
        await _complete_look(three, leader)
        await three[leader].server.housekeeping.retain()
        assert replica(three, leader).start_offset == 1


async def test_a_catalog_that_hangs_between_two_looks_is_not_believed_either(tmp_path):
    async with cluster_of(tmp_path, 3) as three:
        leader = await make_topic(three, **BY_SUBSCRIPTIONS)
        group = await group_elsewhere(three, leader)
        await produce(three, b"a")
        await commit_at(three, group, 1)
        await _complete_look(three, leader)
        known = three[leader].broker.subscriptions
        known._following.cancel()  # nobody has seen yet that it is away
        with _without_catalog(three[leader].broker):
            await three[leader].server.housekeeping.retain()
            assert (known.is_away, replica(three, leader).start_offset) == (False, 0)


@contextmanager
def _without_catalog(broker: Broker) -> Iterator[Subscriptions]:
    """The broker has all it had, but for the catalog."""
    known = broker.subscriptions

    async def is_away(revision: int) -> None:
        raise CatalogAwayError("no route to it")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(known._catalog, "news", is_away)
        yield known


async def test_what_was_committed_in_a_topic_of_the_same_name_does_not_count(tmp_path):
    async with cluster_of(tmp_path, 3) as three:
        leader = await make_topic(three, **BY_SUBSCRIPTIONS)
        await produce(three, b"a", b"b")
        group = await group_elsewhere(three, leader)
        await commit_at(three, group, 2)
        assert (await _complete_look(three, leader)).committed
        broker, new_id = three[leader].broker, UUID(int=7)
        made_again = replace(broker.image.topics["t"], id=new_id)
        ahead = replace(
            broker.image, topics={**broker.image.topics, "t": made_again}, topics_by_id={new_id: made_again}
        )
        positions = GroupPositions(_Ahead(broker, ahead))
        told = await positions.find({"t": new_id}, [group], wants_all=True)
        positions.close()
        assert (told.committed, told.has_all) == ({}, False), "of this topic the coordinator has not heard yet"


class _Ahead:
    """A broker that has heard of a change sooner than the others."""

    def __init__(self, broker: Broker, image: ClusterImage) -> None:
        self._broker = broker
        self.image = image

    def __getattr__(self, name: str):
        return getattr(self._broker, name)


async def test_who_comes_to_lead_after_it_has_looked_deletes_nothing_that_it_has_not_asked_about(tmp_path):
    """What it knows by itself is where a stream begins, and not how far the groups are."""
    async with cluster_of(tmp_path, 3) as three:
        before = await make_topic(three, **BY_SUBSCRIPTIONS)
        group = await group_elsewhere(three, before)
        await produce(three, b"read", b"unread", b"unread, too")
        await commit_at(three, group, 1)
        await subscribe(three[before], replace(stream("job", CONSUMED), start="latest"))
        others = [one for one in (1, 2, 3) if one != before]
        await until(lambda: all("job" in _names(three[one].broker) for one in others))
        found = {one: await three[one].broker.needs.look([replica(three, one)]) for one in others}
        await three.stop(before)
        await until(lambda: any(replica(three, one).is_leader for one in others))
        leader = next(one for one in others if replica(three, one).is_leader)
        partition, broker = replica(three, leader), three[leader].broker
        await until(lambda: partition.high_watermark.offset == 3)
        await broker.cleaner.retain(partition, broker.clock.now_ms(), found[leader].of(partition))
        assert partition.start_offset == 0
        again = await _complete_look(three, leader)
        assert (group, 1) in [(need.holder, need.position) for need in again.of(partition)]


def _names(broker: Broker) -> list[str]:
    return [one.name for one in broker.subscriptions.all()]
