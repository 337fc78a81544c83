"""Sealed files are compared with their checksums, little by little; what does not match is damage."""

from __future__ import annotations

from pathlib import Path

from clarion.broker.scrubbing import Scrubber
from clarion.cli.doctor import _damage
from clarion.log.checkpoints import NOTHING_SAVED, PARTITION_OFFSETS, load_partitions
from clarion.world import RealDisk
from tests.broker.harness import Node, running, until
from tests.broker.talk import batch
from tests.broker.test_cluster import cluster_of
from tests.broker.test_cluster_replication import make_topic, produce, replica, state

FIRST = "00000000000000000000.log"


async def sealed(node: Node, *values: bytes) -> None:
    """Each in a file of its own; the last one is still being written."""
    for number, value in enumerate(values):
        if number:
            node.partition().roll(node.broker.clock.now_ms())
        assert (await node.client.produce({("t", 0): batch(value)}))["t", 0].error_code == 0
    await until(lambda: node.partition().is_flushed_to(node.partition().next_offset), 60)


def flip(path: Path, at: int = -3) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(content)


async def look_at_all(scrubber: Scrubber) -> None:
    """Until there is nothing left to look at, and once more for what has come since."""
    for _ in range(2):
        await scrubber.step()
        while scrubber._under_way or scrubber._waiting:
            await scrubber.step()


async def test_a_bit_that_a_disk_has_turned_is_found_in_a_sealed_file(tmp_path, caplog):
    async with running(tmp_path) as node:
        await node.topic()
        await sealed(node, b"first", b"second", b"third")
        scrubber = node.server.housekeeping.scrubber
        await look_at_all(scrubber)
        assert not node.partition().is_damaged
        assert scrubber.damaged_total == 0
    flip(tmp_path / "t-0" / FIRST)
    async with running(tmp_path) as node:
        assert not node.partition().is_damaged, "a start looks at the end"
        await look_at_all(node.server.housekeeping.scrubber)
        assert node.partition().is_damaged
        assert FIRST in node.partition().unsound
        assert "log_damaged" in caplog.text
        (check,) = _damage(str(tmp_path))
        assert (check.status, check.found) == ("warn", "damaged: t-0")
    assert list(_damage(str(tmp_path / "t-0"))) == []


async def test_the_file_that_is_being_written_is_left_alone(tmp_path):
    async with running(tmp_path) as node:
        await node.topic()
        await sealed(node, b"only")
        flip(tmp_path / "t-0" / FIRST)
        await look_at_all(node.server.housekeeping.scrubber)
        assert not node.partition().is_damaged


async def test_a_file_that_goes_while_it_is_looked_at_is_no_damage(tmp_path):
    async with running(tmp_path) as node:
        await node.topic(file_delete_delay_ms="0")
        await sealed(node, b"first", b"second")
        scrubber = Scrubber(node.broker)
        await scrubber.step()
        scrubber._under_way = scrubber._next()
        assert scrubber._under_way is not None
        (tmp_path / "t-0" / FIRST).unlink()
        await look_at_all(scrubber)
        assert not node.partition().is_damaged


async def test_what_does_not_match_is_read_again_before_it_counts(tmp_path):
    """As if the file had been cut or replaced while it was read."""
    async with running(tmp_path) as node:
        await node.topic()
        await sealed(node, b"first", b"second")
        scrubber, path = Scrubber(node.broker), tmp_path / "t-0" / FIRST
        await scrubber.step()
        partition, segment, _ = scrubber._next()
        good = path.read_bytes()
        flip(path)
        torn = scrubber._next()
        scrubber._under_way = torn
        judge = scrubber._judge

        async def mended_first(*found):
            path.write_bytes(good)
            await judge(*found)

        scrubber._judge = mended_first
        await scrubber.step()
        assert not partition.is_damaged
        assert segment.path == str(path)


async def test_it_rests_as_long_as_its_rate_asks_for(tmp_path):
    async with running(tmp_path, scrub_bytes_per_second=1000) as node:
        await node.topic()
        await sealed(node, b"x" * 5000, b"y")
        scrubber = Scrubber(node.broker)
        await scrubber.step()  # which sees that there is something
        assert await scrubber.step() >= 5
        assert 5000 < scrubber.bytes_total < 6000


