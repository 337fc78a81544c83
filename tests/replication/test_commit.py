"""One flush serves many, nothing counts before its flush, and trouble in one place stays there."""

import asyncio
import errno
from pathlib import Path

import pytest

from clarion.log.producer_snapshot import snapshot_offsets
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.topic_settings import TopicSettings, parse
from clarion.replication import Partition
from clarion.world import RealDisk
from tests.replication.bench import DURABLE, NOW_MS, QUICK, Bench, append, heard, turns


async def test_one_flush_serves_everybody_who_appended_before_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    partition = bench.partition()
    told = [heard(partition, append(partition)) for _ in range(10)]
    await turns()
    assert len(bench.executor.held) == 1
    assert told == [[]] * 10
    await bench.executor.run()
    assert told == [[ErrorCode.NONE]] * 10
    assert bench.commits.flushes_total == 1


async def test_what_comes_during_a_flush_waits_for_the_next_one(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    partition = bench.partition()
    first = heard(partition, append(partition))
    await turns()
    second = heard(partition, append(partition))
    await bench.executor.run()
    assert (first, second, partition.high_watermark.offset) == ([ErrorCode.NONE], [], 1)
    await bench.executor.run()
    assert (second, partition.high_watermark.offset) == ([ErrorCode.NONE], 2)
    assert not bench.executor.held
    assert not partition.is_flushing


async def test_partitions_flush_side_by_side(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    one, two = bench.partition(0), bench.partition(1)
    told_one, told_two = heard(one, append(one)), heard(two, append(two))
    await turns()
    assert len(bench.executor.held) == 2
    bench.executor.held.reverse()
    await bench.executor.run()
    assert (told_one, told_two) == ([], [ErrorCode.NONE])


async def test_without_durability_the_watermark_follows_the_end(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    partition = bench.partition(clarion_durability="page-cache")
    assert heard(partition, append(partition)) == [ErrorCode.NONE]
    await turns()
    assert not bench.executor.held


@pytest.mark.parametrize("error", [OSError(errno.EIO, "bad sector"), ZeroDivisionError("our own mistake")])
async def test_a_failed_flush_takes_the_partition_offline_and_answers_everybody(
    tmp_path: Path, error: Exception
) -> None:
    bench = Bench(tmp_path)
    partition, other = bench.partition(0), bench.partition(1)
    append(partition, producer=7)
    told, told_other = heard(partition, append(partition)), heard(other, append(other))
    await turns()
    await bench.executor.run(error)
    await bench.executor.run()
    assert (told, told_other) == ([ErrorCode.KAFKA_STORAGE_ERROR], [ErrorCode.NONE])
    assert partition.log.failed is not None
    assert partition.high_watermark.offset == 0
    with pytest.raises(KafkaError, match="offline"):
        append(partition)
    with pytest.raises(KafkaError, match="offline"):
        append(partition, producer=7)  # repeated, and still not committed


async def test_who_asks_after_the_failure_is_told_at_once(tmp_path: Path) -> None:
    """A coordinator's reply without records rests on what it wrote before."""
    bench = Bench(tmp_path)
    partition = bench.partition()
    appended = append(partition)
    await turns()
    await bench.executor.run(OSError(errno.EIO, "bad sector"))
    assert heard(partition, appended) == [ErrorCode.KAFKA_STORAGE_ERROR]


async def test_a_write_that_fails_while_a_flush_is_due_leaves_nobody_waiting(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    partition, other = bench.partition(0), bench.partition(1)
    told, told_other = heard(partition, append(partition)), heard(other, append(other))
    partition.log.failed = OSError(errno.EIO, "the next write failed")
    await turns()
    await bench.executor.run()
    assert (told, told_other) == ([ErrorCode.KAFKA_STORAGE_ERROR], [ErrorCode.NONE])


async def test_a_deleted_partition_lets_its_flush_end_in_any_way(tmp_path: Path) -> None:
    for number, error in enumerate((None, FileNotFoundError(errno.ENOENT, "the folder has gone"))):
        bench = Bench(tmp_path / str(number))
        partition = bench.partition()
        told = heard(partition, append(partition))
        await turns()
        partition.retire(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        assert told == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        await bench.executor.run(error)
        assert partition.log.failed is None
        assert not partition.is_flushing
        assert not bench.executor.held


async def test_a_partition_that_is_deleted_before_its_flush_begins_is_not_flushed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    partition = bench.partition()
    append(partition)
    partition.retire(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    await turns()
    assert not bench.executor.held
    assert not partition.is_flushing


async def test_whoever_needs_the_files_waits_for_every_flush_of_them(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    partition = bench.partition()
    append(partition)
    settled = asyncio.ensure_future(bench.commits.settle([partition, bench.partition(1)]))
    await turns()
    append(partition)  # the flush that is under way does not cover it, so another follows
    await bench.executor.run()
    assert not settled.done()
    await bench.executor.run()
    await asyncio.wait_for(settled, 60)


async def test_after_the_end_nothing_is_flushed_any_more(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    partition = bench.partition()
    append(partition)
    bench.commits.stop()
    await turns()
    assert not bench.executor.held


class Bad:
    def on_progress(self, partition: Partition) -> None:
        raise ZeroDivisionError


async def test_a_reader_that_fails_to_hear_the_news_stops_no_flush(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    partition = bench.partition()
    trouble: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: trouble.append(context))
    partition.watchers[Bad()] = None
    append(partition)
    await turns()
    append(partition)
    await bench.executor.run()
    await bench.executor.run()
    assert partition.high_watermark.offset == 2
    assert len(trouble) == 2


# Rolls


async def test_a_roll_is_flushed_whatever_the_durability_and_so_is_the_next_one(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    partition = bench.partition(clarion_durability="page-cache", segment_bytes="1024")
    append(partition, size=1000)
    append(partition, size=1000)
    await turns()
    append(partition, size=1000)  # rolls again while the first roll's flush is under way
    await bench.executor.run()
    await bench.executor.run()
    assert partition.log.flushed.offset == 3
    assert not bench.executor.held


async def test_producers_are_written_down_after_a_roll_in_the_thread_of_its_flush(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    partition = bench.partition(segment_bytes="1024")
    append(partition, producer=7, sequence=0, size=1000)
    append(partition, producer=7, sequence=1, size=1000)
    await turns()
    assert not snapshot_offsets(bench.disk, partition.log.folder), "the loop waits for no device"
    await bench.executor.run()
    assert snapshot_offsets(bench.disk, partition.log.folder) == [2]


class NoSnapshots(RealDisk):
    def open(self, path, *, create=False):
        if ".snapshot" in path:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().open(path, create=create)


async def test_a_snapshot_without_room_does_not_harm_the_messages(tmp_path: Path) -> None:
    bench = Bench(tmp_path, disk=NoSnapshots())
    partition = bench.partition(segment_bytes="1024")
    append(partition, producer=7, sequence=0, size=1000)
    told = heard(partition, append(partition, producer=7, sequence=1, size=1000))
    await turns()
    await bench.executor.run()
    assert told == [ErrorCode.NONE]
    assert partition.log.failed is None


async def test_rolling_by_hand_keeps_watermark_and_end_together(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    partition = bench.partition(clarion_durability="page-cache")
    append(partition)
    partition.roll(NOW_MS)
    assert partition.high_watermark == partition.log.end
    partition.roll(NOW_MS)
    append(partition)
    assert partition.high_watermark == partition.log.end


async def test_rolling_by_hand_commits_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    partition = bench.partition()
    append(partition)
    partition.roll(NOW_MS)
    assert partition.high_watermark.offset == 0
    await turns()
    await bench.executor.run()
    assert partition.high_watermark == partition.log.end


# Changes of durability


def settings(**overrides: str) -> TopicSettings:
    return parse(overrides, TopicSettings())


async def test_giving_durability_up_commits_what_is_there(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    partition = bench.partition()
    told = heard(partition, append(partition))
    await turns()
    partition.configure(settings(**QUICK))
    assert (told, partition.high_watermark.offset) == ([ErrorCode.NONE], 1)
    await bench.executor.run()
    assert not partition.is_flushing


async def test_asking_for_durability_flushes_what_is_there_and_keeps_it_readable(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    partition = bench.partition(clarion_durability="page-cache")
    append(partition)
    partition.configure(settings(**DURABLE))
    assert partition.high_watermark.offset == 1
    told = heard(partition, append(partition))
    await turns()
    assert told == []
    await bench.executor.run()
    assert told == [ErrorCode.NONE]
    assert partition.log.flushed == partition.log.end


async def test_nothing_makes_an_offline_log_commit_more(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    partition = bench.partition()
    append(partition)
    await turns()
    await bench.executor.run(OSError(errno.EIO, "bad sector"))
    partition.configure(settings(**QUICK))
    assert partition.high_watermark.offset == 0


async def test_a_batch_sent_again_to_an_offline_log_is_not_acknowledged_unless_it_was_committed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    partition = bench.partition()
    first = append(partition, producer=7, sequence=0)
    await turns()
    await bench.executor.run()
    append(partition, producer=7, sequence=1)
    await turns()
    await bench.executor.run(OSError(errno.EIO, "Input/output error"))
    assert append(partition, producer=7, sequence=0).base_offset == first.base_offset
    with pytest.raises(KafkaError) as refusal:
        append(partition, producer=7, sequence=1)
    assert refusal.value.code is ErrorCode.KAFKA_STORAGE_ERROR
