"""What drives coordinators: any, not only those of groups, and partition by partition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from clarion.broker.broker import RequestContext
from clarion.broker.config import Durability
from clarion.broker.coordinator_runtime import CoordinatorRuntime, InternalTopic
from clarion.broker.coordinator_shard import CoordinatorShard
from clarion.groups.outcome import Call, Outcome
from clarion.groups.placement import partition_for
from clarion.model.errors import ErrorCode, KafkaError
from clarion.wire.messages.groups import JoinGroupRequest, JoinGroupRequestProtocol
from tests.broker.disks import StoryDisk
from tests.broker.harness import Node, running, until
from tests.broker.test_group_service import commit, committed

QUICK = {"durability": Durability.PAGE_CACHE, "offsets_partitions": 2}
CONTEXT = RequestContext(0, "client", "host", 0)
TALLY = "tally"  # the name of a topic that only this test knows


class Tally:
    """Counts what it is told, by name. It forgets everything a minute after it was loaded."""

    def __init__(self) -> None:
        self.counts: dict[bytes, int] = {}
        self.waiting: list[Any] = []

    def count(self, name: str, call: Call) -> Outcome:
        key, outcome = name.encode(), Outcome()
        outcome.write(key, b"%d" % (self.counts.get(key, 0) + 1))
        outcome.reply(call.ticket, self.counts.get(key, 0) + 1)
        return outcome

    def ask(self, name: str, call: Call) -> Outcome:
        return Outcome(replies=[(call.ticket, self.counts.get(name.encode(), 0))])

    def wait(self, _: str, call: Call) -> Outcome:
        self.waiting.append(call.ticket)
        return Outcome()

    def replay(self, key: bytes, value: bytes | None, offset: int = -1) -> None:
        self.counts[key] = int(value or b"0")

    def after_load(self, now_ms: int, wall_ms: int) -> None: ...

    def next_deadline_ms(self) -> int | None:
        return None

    def on_tick(self, now_ms: int, wall_ms: int, *, may_expire: bool) -> Outcome:
        return Outcome()

    def resign(self) -> Outcome:
        return Outcome(replies=[(ticket, "resigned") for ticket in self.waiting])


class Tallies:
    """Who has things counted."""

    def __init__(self, node: Node) -> None:
        self.loads = 0
        topic = InternalTopic(TALLY, lambda: 2, {})
        self.runtime = CoordinatorRuntime(node.broker, topic, Tally, self)

    async def before_load(self) -> None:
        self.loads += 1

    def after_load(self, shard: CoordinatorShard[Tally]) -> None:
        assert shard.is_loaded

    async def call(self, name: str, method: Callable[[Tally, str, Call], Outcome]) -> Any:
        return await (await self.runtime.get(name)).call(method, name, CONTEXT)


async def test_what_was_counted_is_known_after_a_restart(tmp_path):
    names = [f"n{number}" for number in range(20)]
    async with running(tmp_path, **QUICK) as node:
        tallies = Tallies(node)
        tallies.runtime.start()
        assert tallies.runtime.shards == [], "the topic is made when somebody needs it"
        for count in (1, 2, 3):
            assert [await tallies.call(name, Tally.count) for name in names] == [count] * 20
        assert {len(shard.coordinator.counts) > 0 for shard in tallies.runtime.shards} == {True}, "both have a share"
        await tallies.runtime.stop()
    async with running(tmp_path, **QUICK) as node:
        tallies = Tallies(node)
        tallies.runtime.start()
        with pytest.raises(KafkaError) as refused:
            await tallies.call("n0", Tally.ask)
        assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await until(lambda: all(shard.is_loaded for shard in tallies.runtime.shards))
        assert [await tallies.call(name, Tally.ask) for name in names] == [3] * 20
        assert tallies.loads == 1
        await tallies.runtime.stop()


async def test_who_resigns_answers_those_who_wait_and_leads_again_with_all_that_was_said(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        tallies = Tallies(node)
        await tallies.call("n", Tally.count)
        index = partition_for("n", 2)
        waiting = asyncio.ensure_future(tallies.call("n", Tally.wait))
        await asyncio.sleep(0)
        partition = (await tallies.runtime.get("n")).partition
        tallies.runtime.resign(index)
        assert await waiting == "resigned"
        with pytest.raises(KafkaError) as refused:
            await tallies.call("n", Tally.ask)
        assert refused.value.code is ErrorCode.NOT_COORDINATOR
        tallies.runtime.resign(index)  # once more changes nothing
        tallies.runtime.lead(partition)
        await until(lambda: all(shard.is_loaded for shard in tallies.runtime.shards))
        assert await tallies.call("n", Tally.ask) == 1
        await tallies.runtime.stop()


async def test_a_reply_leaves_when_what_it_tells_is_on_disk(tmp_path):
    disk = StoryDisk()
    async with running(tmp_path, disk=disk, offsets_partitions=1) as node:
        tallies = Tallies(node)
        await tallies.call("n", Tally.count)
        disk.hold_flushes()
        counted, asked = (asyncio.ensure_future(tallies.call("n", one)) for one in (Tally.count, Tally.ask))
        await until(lambda: len(node.broker.waiting_coordinators) == 2)
        assert (counted.done(), asked.done()) == (False, False), "also who only asks has heard of it"
        disk.let_flushes_go()
        assert (await counted, await asked) == (2, 2)
        await tallies.runtime.stop()


async def test_members_of_a_group_that_moves_look_for_its_new_coordinator(tmp_path):
    async with running(tmp_path, **QUICK, group_initial_rebalance_delay_ms=60_000) as node, node.another() as member:
        await node.topic()
        await commit(node, 7)
        runtime = node.server.groups.runtime
        shard = runtime.find("g")
        protocol = JoinGroupRequestProtocol(name="range", metadata=b"")
        join = JoinGroupRequest(
            group_id="g",
            session_timeout=30_000,
            rebalance_timeout=30_000,
            member_id="",
            protocol_type="consumer",
            protocols=(protocol,),
        )
        joining = asyncio.ensure_future(member.ask(join, 3))
        await until(lambda: any(one.members for one in shard.coordinator.summaries()))
        runtime.resign(partition_for("g", 2))
        assert (await joining).error_code == ErrorCode.NOT_COORDINATOR
        runtime.lead(shard.partition)
        await until(lambda: all(one.is_loaded for one in runtime.shards))
        assert await committed(node) == 7