async def test_a_rate_of_nothing_looks_at_nothing(tmp_path):
    async with running(tmp_path, scrub_bytes_per_second=0) as node:
        await node.topic()
        await sealed(node, b"x" * 5000, b"y")
        scrubber = Scrubber(node.broker)
        assert min([await scrubber.step() for _ in range(3)]) >= 1
        assert scrubber.bytes_total == 0


async def test_a_follower_whose_sealed_file_is_damaged_leaves_and_is_filled_anew(tmp_path):
    async with cluster_of(tmp_path, 3) as three:
        leader = await make_topic(three, segment_bytes="1024")
        for number in range(6):
            await produce(three, b"%d" % number * 600)
        follower = next(one for one in (1, 2, 3) if one != leader)
        before = replica(three, follower)
        await until(lambda: before.segment_count > 2 and before.is_flushed_to(before.end.segment), 60)
        good = (Path(before.log.folder) / FIRST).read_bytes()
        flip(Path(before.log.folder) / FIRST)
        await look_at_all(three[follower].server.housekeeping.scrubber)
        assert before.is_damaged
        await until(lambda: before.is_gone and follower in state(three, leader).in_sync, 60)
        after = replica(three, follower)
        assert after is not before
        assert (Path(after.log.folder) / FIRST).read_bytes() == good


def found(three, broker: int):
    one = three[broker].broker
    return one.partitions.find(one.image.topics["t"].id, 0)


class HeldFetchers:
    """Follows nobody until it is told to."""

    def __init__(self, fetchers) -> None:
        self._fetchers = fetchers
        self._asked: list[tuple] = []
        self._is_held = True

    def follow(self, *what) -> None:
        self._asked.append(what) if self._is_held else self._fetchers.follow(*what)

    def forget(self, partition) -> None:
        self._fetchers.forget(partition)

    def go_on(self) -> None:
        self._is_held = False
        for what in self._asked:
            self._fetchers.follow(*what)


async def test_a_damaged_replica_stays_on_the_disk_until_a_good_one_is_in_its_place(tmp_path):
    async with cluster_of(tmp_path, 3) as three:
        leader = await make_topic(three)
        await produce(three, b"first")
        follower = next(one for one in (1, 2, 3) if one != leader)
        replicas, before = three[follower].broker.node._replicas, replica(three, follower)
        folder = Path(before.log.folder).parent
        replicas._fetchers = held = HeldFetchers(replicas._fetchers)
        await until(lambda: before.high_watermark.offset == 1, 60)
        await three[follower].server.housekeeping.save_checkpoints()
        place = (before.topic_id, 0)
        assert load_partitions(RealDisk(), f"{folder}/{PARTITION_OFFSETS}")[place].high_watermark == 1
        before.note_damage("a story")
        await until(lambda: before.is_gone and found(three, follower) not in (None, before), 60)
        (kept,) = folder.glob("t-0.*-damaged")
        assert (kept / FIRST).stat().st_size > 0
        assert replica(three, follower).next_offset == 0
        of_before = load_partitions(RealDisk(), f"{folder}/{PARTITION_OFFSETS}").get(place, NOTHING_SAVED)
        assert of_before == NOTHING_SAVED, "after a crash it would be said of the new one"
        held.go_on()
        await until(lambda: follower in state(three, follower).in_sync, 60)
        await until(lambda: not list(folder.glob("*-damaged")), 60)
        assert replica(three, follower).next_offset == 1


async def test_a_damaged_replica_that_is_kept_is_found_after_a_restart(tmp_path):
    async with running(tmp_path) as node:
        await node.topic()
        partition = node.partition()
        await sealed(node, b"first", b"second")
        topic = node.broker.image.topics["t"]
        node.broker.partitions.give_up(topic, [0])
        name = node.broker.partitions.keep_damaged(partition)
        assert node.broker.partitions.damaged_kept() == {(topic.id, 0): name}
        node.broker.partitions.remove_kept(name)
        assert node.broker.partitions.damaged_kept() == {}
