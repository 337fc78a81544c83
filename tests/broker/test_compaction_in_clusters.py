"""Compaction and retention in a cluster, where replicas are away, are added, and logs are cut.

What is deleted by key stays deleted: no replica keeps an older value without ever hearing of that.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from clarion.broker.cleaner_state import CleanerState
from clarion.replication import Partition
from clarion.wire.batch import stamp
from clarion.wire.records import decode_batch
from tests.broker.harness import until
from tests.broker.kept import halfway_through_compaction, settle
from tests.broker.replicas import FOLLOWER, NOW_MS, Pair, two_replicas
from tests.broker.talk import batch, split

PLACE = ("t", 0)
COMPACTED = {
    "clarion_durability": "page-cache",
    "cleanup_policy": "compact",
    "delete_retention_ms": "0",
    "min_cleanable_dirty_ratio": "0.01",
}


async def write(pair: Pair, key: bytes, value: bytes | None) -> None:
    answer = await pair.node.client.produce({PLACE: batch(value, at=NOW_MS, keys=[key])}, acks=-1)
    assert answer[PLACE].error_code == 0


async def compact(pair: Pair, runs: int = 2) -> None:
    """A tombstone gets its time in the first run, and goes in the second."""
    for _ in range(runs):
        pair.leader.roll(NOW_MS)
        pair.leader.flush_soon()
        await settle(pair.node)
        await pair.node.server.housekeeping.compact()
        await write(pair, b"filler", b"f")


def records_of(pair: Pair, partition: Partition) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for one in split(pair.bytes_of(partition)) for record in decode_batch(one)]


async def leave(pair: Pair) -> None:
    """The follower has everything, and goes away."""
    await until(lambda: pair.follower.next_offset == pair.leader.next_offset)
    pair.fetchers.forget(pair.follower)
    pair.begin_term(in_sync=(1,))


async def test_a_replica_that_was_away_hears_of_a_deletion_however_long_ago_it_was(tmp_path: Path) -> None:
    async with two_replicas(tmp_path, in_sync=(1, FOLLOWER), **COMPACTED) as pair:
        pair.follow()
        await write(pair, b"k", b"old")
        await leave(pair)
        await write(pair, b"k", None)
        await compact(pair)
        assert (b"k", b"old") not in records_of(pair, pair.leader)
        assert (b"k", None) in records_of(pair, pair.leader), "the follower has not heard of it"
        pair.follow()
        await until(lambda: pair.agreement.states[-1].in_sync == (1, FOLLOWER))
        assert (b"k", None) in records_of(pair, pair.follower)
        await compact(pair)
        assert b"k" not in [key for key, _ in records_of(pair, pair.leader)]


async def test_a_tombstone_does_not_go_in_a_run_during_which_a_replica_is_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is filled may have read the old value already, and would come to where the tombstone was."""
    async with two_replicas(tmp_path, in_sync=(1, FOLLOWER), **COMPACTED) as pair:
        pair.follow()
        await write(pair, b"k", None)
        await compact(pair, runs=1)
        pair.leader.roll(NOW_MS)
        await settle(pair.node)
        async with halfway_through_compaction(pair.node.server.housekeeping, monkeypatch):
            pair.begin_term(in_sync=(1,))
        assert (b"k", None) in records_of(pair, pair.leader)


async def test_a_replica_that_leaves_and_comes_back_in_every_run_does_not_keep_a_log_from_being_cleaned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_replicas(tmp_path, in_sync=(1, FOLLOWER), **COMPACTED, segment_bytes="1024") as pair:
        pair.follow()
        for number in range(40):
            await write(pair, b"%d" % (number % 3), bytes(400))
        sealed = pair.leader.end.segment
        pair.leader.flush_soon()
        await settle(pair.node)
        async with halfway_through_compaction(pair.node.server.housekeeping, monkeypatch, batches=1):
            pair.begin_term(in_sync=(1,))
        assert pair.leader.cleaned_to == sealed
        assert len(records_of(pair, pair.leader)) < 10


