"""What a broker knows of a partition when it starts, whatever has become of its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from clarion.log.batch_headers import DamagedSegment
from clarion.model.errors import KafkaError
from clarion.replication import Membership, Partition, Term
from clarion.wire.records import encode_batch
from tests.replication.bench import NOW_MS, QUICK, Bench, append
from tests.replication.test_producer_files import close, flush_all


async def test_a_watermark_that_stands_behind_damage_keeps_no_broker_from_starting(tmp_path: Path) -> None:
    """Found by the simulation of clusters: where it stood cannot be looked up. The leader says it anew."""
    bench = Bench(tmp_path)
    partition = bench.partition(**QUICK)
    for _ in range(3):
        append(partition)
    partition.log.close()
    (file,) = (tmp_path / "t-0").glob("*.log")
    content = bytearray(file.read_bytes())
    last = 2 * len(content) // 3
    content[last + 8 : last + 12] = bytes(4)  # its length
    file.write_bytes(content)

    again = bench.partition(clean=False, recovery_point=3, **QUICK)
    again.restore_watermark(2)
    assert again.high_watermark.offset == 0
    assert again.log.next_offset == 3


class Nobody:
    def ask(self, *_: object) -> None: ...


async def with_damage_inside(folder: Path) -> Partition:
    """In the header of the batch at 2, which nobody has read since. All is flushed, and was closed cleanly."""
    bench = Bench(folder)
    partition = bench.partition(segment_bytes="1024")
    for _ in range(10):
        append(partition, size=300)
    await close(bench, partition)
    second = partition.log.segments[1]
    assert second.base_offset == 2
    file = bench.disk.open(second.path)
    file.write([b"\x00"], 16)
    file.close()
    again = Bench(folder).partition(segment_bytes="1024")
    assert not again.unsound
    return again


async def test_damage_at_the_watermarks_place_is_told(tmp_path: Path) -> None:
    """A follower that only tries again, every five seconds, would never be filled anew."""
    partition = await with_damage_inside(tmp_path)
    partition.high_watermark = partition.log.start
    partition.membership = Membership(lambda: True, Nobody(), lambda: None)
    partition.follow(Term(2, 9, (1, 2), (2,), 9))
    with pytest.raises(DamagedSegment):
        partition.note_leader(2, 2)
    assert partition.is_damaged
    assert Bench(tmp_path).partition(segment_bytes="1024").is_damaged, "after a restart as well"


async def test_a_cut_that_meets_damage_leaves_a_log_that_is_read_alone(tmp_path: Path) -> None:
    """Half of it is gone: what is written behind that would come to lie anywhere."""
    partition = await with_damage_inside(tmp_path)
    partition.follow(Term(2, 9, (1, 2), (2,), 9))
    with pytest.raises(KafkaError):
        partition.cut_where_logs_part(3, 3, NOW_MS)
    assert partition.is_damaged
    assert partition.failure is not None
    again = Bench(tmp_path).partition(clean=False, recovery_point=10, segment_bytes="1024")
    assert again.is_damaged
    assert again.failure is not None


async def test_a_replica_in_sync_keeps_what_is_committed_also_where_what_is_cut_was_sealed_before_a_restart(
    tmp_path: Path,
) -> None:
    """It is cut by a clean election to what the next leader has, and may be the one after that."""
    bench = Bench(tmp_path)
    partition = bench.partition(cleanup_policy="compact", segment_bytes="1024")
    for n in range(100):
        partition.append_own(encode_batch([(b"k%d" % n, b"%d" % n * 50, (), NOW_MS)]), NOW_MS)
    await flush_all(bench)
    again = Bench(tmp_path).partition(clean=False, cleanup_policy="compact", segment_bytes="1024")
    again.restore_watermark(60)
    again.follow(Term(2, 8, (1, 2, 3), (1, 2, 3), 8))
    assert again.high_watermark.offset == 60
    again.follow(Term(3, 9, (1, 2, 3), (1, 3), 9))
    again.cut_where_logs_part(3, 80, NOW_MS)
    assert (again.start_offset, again.next_offset) == (0, 80)
