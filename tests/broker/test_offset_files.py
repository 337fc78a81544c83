"""What the checkpoint says of one topic never reaches another of the same name, in the files of any version."""

import shutil
from pathlib import Path

import pytest

from clarion.broker.config import Durability
from clarion.log.checkpoints import (
    HIGH_WATERMARKS,
    PARTITION_OFFSETS,
    RECOVERY_POINTS,
    START_OFFSETS,
    load_partitions,
)
from clarion.world import RealDisk
from tests.broker.harness import Node, running
from tests.broker.talk import batch

T0 = ("t", 0)
QUICK = {"durability": Durability.PAGE_CACHE}
SMALL_SEGMENTS = {"segment_bytes": "1024"}  # two messages


async def write(node: Node, count: int) -> None:
    for _ in range(count):
        produced = await node.client.produce({T0: batch(b"v" * 400)})
        assert produced[T0].error_code == 0


async def filled_and_checkpointed(node: Node, count: int, start: int) -> None:
    await node.topic("t", **SMALL_SEGMENTS)
    await write(node, count)
    node.partition().log.advance_start(start)
    await node.server.housekeeping.save_checkpoints()


def killed(data_dir: Path) -> Path:
    """The data directory as a kill leaves it behind now."""
    copy = data_dir.with_name(data_dir.name + "-killed")
    shutil.copytree(data_dir, copy)
    return copy


def offsets_of(node: Node) -> list[int]:
    log = node.partition().log
    return [header.base_offset for header, _ in log.batch_headers(log.start_offset)]


def with_files_by_name(data_dir: Path, start: int, end: int) -> None:
    """As an earlier version wrote them."""
    (data_dir / PARTITION_OFFSETS).unlink(missing_ok=True)
    for name, offset in ((START_OFFSETS, start), (RECOVERY_POINTS, end), (HIGH_WATERMARKS, end)):
        (data_dir / name).write_text(f"0\n1\nt 0 {offset}\n")


@pytest.mark.parametrize(
    ("old_end", "old_start", "new_end"), [(20, 15, 7), (20, 3, 7), (20, 7, 7), (5, 5, 12), (20, 0, 7)]
)
async def test_a_topic_made_again_keeps_what_it_acknowledged_after_a_kill(tmp_path, old_end, old_start, new_end):
    async with running(tmp_path / "a") as node:
        await filled_and_checkpointed(node, old_end, old_start)
        await node.broker.delete_topic("t")
        await node.topic("t", **SMALL_SEGMENTS)
        await write(node, new_end)
        copy = killed(tmp_path / "a")
        size = node.partition().log.size_bytes
    async with running(copy) as node:
        assert offsets_of(node) == list(range(new_end))
        assert node.partition().log.recovery.scanned_bytes == size, "the other topic's recovery point was believed"
    async with running(copy) as node:
        assert offsets_of(node) == list(range(new_end))


async def test_a_topic_made_again_has_its_own_start_after_a_kill(tmp_path):
    async with running(tmp_path / "a", **QUICK) as node:
        await filled_and_checkpointed(node, 20, 15)
        await node.broker.delete_topic("t")
        await filled_and_checkpointed(node, 9, 4)
        copy = killed(tmp_path / "a")
    async with running(copy, **QUICK) as node:
        assert offsets_of(node) == [4, 5, 6, 7, 8]


async def test_offsets_go_by_topic_id_on_disk(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await filled_and_checkpointed(node, 6, 2)
        topic_id = node.broker.image.topics["t"].id
        saved = load_partitions(RealDisk(), str(tmp_path / PARTITION_OFFSETS))
    assert saved[topic_id, 0].start == 2
    assert saved[topic_id, 0].high_watermark == 6


async def test_files_by_name_are_believed_after_a_clean_stop_and_go(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await filled_and_checkpointed(node, 6, 2)
    with_files_by_name(tmp_path, 2, 6)
    for _ in range(2):
        async with running(tmp_path, **QUICK) as node:
            assert offsets_of(node) == [2, 3, 4, 5]
            copy = killed(tmp_path)
        assert not (tmp_path / START_OFFSETS).exists()
        async with running(copy, **QUICK) as node:
            assert offsets_of(node) == [2, 3, 4, 5], "a kill before the first checkpoint of this version"
        shutil.rmtree(copy)


@pytest.mark.parametrize(("start", "end"), [(15, 20), (3, 20), (7, 7), (0, 20)])
async def test_files_by_name_destroy_nothing_after_a_kill(tmp_path, start, end):
    """They may be those of a deleted topic, and nothing in them tells."""
    async with running(tmp_path / "a") as node:
        await node.topic("t", **SMALL_SEGMENTS)
        await write(node, 7)
        copy = killed(tmp_path / "a")
        size = node.partition().log.size_bytes
    with_files_by_name(copy, start, end)
    async with running(copy) as node:
        assert offsets_of(node) == list(range(7))
        assert node.partition().log.recovery.scanned_bytes == size


async def test_a_start_by_name_counts_after_a_kill_where_the_log_itself_has_moved_there(tmp_path):
    async with running(tmp_path / "a") as node:
        await node.topic("t")
        await write(node, 5)
        node.partition().log.advance_start(2)
        await write(node, 1)
        copy = killed(tmp_path / "a")
    with_files_by_name(copy, 3, 6)
    async with running(copy) as node:
        assert offsets_of(node) == [2, 3, 4, 5]