async def test_a_replica_that_leaves_in_a_run_keeps_tombstones_there_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_replicas(tmp_path, in_sync=(1, FOLLOWER), **COMPACTED, segment_bytes="1024") as pair:
        pair.follow()
        for key in (b"a", b"b"):
            await write(pair, key, None)
            await write(pair, b"wide-" + key, bytes(700))  # so that the two stay in files of their own
        await compact(pair, runs=1)
        await write(pair, b"filler", b"latest")
        pair.leader.roll(NOW_MS)
        pair.leader.flush_soon()
        await settle(pair.node)
        tombstones = [(b"a", None), (b"b", None)]
        assert [one for one in records_of(pair, pair.leader) if one in tombstones] == tombstones
        async with halfway_through_compaction(pair.node.server.housekeeping, monkeypatch):
            pair.begin_term(in_sync=(1,))
        assert [one for one in records_of(pair, pair.leader) if one[1] != bytes(700)] == [
            *tombstones,
            (b"filler", b"latest"),
        ]
        assert pair.leader.cleaned_to == pair.leader.end.segment
        pair.begin_term(in_sync=(1, FOLLOWER))
        await pair.node.server.housekeeping.compact()
        assert not {*tombstones} & {*records_of(pair, pair.leader)}, "their time was over"


def begin_anew(pair: Pair, **changes: Any) -> None:
    """An election that loses messages: the log that led follows now, and has nothing that its leader has."""
    now = pair.agreement.states[-1]
    changes = {"leader": FOLLOWER, "leader_epoch": now.leader_epoch + 1, "partition_epoch": 9, **changes}
    pair.agreement.states.append(now._replace(**changes))
    pair.leader.follow(pair.agreement.states[-1])
    assert pair.leader.begin_anew(0, NOW_MS)


def from_their_leader(pair: Pair, offset: int, key: bytes, value: bytes | None) -> None:
    """What the log that now follows is sent."""
    sent = bytearray(batch(value, at=NOW_MS, keys=[key]))
    stamp(memoryview(sent), offset, pair.agreement.states[-1].leader_epoch)
    pair.leader.append_fetched(memoryview(sent), NOW_MS)
    pair.leader.note_leader(offset + 1, 0)


async def test_a_log_that_began_anew_is_cleaned_from_its_beginning(tmp_path: Path) -> None:
    """Up to some offset it had been cleaned; what is there now has not. A tombstone there has an older value yet."""
    async with two_replicas(tmp_path, in_sync=(1,), **COMPACTED) as pair:
        for number in range(6):
            await write(pair, b"%d" % number, b"v")
        await compact(pair)
        begin_anew(pair, in_sync=(1, FOLLOWER))
        for offset, (key, value) in enumerate([(b"k", b"old"), (b"k", None), *[(b"f", b"")] * 10]):
            from_their_leader(pair, offset, key, value)
            pair.leader.roll(NOW_MS)
        for _ in range(3):
            pair.leader.flush_soon()
            await settle(pair.node)
            await pair.node.server.housekeeping.compact()
            left = [(key, value) for key, value in records_of(pair, pair.leader) if key == b"k"]
            assert left != [(b"k", b"old")], "its tombstone has gone, and it has not"
        assert left == []


