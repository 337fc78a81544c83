"""What is deleted by key stays deleted in a cluster: no replica keeps an older value without ever hearing of that."""

from __future__ import annotations

from pathlib import Path

import pytest

from clarion.replication import Partition
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
