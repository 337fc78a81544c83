"""What a broker does when nobody asks: old messages go, keys are compacted, and trouble in one place stays there."""

import shutil
import threading
import time

from clarion.log.checkpoints import PARTITION_OFFSETS
from tests.broker.disks import StoryDisk
from tests.broker.harness import until
from tests.broker.kept import HOUR, Kept, WitnessDisk, keeping


async def test_no_folder_is_synced_in_the_loop_by_retention_or_compaction(tmp_path, clock):
    disk = WitnessDisk()
    async with keeping(tmp_path, clock, disk=disk) as node:
        await node.topic("t", retention_ms=str(10 * HOUR * 1000), segment_bytes="1000000")
        await node.topic("c", cleanup_policy="compact", segment_bytes="1000000", min_cleanable_dirty_ratio="0.01")
        kept = Kept(node, clock)
        for number in range(9):
            for topic in "tc":
                await kept.write(b"%d" % number, topic=topic, key=b"k")
                if number % 2:
                    node.partition(topic).roll(clock.now_ms())
            await kept.pass_time(2 * HOUR)
        await until(lambda: not any(one.is_flushing for one in node.broker.partitions))
        disk.synced_by.clear()
        await kept.pass_time(7 * HOUR)
        await kept.house.compact()
        assert node.partition("t").start_offset > 4
        assert (await kept.read("c")).count(b"0") == 0
        folders = {path.rpartition("/")[2] for path, _ in disk.synced_by}
        assert "c-0" in folders
        assert threading.get_ident() not in {thread for _, thread in disk.synced_by}


# Checkpoints and duties


async def test_a_deleted_start_outlives_a_crash_after_a_checkpoint(tmp_path, clock):

    async with keeping(tmp_path / "a", clock) as node:
        await node.topic()
        kept = Kept(node, clock)
        await kept.write(b"a", b"b", b"c")
        node.partition().log.advance_start(2)
        await kept.house.save_checkpoints()
        shutil.copytree(tmp_path / "a", tmp_path / "b")
    async with keeping(tmp_path / "b", clock) as node:
        assert await Kept(node, clock).read() == [b"c"]


async def test_checkpoints_are_not_written_by_two_at_once(tmp_path, clock):
    """A stop comes while a thread writes an older state of the same file."""
    at_work, writes = threading.Lock(), []

    def slow(path: str) -> None:
        if PARTITION_OFFSETS in path:
            is_alone = at_work.acquire(blocking=False)
            writes.append(is_alone)
            time.sleep(0.05)
            if is_alone:
                at_work.release()

    disk = StoryDisk()
    disk.on_write = slow
    async with keeping(tmp_path, clock, disk=disk, checkpoint_seconds=0.01) as node:
        await node.topic()
        await until(lambda: writes)
        await Kept(node, clock).write(b"v")
    assert len(writes) >= 2
    assert all(writes), "two at once"


async def test_a_duty_that_fails_is_done_again_and_the_others_go_on(tmp_path, clock, caplog):
    async with keeping(tmp_path, clock, retention_check_seconds=0.01, checkpoint_seconds=0.01) as node:
        await node.topic()
        tries = 0

        def fail():
            nonlocal tries
            tries += 1
            raise ZeroDivisionError

        take, node.broker.checkpoints.take = node.broker.checkpoints.take, fail
        await until(lambda: tries >= 3)
        assert "duty_failed" in caplog.text
        node.broker.checkpoints.take = take
        kept = Kept(node, clock)
        await kept.write(b"v")
        assert await kept.read() == [b"v"]