async def test_what_was_cleaned_before_a_cut_does_not_take_the_place_of_what_came_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an election that loses messages others may stand at their offsets, in files of the same size."""
    async with two_replicas(tmp_path, in_sync=(1,), **COMPACTED) as pair:
        for value in (b"mine-1", b"mine-2"):
            await write(pair, b"k", value)
            pair.leader.roll(NOW_MS)
        pair.leader.flush_soon()
        await settle(pair.node)
        mapped_and_written = 3  # of two that are read twice; the second is in memory then
        async with halfway_through_compaction(pair.node.server.housekeeping, monkeypatch, mapped_and_written):
            begin_anew(pair)
            for offset, value in enumerate((b"theirs", b"latest")):
                from_their_leader(pair, offset, b"k", value)
                pair.leader.roll(NOW_MS)
        assert (b"k", b"latest") in records_of(pair, pair.leader)
        assert {value for _, value in records_of(pair, pair.leader)} <= {b"theirs", b"latest"}


async def test_what_retention_decided_before_a_cut_takes_nothing_of_what_came_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"retention_ms": "1", "clarion_retention_grace_ms": "0", "clarion_durability": "page-cache"}
    async with two_replicas(tmp_path, in_sync=(1,), **settings) as pair:
        for _ in range(4):
            await write(pair, b"k", b"mine")
            pair.leader.roll(NOW_MS)
        is_looking, may_end, look = threading.Event(), threading.Event(), CleanerState.look

        def slow_look(*args: Any) -> Any:
            decided = look(*args)
            is_looking.set()
            assert may_end.wait(20)
            return decided

        monkeypatch.setattr(CleanerState, "look", slow_look)
        retaining = asyncio.ensure_future(pair.node.server.housekeeping.retain())
        await until(is_looking.is_set)
        begin_anew(pair)
        for offset in range(4):
            from_their_leader(pair, offset, b"k", b"theirs")
        may_end.set()
        await retaining
        assert pair.leader.start_offset == 0
        assert len(records_of(pair, pair.leader)) == 4


async def test_a_replica_that_is_cut_below_what_was_compacted_fetches_the_older_values_again(tmp_path: Path) -> None:
    """`one` went because of `two`, which an election that loses messages takes: the new leader has `one`."""
    async with two_replicas(tmp_path, in_sync=(1, FOLLOWER), **COMPACTED) as pair:
        pair.follow()
        await write(pair, b"k", b"one")
        await write(pair, b"other", b"x")
        await leave(pair)
        await write(pair, b"k", b"two")
        await compact(pair, runs=1)
        assert (b"k", b"one") not in records_of(pair, pair.leader)
        now = pair.agreement.states[-1]
        epochs = {"leader_epoch": now.leader_epoch + 1, "partition_epoch": 9}
        state = now._replace(leader=FOLLOWER, in_sync=(FOLLOWER,), **epochs)
        pair.leader.follow(state)
        pair.follower.lead(state, NOW_MS)
        at = pair.leader.position
        while (parted := pair.follower.diverging_epoch(at.last_epoch, at.next_offset)) is not None:
            pair.leader.cut_where_logs_part(*parted, NOW_MS)
            at = pair.leader.position
        slices = pair.follower.read_as_replica(at.next_offset, 1 << 20)
        pair.leader.append_fetched(memoryview(b"".join(one.read() for one in slices)), NOW_MS)
        assert records_of(pair, pair.leader) == records_of(pair, pair.follower)


async def test_an_ordinary_cut_of_a_compacted_log_keeps_what_is_committed(tmp_path: Path) -> None:
    async with two_replicas(tmp_path, in_sync=(1, FOLLOWER), **COMPACTED) as pair:
        pair.follow()
        await write(pair, b"k", b"one")
        await leave(pair)
        pair.begin_term(in_sync=(1, FOLLOWER))  # which fetches no more: what comes is not committed
        sent = batch(b"tail", at=NOW_MS, keys=[b"k"])
        pair.leader.append(memoryview(bytearray(sent)), NOW_MS)
        assert (pair.leader.high_watermark.offset, pair.leader.next_offset) == (1, 2)
        now = pair.agreement.states[-1]
        pair.leader.follow(now._replace(leader=FOLLOWER, leader_epoch=now.leader_epoch + 1, partition_epoch=9))
        pair.leader.cut_where_logs_part(now.leader_epoch - 1, 1, NOW_MS)
        assert records_of(pair, pair.leader) == [(b"k", b"one")]
