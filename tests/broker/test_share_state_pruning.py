"""What is deleted of share state's log, and when: never what a crash might make the newest again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest

from clarion.broker import share_states
from clarion.broker.config import Durability
from clarion.queues.state_records import ShareKey
from clarion.replication import Partition
from tests.broker.disks import StoryDisk
from tests.broker.harness import Node, running, until

FLUSHED = {"durability": Durability.FSYNC, "share_state_partitions": 1}


def state_partition(node: Node) -> Partition:
    (shard,) = node.broker.shares.states.runtime.shards
    return shard.partition


async def test_a_snapshot_is_deleted_when_the_one_after_it_is_committed_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power cut in between takes both, and the group begins anew."""
    monkeypatch.setattr(share_states, "_PRUNED_RECORDS_MIN", 1)
    disk, topic_id = StoryDisk(), uuid4()
    first, second = ShareKey("g", topic_id, 0), ShareKey("g", topic_id, 1)
    async with running(tmp_path, disk=disk, **FLUSHED) as node:
        states = node.broker.shares.states
        await states.initialize(first, 0, 7)
        await states.initialize(second, 0, 7)
        partition = state_partition(node)
        disk.hold_flushes()
        again = asyncio.create_task(states.initialize(first, 1, 8))
        await until(lambda: partition.next_offset == 3)
        (shard,) = states.runtime.shards
        states._prune_if_worth(shard)  # as after a write that was committed a moment ago
        for _ in range(50):
            await asyncio.sleep(0.002)
        seen = partition.high_watermark.offset, partition.start_offset
        disk.let_flushes_go()
        assert seen == (2, 0)
        await again
        await until(lambda: partition.start_offset == 1)
