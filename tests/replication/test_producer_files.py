"""What is known of producers outlives a restart of any kind, and the end of the messages it came from."""

import errno
import os
from pathlib import Path

import pytest

from clarion.log.producer_snapshot import save_snapshot, snapshot_offsets
from clarion.model.errors import ErrorCode, KafkaError
from clarion.replication import Partition, Term
from clarion.replication.producer_files import producer_entries
from clarion.world import DiskFile, RealDisk
from clarion.world.disk import RealFile
from tests.replication.bench import NOW_MS, Bench, append, turns
from tests.sim.disk import SimDisk

DAY_MS = 86_400_000


async def close(bench: Bench, partition: Partition) -> None:
    await flush_all(bench)
    ticket = partition.begin_close()
    if ticket is not None:
        ticket.run()
    partition.finish_close(ticket)


def save_snapshot_now(bench: Bench, partition: Partition) -> None:
    save_snapshot(bench.disk, partition.log.folder, partition.next_offset, producer_entries(partition.producers))


async def flush_all(bench: Bench) -> None:
    await turns()
    while bench.executor.held:
        await bench.executor.run()


def after_a_kill(bench: Bench, partition: Partition) -> Partition:
    """Opened again with what a checkpoint at this moment says."""
    return Bench(bench.folder, disk=bench.disk).partition(
        clean=False, recovery_point=partition.recovery_point, segment_bytes="1024"
    )


def refused(partition: Partition, sequence: int, count: int = 1) -> bool:
    with pytest.raises(KafkaError) as refusal:
        append(partition, count, producer=7, sequence=sequence)
    return refusal.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("count", [1, 3000])
async def test_each_of_the_last_five_batches_is_recognised_after_a_restart(
    tmp_path: Path, clean: bool, count: int
) -> None:
    bench = Bench(tmp_path)
    partition = bench.partition()
    offsets = [append(partition, count, producer=7, sequence=count * n).base_offset for n in range(8)]
    if clean:
        await close(bench, partition)
    again = Bench(tmp_path).partition(clean=clean)
    assert [append(again, count, producer=7, sequence=count * n).base_offset for n in range(3, 8)] == offsets[3:]
    assert refused(again, count * 2, count)
    assert again.next_offset == 8 * count
    assert append(again, count, producer=7, sequence=count * 8).base_offset == 8 * count


