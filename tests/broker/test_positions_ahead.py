"""Positions ahead of their log, by a power cut or an older copy: what is written next is read, and not deleted."""

from __future__ import annotations

from pathlib import Path

from clarion.broker.queues import Delivery
from clarion.cli.backup_files import copy_data_dir
from clarion.consumers.cloud_events import message_id
from clarion.log.checkpoints import PARTITION_OFFSETS
from clarion.model.subscription import CONSUMED
from clarion.wire.records import encode_batch
from tests.broker.harness import Node, running
from tests.broker.kept import Kept, commit, keeping
from tests.broker.queue_words import subscribe
from tests.broker.share_words import ACCEPT, QUICK, ShareConsumer, joined, produce
from tests.broker.test_queues import pull

EARLY = "Orders"  # stands before the broker's own topics in every list
BY_SUBSCRIPTIONS = {"clarion_retention_by": "subscriptions", "file_delete_delay_ms": "0"}


async def write(node: Node, *values: bytes) -> None:
    sent = bytes(encode_batch([(None, value, (), node.broker.clock.now_ms()) for value in values]))
    assert (await node.client.produce({(EARLY, 0): sent}))[EARLY, 0].error_code == 0


async def read_to(offset: int, consumer: ShareConsumer) -> None:
    reached = 0
    while reached < offset:
        taken = sorted(await consumer.fetch(max_wait=60_000))
        assert not await consumer.acknowledge((taken[0], taken[-1], ACCEPT))
        reached = taken[-1] + 1


async def test_a_backup_has_no_queue_ahead_of_the_messages_in_it(tmp_path: Path) -> None:
    here, backup = tmp_path / "here", tmp_path / "backup"
    backup.mkdir(mode=0o700)
    async with running(here, **QUICK) as node:
        await node.topic(EARLY)
        await subscribe(node, topics=(EARLY,))
        await write(node, b"a", b"b")
        consumer = await ShareConsumer(node, node, topic=EARLY).join()
        for one in copy_data_dir(here, backup):
            if one.path == f"{EARLY}-0/00000000000000000000.log":
                await write(node, b"c")
                await read_to(3, consumer)
    async with running(backup, **QUICK) as node:
        consumer = await ShareConsumer(node, node, topic=EARLY).join()
        assert await consumer.fetch(max_wait=60_000) == {0: 1, 1: 1}


async def test_a_queue_that_is_ahead_of_its_log_gets_what_is_written_next(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic()
        await subscribe(node)
        await produce(node, b"a", b"b")
        await produce(node, b"lost", b"lost, too")
        await read_to(4, await joined(node))
        _, (_, lost) = node.partition().log.batch_headers(0)
    with (tmp_path / "t-0" / "00000000000000000000.log").open("r+b") as file:
        file.truncate(lost.position)
    for vouches in (".kafka_cleanshutdown", PARTITION_OFFSETS):  # as if it had never been flushed
        (tmp_path / vouches).unlink()
    async with running(tmp_path, **QUICK) as node:
        assert node.partition().next_offset == 2
        consumer = await joined(node)
        while node.broker.shares.leaders.known("g", consumer.topic_id, 0) is None:
            assert await consumer.fetch(max_wait=10) == {}
        await produce(node, b"new")
        assert await consumer.fetch(max_wait=60_000) == {2: 1}


async def test_what_is_written_behind_a_lost_end_does_not_count_as_read(tmp_path: Path, clock) -> None:
    async with keeping(tmp_path, clock) as node:
        await node.topic(**BY_SUBSCRIPTIONS)
        await subscribe(node, mode="stream", retention_ms=CONSUMED)
        kept = Kept(node, clock)
        await kept.write(b"a")
        await commit(node, "g", 5)
        await commit(node, "other", 5)
        await kept.pass_time(1)
        assert await kept.read() == [b"a"], "they have read others, which are gone"
        await commit(node, "g", 1)
        await commit(node, "other", 1)
        await kept.pass_time(1)
        assert await kept.read() == []


def _ids(deliveries: list[Delivery]) -> list[str]:
    return [message_id("g", one.topic_id, one.partition, one.offset, one.leader_epoch) for one in deliveries]


async def test_what_is_written_in_the_place_of_a_lost_message_is_pushed_under_another_id(tmp_path: Path) -> None:
    """A receiver that remembers ids would throw it away. One that was not lost has the same id in every try."""
    async with running(tmp_path, **QUICK) as node:
        await node.topic()
        await subscribe(node)
        await produce(node, b"kept")
    async with running(tmp_path, **QUICK) as node:
        await produce(node, b"lost")
        before = _ids(await pull(node, wait_ms=60_000))
        assert len(before) == 2
        _, (_, lost) = node.partition().log.batch_headers(0)
    with (tmp_path / "t-0" / "00000000000000000000.log").open("r+b") as file:
        file.truncate(lost.position)
    for vouches in (".kafka_cleanshutdown", PARTITION_OFFSETS):  # as if it had never been flushed
        (tmp_path / vouches).unlink()
    async with running(tmp_path, **QUICK) as node:
        await produce(node, b"another")
        found = await pull(node, wait_ms=60_000)
        assert [(one.offset, one.value) for one in found] == [(0, b"kept"), (1, b"another")]
        kept, another = _ids(found)
        assert kept == before[0]
        assert another not in before
