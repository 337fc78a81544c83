"""Checkpoint files, the clean-shutdown mark and producer snapshots: Kafka's formats, and nonsense in them."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from clarion.log.checkpoints import (
    PARTITION_OFFSETS,
    CleanShutdown,
    SavedOffsets,
    format_epochs,
    load_epochs,
    load_offsets,
    load_partitions,
    save_partitions,
)
from clarion.log.folder import format_metadata, parse_metadata
from clarion.log.producer_snapshot import (
    ProducerEntry,
    decode_snapshot,
    drop_snapshots,
    encode_snapshot,
    load_latest_snapshot,
    save_snapshot,
    snapshot_offsets,
)
from clarion.model.ids import TopicPartition
from clarion.world import read_file, replace_file
from tests.log.batches import TOPIC_ID
from tests.sim.disk import SimDisk


@pytest.fixture
def disk() -> SimDisk:
    one = SimDisk()
    one.make_folder("/data")
    one.sync_folder("/")
    return one


OFFSETS = {(TOPIC_ID, 12): SavedOffsets(0, 7, 5), (TOPIC_ID, 0): SavedOffsets(3, 4711, 4711)}
PATH = f"/data/{PARTITION_OFFSETS}"


def test_offsets_are_written_in_kafkas_form_by_topic_id(disk: SimDisk) -> None:
    save_partitions(disk, PATH, OFFSETS)
    lines = [f"{TOPIC_ID.hex} 0 3 4711 4711", f"{TOPIC_ID.hex} 12 0 7 5"]
    summed = [f"{line} {crc32c(line.encode()):08x}" for line in lines]
    assert read_file(disk, PATH).decode() == "\n".join(["1", "2", *summed, ""])
    assert load_partitions(disk, PATH) == OFFSETS


def test_offsets_by_name_are_read_as_kafka_writes_them(disk: SimDisk) -> None:
    replace_file(disk, "/data/by-name", b"0\n2\na-b.c 12 0\norders 0 4711\n")
    assert load_offsets(disk, "/data/by-name") == {TopicPartition("orders", 0): 4711, TopicPartition("a-b.c", 12): 0}
    assert load_offsets(disk, "/data/nowhere") == {}


def test_a_torn_checkpoint_counts_as_absent_at_every_length(disk: SimDisk) -> None:
    save_partitions(disk, PATH, OFFSETS)
    whole = read_file(disk, PATH)
    for length in range(len(whole)):
        replace_file(disk, PATH, whole[:length])
        assert load_partitions(disk, PATH) == {}


@pytest.mark.parametrize(
    "garbage", [b"1\n0\n", b"0\n1\nt 0\n", b"0\n1\nt 0 -5\n", b"0\n1\nt x 5\n", b"\xff\xfe", b"0\n2\nt 0 5\n"]
)
def test_garbage_counts_as_absent(disk: SimDisk, garbage: bytes) -> None:
    replace_file(disk, PATH, garbage)
    assert load_offsets(disk, PATH) == {}
    assert load_partitions(disk, PATH) == {}


def test_no_bit_that_flips_changes_an_offset(disk: SimDisk) -> None:
    """A start offset that grew by itself would hide messages, a recovery point vouch for what was never synced."""
    save_partitions(disk, PATH, OFFSETS)
    for bit in range(8 * disk.size(PATH)):
        disk.flip_bit(PATH, bit)
        assert load_partitions(disk, PATH).items() <= OFFSETS.items()
        disk.flip_bit(PATH, bit)
    assert load_partitions(disk, PATH) == OFFSETS


@pytest.mark.parametrize("fields", ["no-id 0 1 2 3", f"{TOPIC_ID.hex} 0 1 2", f"{TOPIC_ID.hex} 0 -1 2 3"])
def test_a_line_that_is_not_one_spoils_the_file(disk: SimDisk, fields: str) -> None:
    lines = [f"{line} {crc32c(line.encode()):08x}" for line in (f"{TOPIC_ID.hex} 1 1 2 3", fields)]
    replace_file(disk, PATH, "\n".join(["1", "2", *lines, ""]).encode())
    assert load_partitions(disk, PATH) == {}


def test_epochs_come_back_and_must_grow(disk: SimDisk) -> None:
    replace_file(disk, "/data/e", format_epochs([(0, 0), (4, 12)]))
    assert read_file(disk, "/data/e") == b"0\n2\n0 0\n4 12\n"
    assert load_epochs(disk, "/data/e") == [(0, 0), (4, 12)]
    replace_file(disk, "/data/e", format_epochs([(4, 12), (0, 20)]))
    assert load_epochs(disk, "/data/e") is None


def test_the_mark_of_a_clean_shutdown_vouches_for_one_start(disk: SimDisk) -> None:
    mark = CleanShutdown(disk, "/data")
    assert not mark.take()
    mark.leave(17)
    assert read_file(disk, "/data/.kafka_cleanshutdown") == b'{"version":0,"brokerEpoch":17}'
    after = disk.power_loss()
    taken = CleanShutdown(after, "/data")
    assert taken.take()
    assert taken.broker_epoch == 17
    assert not CleanShutdown(after.power_loss(), "/data").take()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"brokerEpoch":-1}', b'{"brokerEpoch":"x"}', b"\xff"])
def test_a_mark_that_does_not_say_its_epoch_is_a_mark(disk: SimDisk, content: bytes) -> None:
    replace_file(disk, "/data/.kafka_cleanshutdown", content)
    mark = CleanShutdown(disk, "/data")
    assert mark.take()
    assert mark.broker_epoch is None


def test_the_topic_id_is_written_as_kafka_writes_it() -> None:
    assert format_metadata(TOPIC_ID) == b"version: 0\ntopic_id: bxyKLjt9T1edCgEjRWeJqw\n"
    assert parse_metadata(format_metadata(TOPIC_ID)) == TOPIC_ID


int64 = st.integers(-(1 << 63), (1 << 63) - 1)
int32 = st.integers(-(1 << 31), (1 << 31) - 1)
entries = st.lists(
    st.builds(ProducerEntry, int64, st.integers(-(1 << 15), (1 << 15) - 1), int32, int64, int32, int64, int32, int64)
)


@given(entries)
def test_a_snapshot_comes_back(producers: list[ProducerEntry]) -> None:
    assert decode_snapshot(encode_snapshot(producers)) == producers


def test_a_snapshot_with_a_flipped_bit_is_refused() -> None:
    data = encode_snapshot([ProducerEntry(1, 0, 5, 100, 2, 1000), ProducerEntry(2, 1, 7, 101, 0, 1001)])
    for position in range(len(data)):
        with pytest.raises(ValueError):
            decode_snapshot(data[:position])
        flipped = bytearray(data)
        flipped[position] ^= 1
        with pytest.raises(ValueError):
            decode_snapshot(bytes(flipped))


def test_the_newest_readable_snapshot_before_the_end_is_taken(disk: SimDisk) -> None:
    one, two = [ProducerEntry(1, 0, 5, 9, 2, 1000)], [ProducerEntry(1, 0, 8, 19, 2, 1000)]
    save_snapshot(disk, "/data", 10, one)
    save_snapshot(disk, "/data", 20, two)
    assert load_latest_snapshot(disk, "/data", 25) == (20, two)
    assert load_latest_snapshot(disk, "/data", 15) == (10, one)
    assert load_latest_snapshot(disk, "/data", 5) is None
    disk.open("/data/00000000000000000020.snapshot").write([b"x"], 8)
    assert load_latest_snapshot(disk, "/data", 25) == (10, one)
    save_snapshot(disk, "/data", 30, two)
    assert snapshot_offsets(disk, "/data") == [20, 30]
    drop_snapshots(disk, "/data", above=20)
    assert snapshot_offsets(disk, "/data") == [20]
