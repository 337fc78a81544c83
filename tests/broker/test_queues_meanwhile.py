"""What changes under a queue while its messages are in somebody's hands: partitions, the clock, what the log holds."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from clarion.broker import queues, share_leader
from clarion.broker.queues import Settlement
from clarion.model.errors import ErrorCode
from clarion.testing.clock import ShiftedClock
from clarion.wire.messages.topics import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tests.broker import kept
from tests.broker.harness import Node, running, until
from tests.broker.queue_words import subscribe, write
from tests.broker.share_words import ACCEPT, QUICK, RELEASE, acknowledgement, earliest, joined, produce, values
from tests.broker.test_queues import leaders, pull, settle

HOUR_MS = 3_600_000


async def add_partitions(node: Node, count: int, *replicas: int) -> None:
    """`replicas`: of a single new one."""
    placed = (CreatePartitionsAssignment(broker_ids=replicas),) if replicas else None
    wanted = CreatePartitionsTopic(name="t", count=count, assignments=placed)
    (told,) = (
        await node.ask(CreatePartitionsRequest(topics=(wanted,), timeout=30_000, validate_only=False), 3)
    ).results
    assert told.error_code == ErrorCode.NONE, told


async def delete_records(node: Node, before: int) -> None:
    part = DeleteRecordsPartition(partition_index=0, offset=before)
    asked = DeleteRecordsRequest(topics=(DeleteRecordsTopic(name="t", partitions=(part,)),), timeout=30_000)
    (told,) = (await node.ask(asked, 2)).topics
    assert told.partitions[0].error_code == ErrorCode.NONE


async def test_partitions_that_come_while_messages_are_in_hand_are_read_from_their_start(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await subscribe(node, window=2)
        await write(node, *[(None, b"%d" % number) for number in range(4)])
        held = await pull(node, "slow")
        assert [one.value for one in held] == [b"0", b"1"], "the window is full"
        waiting = asyncio.create_task(pull(node, "quick", wait_ms=60_000))
        await until(lambda: leaders(node)[0]._line)
        await add_partitions(node, 3)
        for index in (1, 2):
            await write(node, (None, b"new %d" % index), partition=index)
        found = await waiting
        found += await pull(node, "quick", wait_ms=60_000) if len(found) < 2 else []
        assert sorted(one.value for one in found) == [b"new 1", b"new 2"]
        assert await settle(node, *[Settlement(one.receipt, "ack") for one in held + found]) == [ErrorCode.NONE] * 4
        assert [one.value for one in await pull(node, wait_ms=60_000)] == [b"2", b"3"]
    async with running(tmp_path, **QUICK) as node:
        assert sorted([one.value for one in await pull(node, "d", wait_ms=60_000)]) == [b"2", b"3"]


async def test_kafkas_consumers_hear_of_partitions_that_come_and_keep_what_they_hold(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await earliest(node)
        await produce(node, b"one", b"two")
        consumer = await joined(node)
        assert await consumer.fetch() == {0: 1, 1: 1}
        await add_partitions(node, 2)
        await produce(node, b"three", partition=1)
        async with asyncio.timeout(60):
            while consumer.partitions != (0, 1):
                await consumer.beat()
                await asyncio.sleep(0.01)
        assert await consumer.acknowledge((0, 0, ACCEPT), (1, 1, ACCEPT)) is ErrorCode.NONE
        newcomer = await joined(node, "new")
        async with asyncio.timeout(60):
            while 1 not in newcomer.partitions:
                await newcomer.beat()
                await asyncio.sleep(0.01)
        assert values(await newcomer.ask(max_wait=60_000)) == [b"three"]


@pytest.mark.parametrize("hours", [2, -2])
async def test_a_wall_clock_that_is_set_ends_no_lock_and_no_delay(tmp_path: Path, hours: int) -> None:
    clock = ShiftedClock()
    async with running(tmp_path, clock=clock, **QUICK) as node:
        await node.topic("t", 1)
        await subscribe(node, ack_timeout_ms=HOUR_MS, backoff_min_ms=0, backoff_max_ms=0)
        await write(node, (None, b"held"), (None, b"delayed"), (None, b"short"))
        held, delayed, short = await pull(node)
        said = (
            Settlement(delayed.receipt, "release", delay_ms=HOUR_MS),
            Settlement(short.receipt, "extend", extend_ms=1_000),
        )
        assert await settle(node, *said) == [ErrorCode.NONE] * 2
        clock.advance(hours=hours)
        (again,) = await pull(node, "other", wait_ms=60_000)
        assert (again.value, again.deliveries) == (b"short", 2)
        assert await pull(node, "other") == [], "an hour has passed on the wall alone"
        assert (
            await settle(node, Settlement(held.receipt, "ack"), Settlement(again.receipt, "ack"))
            == [ErrorCode.NONE] * 2
        )
    async with running(tmp_path, clock=clock, **QUICK) as node:
        assert await pull(node, "other", wait_ms=300) == [], "nor after a restart"
    clock.advance(hours=1.1)  # while it runs, it would be a clock that is set
    async with running(tmp_path, clock=clock, **QUICK) as node:
        (again,) = await pull(node, "other", wait_ms=60_000)
        assert (again.value, again.deliveries) == (b"delayed", 2)


@pytest.mark.parametrize("hours", [2, -2])
@pytest.mark.parametrize("noticed", ["while it runs", "when it stops"])
@pytest.mark.parametrize("has_subscription", [True, False])
async def test_a_delay_goes_on_after_the_clock_was_set_and_the_broker_started_anew(
    tmp_path: Path, hours: int, noticed: str, has_subscription: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_leader, "_CLOCK_MS", 100 if noticed == "while it runs" else 600_000)
    clock = ShiftedClock()

    async def begin(node: Node) -> None:
        if not has_subscription:
            await earliest(node)
        elif node.broker.subscriptions.get("g") is None:
            await subscribe(node)

    async with running(tmp_path, clock=clock, **QUICK) as node:
        await node.topic("t", 1)
        await begin(node)
        await write(node, (None, b"delayed"))
        consumer = await joined(node)
        assert await consumer.fetch(max_wait=60_000) == {0: 1}
        released = acknowledgement(0, 0, RELEASE, delay_ms=HOUR_MS)
        assert await consumer.acknowledge(released) is ErrorCode.NONE
        (leader,) = leaders(node)
        version = leader.state_version
        clock.advance(hours=hours)
        if noticed == "while it runs":
            await until(lambda: leader.state_version > version, seconds=10)  # before the next lock would have ended
    async with running(tmp_path, clock=clock, **QUICK) as node:
        await begin(node)
        assert await (await joined(node, "other")).fetch(max_wait=500) == {}
        (leader,) = leaders(node)
        (left_ms,) = [run.until_ms - leader._now_ms() for run in leader.share.runs() if run.until_ms]
        assert 0.9 * HOUR_MS < left_ms <= HOUR_MS


@pytest.mark.parametrize("hours", [2, -2])
async def test_what_is_due_at_a_time_of_the_wall_clock_follows_it(
    tmp_path: Path, hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_leader, "_CLOCK_MS", 100)
    clock = ShiftedClock()
    async with running(tmp_path, clock=clock, **QUICK) as node:
        await node.topic("t", 1)
        await subscribe(node)
        due = (("clarion-deliver-at", b"%d" % (clock.now_ms() + HOUR_MS)),)
        soon = (("clarion-deliver-at", b"%d" % (clock.now_ms() + 1_000)),)
        await write(node, (None, b"in an hour", due), (None, b"soon", soon))
        assert await pull(node) == []
        clock.advance(hours=hours)
        found = await pull(node, wait_ms=1_500 if hours < 0 else 60_000)
        if hours > 0:
            assert [one.value for one in found] == [b"in an hour", b"soon"]
        else:
            assert found == []
            clock.advance(hours=-hours)
            assert [one.value for one in await pull(node, wait_ms=60_000)] == [b"soon"]


async def test_records_deleted_under_a_window_leave_it_and_what_is_behind_them_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "_LOOK_AGAIN_SECONDS", 600.0)  # who waits is told that there is room
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await subscribe(node, window=4)
        await write(node, *[(None, b"%d" % number) for number in range(8)])
        held = await pull(node)
        assert [one.offset for one in held] == [0, 1, 2, 3]
        waiting = asyncio.create_task(pull(node, "other", wait_ms=60_000))
        await until(lambda: leaders(node)[0]._line)
        await delete_records(node, 3)
        found = await waiting
        assert [one.offset for one in found] == [4, 5, 6], "3 is still in hand"
        codes = await settle(node, *[Settlement(one.receipt, "ack") for one in held])
        assert codes == [ErrorCode.NONE] * 4, "who had them already has done nothing wrong"
        await delete_records(node, 8)
        assert await settle(node, *[Settlement(one.receipt, "reject") for one in found]) == [ErrorCode.NONE] * 3
        assert await pull(node) == []
        await write(node, (None, b"next"))
        assert [one.offset for one in await pull(node, wait_ms=60_000)] == [8]
    async with running(tmp_path, **QUICK) as node:
        (again,) = await pull(node, "d", wait_ms=60_000)
        assert (again.offset, again.deliveries) == (8, 2)


async def test_compaction_under_a_window_takes_what_it_takes_and_holds_up_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1, cleanup_policy="compact", segment_bytes="1024", min_cleanable_dirty_ratio="0.01")
        await subscribe(node, window=10, backoff_min_ms=0, backoff_max_ms=0)
        for number in range(40):
            await write(node, (b"%d" % (number % 5), b"x" * 100 + b"%d" % number))
        held = await pull(node)
        assert [one.offset for one in held] == list(range(10))
        mine, released, rejected = held[:3], held[3:6], held[6:]
        await kept.settle(node)
        await node.server.housekeeping.compact()
        said = [Settlement(one.receipt, "release", delay_ms=0) for one in released]
        said += [Settlement(one.receipt, "reject") for one in rejected]
        assert await settle(node, *said) == [ErrorCode.NONE] * 7
        offsets: list[int] = []
        while len(found := await pull(node, "other", wait_ms=1_000)):
            offsets += [one.offset for one in found]
            assert await settle(node, *[Settlement(one.receipt, "ack") for one in found]) == [ErrorCode.NONE] * len(
                found
            )
        assert offsets[-5:] == [35, 36, 37, 38, 39], "the last of each key"
        assert not {*offsets} & {one.offset for one in held}
        assert await settle(node, *[Settlement(one.receipt, "ack") for one in mine]) == [ErrorCode.NONE] * 3
        await until(lambda: leaders(node)[0].share.start_offset == 40)
