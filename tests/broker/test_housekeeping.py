"""What a broker does when nobody asks: old messages go, keys are compacted, and trouble in one place stays there."""

import shutil
import threading
import time

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


async def test_checkpoints_are_not_written_by_two_at_once(tmp_path, clock, monkeypatch):
    """A stop comes while a thread writes an older state of the same files."""
    from clarion.broker.offset_files import OffsetFiles

    at_work, calls = threading.Lock(), []
    save = OffsetFiles.save

    def slow(self, snapshot):
        assert at_work.acquire(blocking=False), "two at once"
        calls.append(snapshot)
        time.sleep(0.05)
        save(self, snapshot)
        at_work.release()

    monkeypatch.setattr(OffsetFiles, "save", slow)
    async with keeping(tmp_path, clock, checkpoint_seconds=0.01) as node:
        await node.topic()
        await until(lambda: calls)
    assert len(calls) >= 2


async def test_a_duty_that_fails_is_done_again_and_the_others_go_on(tmp_path, clock, caplog):
    async with keeping(tmp_path, clock, retention_check_seconds=0.01, checkpoint_seconds=0.01) as node:
        await node.topic()
        tries = 0

        def fail(partitions):
            nonlocal tries
            tries += 1
            raise ZeroDivisionError

        take, node.server._offset_files.take = node.server._offset_files.take, fail
        await until(lambda: tries >= 3)
        assert "duty_failed" in caplog.text
        node.server._offset_files.take = take
        kept = Kept(node, clock)
        await kept.write(b"v")
        assert await kept.read() == [b"v"]