async def test_a_producer_is_told_from_others_who_wrote_in_between(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    partition = bench.partition()
    mine = []
    for n in range(6):
        mine.append(append(partition, producer=7, sequence=n).base_offset)
        append(partition, producer=8, sequence=n)
        append(partition)
    await close(bench, partition)
    again = Bench(tmp_path).partition()
    assert append(again, producer=7, sequence=2).base_offset == mine[2]
    assert append(again, producer=8, sequence=2).base_offset == mine[2] + 1


@pytest.mark.parametrize("is_dropped", [False, True], ids=["in the file", "with its segment"])
async def test_a_producer_goes_on_after_its_records_were_deleted_behind_a_snapshot(
    tmp_path: Path, is_dropped: bool
) -> None:
    """The snapshot knows the sequence 0; what came later was deleted before another snapshot was written."""
    partition = Bench(tmp_path).partition()
    append(partition, producer=7, sequence=0)
    again = Bench(tmp_path).partition(clean=False)  # writes the snapshot
    for number in range(1, 4):
        append(again, producer=7, sequence=number)
    if is_dropped:
        again.log.roll(NOW_MS)
    again.log.advance_start(again.next_offset, NOW_MS)
    last = Bench(tmp_path).partition(clean=False, start=again.next_offset)
    assert append(last, producer=7, sequence=4).base_offset == 4


class CountingDisk(RealDisk):
    """Knows how much was read from logs."""

    def __init__(self) -> None:
        self.read_bytes = 0

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        file = super().open(path, create=create)
        if not path.endswith(".log"):
            return file
        counting = CountingFile(path, os.dup(file.fileno() or 0))
        counting.disk = self
        return counting


class CountingFile(RealFile):
    disk: CountingDisk

    def read(self, length: int, position: int) -> bytes:
        data = super().read(length, position)
        self.disk.read_bytes += len(data)
        return data


async def test_a_clean_start_reads_none_of_the_batches(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    partition = bench.partition()
    for n in range(200):
        append(partition, producer=7, sequence=n, size=10_000)
    await close(bench, partition)
    disk = CountingDisk()
    again = Bench(tmp_path, disk=disk).partition()
    assert 7 in again.producers
    assert disk.read_bytes < 20_000


async def test_a_cut_of_a_log_without_producers_reads_only_its_end(tmp_path: Path) -> None:
    """It is done in the loop."""
    disk = CountingDisk()
    bench = Bench(tmp_path, disk=disk)
    partition = bench.partition(segment_bytes="100000")
    for _ in range(100):
        append(partition, size=10_000)
        await flush_all(bench)
    partition.follow(Term(2, 9, (1, 2), (2,), 9))
    before = disk.read_bytes
    partition.cut_where_logs_part(3, 99, NOW_MS)
    assert disk.read_bytes - before < 200_000


async def test_producers_outlive_their_messages(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    partition = bench.partition()
    for n in range(3):
        append(partition, producer=7, sequence=n)
    partition.roll(NOW_MS)
    partition.log.advance_start(3)
    await close(bench, partition)
    again = Bench(tmp_path).partition(start=3)
    assert again.start_offset == again.next_offset == 3
    assert append(again, producer=7, sequence=2).base_offset == 2
    assert refused(again, 5)


async def test_after_a_crash_without_any_snapshot_the_open_segment_is_read(tmp_path: Path) -> None:
    """The recovery point lies behind the batches, since they were flushed; no roll has saved a snapshot yet."""
    bench = Bench(tmp_path)
    partition = bench.partition()
    append(partition, producer=7, sequence=0)
    append(partition)
    await turns()
    await bench.executor.run()
    again = Bench(tmp_path).partition(clean=False, recovery_point=2)
    assert append(again, producer=7, sequence=0).base_offset == 0


async def test_after_a_roll_by_retention_and_a_crash_nobody_is_forgotten(tmp_path: Path) -> None:
    """Nothing is appended after the roll: the segment that a start would read is empty."""
    bench = Bench(tmp_path)
    partition = bench.partition(segment_bytes="1024")
    append(partition, producer=7, sequence=0)
    await flush_all(bench)
    partition.roll(NOW_MS)
    assert append(after_a_kill(bench, partition), producer=7, sequence=0).base_offset == 0
    await flush_all(bench)
    assert partition.recovery_point == 1
    assert append(after_a_kill(bench, partition), producer=7, sequence=0).base_offset == 0


async def test_a_roll_during_a_flush_and_a_crash_forget_nobody(tmp_path: Path) -> None:
    """The flush reaches up to where the new segment begins, and knows nothing of its roll."""
    bench = Bench(tmp_path)
    partition = bench.partition(segment_bytes="1024")
    append(partition, producer=7, sequence=0, size=1000)
    await turns()
    append(partition, producer=8, sequence=0, size=1000)
    assert partition.log.segment_count == 2
    await bench.executor.run()
    assert partition.log.flushed.offset == 1
    assert append(after_a_kill(bench, partition), producer=7, sequence=0, size=1000).base_offset == 0


async def test_a_snapshot_that_found_no_room_is_made_up_for_and_nobody_is_forgotten_meanwhile() -> None:
    disk = SimDisk()
    bench = Bench(Path("/data"), disk=disk)
    partition = bench.partition(segment_bytes="1024")
    append(partition, producer=7, sequence=0, size=1000)
    append(partition, producer=8, sequence=0, size=1000)
    await turns()
    disk.fail_when(lambda what: ".snapshot" in what.path, errno.ENOSPC)
    await flush_all(bench)
    assert partition.log.flushed.offset == 2
    assert {7, 8} <= {one.id for one in after_a_kill(bench, partition).producers}
    append(partition, producer=8, sequence=1, size=10)
    await flush_all(bench)
    assert partition.recovery_point == 3
    assert snapshot_offsets(disk, partition.log.folder)[-1] == 3


async def test_a_snapshot_of_a_lost_tail_is_never_believed() -> None:
    """Other batches come to lie where its batches were; the next crash must not find those in it."""
    disk = SimDisk()
    disk.make_folder("/data")
    disk.sync_folder("/")
    bench = Bench(Path("/data"), disk=disk)
    partition = bench.partition()
    append(partition, producer=7, sequence=0)
    await flush_all(bench)
    append(partition, producer=7, sequence=1)
    save_snapshot_now(bench, partition)  # and here the power goes, before the log is flushed
    bench = Bench(Path("/data"), disk=disk.power_loss())
    partition = bench.partition(clean=False, recovery_point=1)
    assert partition.next_offset == 1
    for number in range(3):
        append(partition, producer=8, sequence=number)
    bench = Bench(Path("/data"), disk=bench.disk)
    again = bench.partition(clean=False, recovery_point=4)
    assert append(again, producer=7, sequence=1).base_offset == 4, "taken for a duplicate of a batch that is lost"


async def test_a_cut_takes_the_snapshots_behind_it_along(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    partition = bench.partition()
    for number in range(4):
        append(partition, producer=7, sequence=number)
        save_snapshot_now(bench, partition)
    await flush_all(bench)
    partition.log.truncate_to(3)
    assert snapshot_offsets(bench.disk, partition.log.folder) == [3]
    partition.log.restart_at(0)
    assert snapshot_offsets(bench.disk, partition.log.folder) == []


async def test_a_cut_behind_which_all_snapshots_lie_makes_nobody_forgotten(tmp_path: Path) -> None:
    """Two are kept, and what is cut may have been rolled twice: who wrote before is in the log alone then."""
    bench = Bench(tmp_path)
    partition = bench.partition(segment_bytes="1024")
    for producer in (7, 8):
        append(partition, producer=producer, sequence=0, size=900)
    await flush_all(bench)
    for sequence in range(1, 5):  # with these it is alone
        append(partition, producer=8, sequence=sequence, size=900)
        await flush_all(bench)
    for offset in snapshot_offsets(bench.disk, partition.log.folder)[:-2]:
        bench.disk.remove(f"{partition.log.folder}/{offset:020d}.snapshot")
    follows = Term(2, 9, (1, 2), (2,), 9)
    partition.follow(follows)
    partition.cut_where_logs_part(partition.log.epochs.latest, 2, NOW_MS)
    assert partition.next_offset == 2
    partition.lead(follows._replace(leader=1, leader_epoch=10, in_sync=(1,), partition_epoch=10))
    assert after_a_kill(bench, partition).producers.find(7) is not None
    assert append(partition, producer=7, sequence=0, size=900).base_offset == 0, "a client repeats it"


async def test_the_newest_snapshot_of_what_is_committed_is_kept(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    partition = bench.partition(segment_bytes="1024")
    for sequence in range(3):
        append(partition, producer=7, sequence=sequence, size=900)
        await flush_all(bench)
    committed, *_ = snapshot_offsets(bench.disk, partition.log.folder)
    partition.high_watermark = partition.log.position_of(committed)
    partition.lead(Term(1, 4, (1, 2), (1, 2), 4))  # of the other nothing is heard
    for sequence in range(3, 8):
        append(partition, producer=7, sequence=sequence, size=900)
        await flush_all(bench)
    assert partition.high_watermark.offset == committed
    found = snapshot_offsets(bench.disk, partition.log.folder)
    assert (len(found), found[0]) == (3, committed)


async def test_after_a_crash_during_quick_rolls_nothing_is_forgotten(tmp_path: Path) -> None:
    """Several segments were begun while one flush hung: none of them has a snapshot."""
    bench = Bench(tmp_path)
    partition = bench.partition(segment_bytes="1024")
    for n in range(6):
        append(partition, producer=n, size=1000)
    again = Bench(tmp_path).partition(clean=False, recovery_point=0, segment_bytes="1024")
    assert {n for n in range(6) if n in again.producers} == set(range(6))


async def test_a_second_crash_before_any_snapshot_forgets_nobody(tmp_path: Path) -> None:
    """Recovery has synced every segment and counts it as flushed; that nobody wrote a snapshot does not change."""
    partition = Bench(tmp_path).partition(segment_bytes="1024")
    offsets = [append(partition, producer=7, sequence=n, size=300).base_offset for n in range(6)]
    assert partition.log.segment_count > 1
    recovered = Bench(tmp_path).partition(clean=False, segment_bytes="1024")
    point = recovered.log.flushed.offset
    again = Bench(tmp_path).partition(clean=False, recovery_point=point, segment_bytes="1024")
    assert [append(again, producer=7, sequence=n, size=300).base_offset for n in range(1, 6)] == offsets[1:]


async def test_what_came_after_the_snapshot_is_read_from_the_log(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    partition = bench.partition(segment_bytes="1024")
    append(partition, producer=7, sequence=0, size=1000)
    append(partition, producer=7, sequence=1, size=1000)
    await turns()
    await bench.executor.run()
    append(partition, producer=7, sequence=2)
    again = Bench(tmp_path).partition(clean=False, recovery_point=2, segment_bytes="1024")
    assert refused(again, 4)
    assert append(again, producer=7, sequence=2).base_offset == 2
    assert append(again, producer=7, sequence=0, size=1000).base_offset == 0


async def test_a_producers_time_runs_on_over_a_restart_whatever_its_messages_say(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    partition = bench.partition()
    append(partition, producer=7)
    await close(bench, partition)
    again = Bench(tmp_path).partition(now_ms=NOW_MS + DAY_MS)
    assert again.producers.expire(before_ms=NOW_MS + 1) == 1


async def test_that_nobody_is_left_is_written_down_too(tmp_path: Path) -> None:
    """Else an old snapshot would make every start read all that was written since."""
    bench = Bench(tmp_path)
    partition = bench.partition()
    append(partition, producer=7)
    await close(bench, partition)
    bench = Bench(tmp_path)
    partition = bench.partition()
    partition.producers.expire(before_ms=NOW_MS + DAY_MS)
    append(partition)
    await close(bench, partition)
    again = Bench(tmp_path).partition()
    assert len(again.producers) == 0
    assert snapshot_offsets(bench.disk, again.log.folder)[-1] == 2


async def test_a_new_epoch_after_a_restart_ends_the_old_one(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    partition = bench.partition()
    append(partition, producer=7, epoch=1, sequence=0)
    await close(bench, partition)
    again = Bench(tmp_path).partition()
    append(again, producer=7, epoch=2, sequence=0)
    with pytest.raises(KafkaError, match="epoch 1 is over"):
        append(again, producer=7, epoch=1, sequence=1)


async def test_a_repeated_batch_is_told_its_append_time(tmp_path: Path) -> None:
    partition = Bench(tmp_path).partition(message_timestamp_type="LogAppendTime")
    first = append(partition, producer=7)
    assert (first.log_append_time_ms, append(partition, producer=7).log_append_time_ms) == (NOW_MS, NOW_MS)
