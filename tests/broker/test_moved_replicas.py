"""Replicas that are moved to other brokers: their files go, whenever that can be, and are never gone on with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from clarion.broker import replicas
from clarion.broker.outdated import OutdatedReplicas, is_elsewhere
from clarion.broker.replicas import Replicas
from clarion.cluster import PartitionState
from clarion.cluster.elections import reassign
from clarion.cluster.image import EMPTY, ClusterImage, Topic
from clarion.cluster.schema import NO_LEADER, BrokerRegistration
from clarion.model.errors import ErrorCode
from clarion.replication import Partition
from clarion.replication.catch_up import PIECE_BYTES_MAX
from tests.broker.harness import running, until
from tests.broker.moves import (
    COMPACTED,
    asked_to_move,
    drop_tombstones,
    has_all,
    in_sync,
    make,
    move,
    records,
    replica,
    state,
    write,
)
from tests.broker.talk import batch
from tests.broker.test_cluster import cluster_of

NEVER = 1e6


def folders(tmp_path: Path, broker: int) -> list[str]:
    return sorted(one.name for one in (tmp_path / f"broker-{broker}").iterdir() if one.name.startswith("t-"))


async def test_files_of_a_replica_that_was_moved_while_its_broker_was_away_go_when_it_is_back(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3) as cluster:
        await make(cluster, 1, 2, 3)
        await write(cluster, 1, (b"k", b"v"))
        await cluster.stop(3)
        await in_sync(cluster, 1, 2)
        await move(cluster, 1, 2)
        await until(lambda: state(cluster).replicas == (1, 2))
        assert folders(tmp_path, 3) == ["t-0"]
        await cluster.start(3)
        await until(lambda: folders(tmp_path, 3) == [])


async def test_files_that_could_not_be_removed_are_removed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(replicas, "_RETRY_SECONDS", 0.05)
    async with cluster_of(tmp_path, 3) as cluster:
        await make(cluster, 1, 3)
        await write(cluster, 1, (b"k", b"v"))
        in_the_way = tmp_path / "broker-3" / f"t-0.{replica(cluster, 3).topic_id.hex}-delete"
        in_the_way.touch()
        await move(cluster, 1, 2)
        await until(lambda: "files_of_deleted_stay" in [one.getMessage() for one in caplog.records])
        assert "t-0" in folders(tmp_path, 3)
        in_the_way.unlink()
        await until(lambda: folders(tmp_path, 3) == [])


async def test_a_replica_that_was_none_for_a_while_begins_anew(tmp_path: Path) -> None:
    """While its broker was away it was moved to others, which compacted, and given back to it."""
    async with cluster_of(tmp_path, 3, compaction_check_seconds=NEVER) as cluster:
        await make(cluster, 1, 2, 3)
        await write(cluster, 1, (b"k", b"old"), (b"filler", b"f"))
        await has_all(cluster, 3)
        await cluster.stop(3)
        await in_sync(cluster, 1, 2)
        await move(cluster, 1, 2)
        await until(lambda: state(cluster).replicas == (1, 2))
        await write(cluster, 1, (b"k", None))
        await drop_tombstones(cluster, 1, 2)
        assert b"k" not in [key for key, _ in records(replica(cluster, 1))]
        registry = cluster[1].broker.registry
        await registry.alter_partition(registry.known("t"), 0, reassign(state(cluster), (1, 2, 3)), 3)
        await cluster.start(3)
        await in_sync(cluster, 1, 2, 3)
        assert (b"k", b"old") not in records(replica(cluster, 3)), "a deleted key is back"
        assert folders(tmp_path, 3) == ["t-0"]


async def test_what_is_filled_when_its_leader_goes_begins_anew_with_the_next_one(tmp_path: Path) -> None:
    """One has an old value yet where the other one has dropped its tombstone: of both it would get the value alone."""
    how = {"compaction_check_seconds": NEVER, "follower_throttled_rate": 1}  # it gets one piece, and waits for days
    async with cluster_of(tmp_path, 3, **how) as cluster:
        await make(cluster, 1, 2, **COMPACTED, follower_replication_throttled_replicas="*")
        await write(cluster, 1, (b"k", b"old"))
        for _ in range(20):  # two pieces; what compaction leaves of it is less than one that is held up
            await write(cluster, 1, (b"wide", bytes(PIECE_BYTES_MAX // 10)))
        await write(cluster, 1, (b"k", None))
        await drop_tombstones(cluster, 2)
        assert {(b"k", b"old"), (b"k", None)} <= {*records(replica(cluster, 1))}
        assert b"k" not in [key for key, _ in records(replica(cluster, 2))]
        broker = cluster[3].broker
        await move(cluster, 1, 2, 3)
        await until(lambda: any(one.next_offset > 1 for one in broker.partitions if one.tp.topic == "t"))
        assert (b"k", None) not in records(replica(cluster, 3))
        await cluster.stop(1)
        await in_sync(cluster, 2, 3, seen_by=2)
        assert (b"k", b"old") not in records(replica(cluster, 3)), "a deleted key is back"


# ------------------------------------------------------------------------------------------------ when they may go


MEMBER = PartitionState(1, 5, (1, 2, 3), (1, 2), 10, lives=(4, 4, 4))
GONE = MEMBER._replace(replicas=(1, 2), lives=(4, 4), partition_epoch=11)
BACK = reassign(GONE, (1, 2, 3))


@pytest.fixture(params=["compact", "delete"])
async def held(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Partition]:
    """One with messages, on broker 3."""
    async with running(tmp_path, node_id=3) as node:
        await node.topic("t", cleanup_policy=request.param)
        assert (await node.client.produce({("t", 0): batch(b"v", keys=[b"k"])}))["t", 0].error_code == 0
        yield node.partition("t")


def image_of(partition: Partition, now: PartitionState, *alive: int) -> ClusterImage:
    told = Topic("t", partition.topic_id, (now,))
    brokers = {one: BrokerRegistration(one, 4, ()) for one in alive}
    return ClusterImage(EMPTY.revision, "", brokers, {"t": told}, {told.id: told}, {}, {}, {}, 1)


def goes(held: Partition, before: PartitionState | None, now: PartitionState, held_since: int = -1) -> bool:
    outdated = OutdatedReplicas(3)
    outdated.look(held, before, now, held_since)
    return held in outdated


async def test_who_was_no_replica_for_a_while_begins_anew_also_if_it_saw_only_the_end(held: Partition) -> None:
    assert goes(held, MEMBER, GONE)
    assert goes(held, MEMBER, BACK)
    assert not goes(held, MEMBER, MEMBER._replace(in_sync=(1,), partition_epoch=11))
    assert not goes(held, BACK, BACK._replace(in_sync=(1, 2, 3), lives=(4, 4, 4), partition_epoch=13))


async def test_what_was_moved_away_goes_though_it_is_given_back_before_it_could(held: Partition) -> None:
    outdated = OutdatedReplicas(3)
    outdated.look(held, MEMBER, GONE)
    assert list(outdated.take(image_of(held, GONE, 2, 3))) == []
    outdated.look(held, GONE, BACK)
    assert held in outdated
    assert list(outdated.take(image_of(held, BACK, 1, 2, 3))) == [held]


async def test_a_compacted_log_that_was_never_in_sync_begins_anew_after_a_start(held: Partition) -> None:
    assert goes(held, None, BACK) == held.settings.is_compacted
    assert goes(held, None, MEMBER, held_since=5) == held.settings.is_compacted, "its data directory is an older copy"
    assert not goes(held, None, MEMBER)
    assert goes(held, BACK, BACK._replace(partition_epoch=BACK.partition_epoch + 2)) == held.settings.is_compacted
    assert not goes(held, BACK, BACK._replace(partition_epoch=BACK.partition_epoch + 1))


async def test_what_was_not_in_sync_yet_is_filled_by_one_leader(held: Partition) -> None:
    outdated = OutdatedReplicas(3)
    outdated.note_made(held)
    outdated.note_filled(held, 1)
    now = MEMBER._replace(leader_epoch=held.latest_epoch)
    for leader in (NO_LEADER, 1):
        outdated.look(held, now, now._replace(leader=leader, leader_epoch=now.leader_epoch + 1))
        assert held not in outdated
    outdated.look(held, now, now._replace(leader=2))
    assert (held in outdated) == held.settings.is_compacted
    outdated.look(held, now, now._replace(leader=2, in_sync=(1, 2, 3)))
    outdated.note_filled(held, 2)
    outdated.look(held, now, now._replace(leader=1))
    assert held not in outdated, "it was in sync"


async def test_files_stay_as_long_as_nobody_else_is_known_to_have_everything(held: Partition) -> None:
    older = GONE._replace(leader_epoch=held.latest_epoch - 1)
    now = GONE._replace(leader_epoch=held.latest_epoch)
    assert is_elsewhere(held, image_of(held, now, 1, 3), 3)
    assert not is_elsewhere(held, image_of(held, now, 2, 3), 3), "its leader is away"
    assert not is_elsewhere(held, image_of(held, now._replace(leader=2, in_sync=(1,)), 1, 2, 3), 3)
    assert not is_elsewhere(held, image_of(held, older, 1, 3), 3), "the store is older than what was written here"
    assert not is_elsewhere(held, image_of(held, now._replace(replicas=(1, 3), eligible=(3,)), 1, 3), 3)
    assert not is_elsewhere(held, EMPTY, 3)


async def test_a_move_is_not_taken_back_from_the_only_one_that_has_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two new replicas one is filled, the old one dies, and the other new one never comes to be in sync."""
    follow = Replicas._follow

    def follow_elsewhere(made: Replicas, one: Partition, assigned: PartitionState) -> None:
        if made._broker.node_id != 1:
            follow(made, one, assigned)

    monkeypatch.setattr(Replicas, "_follow", follow_elsewhere)
    async with cluster_of(tmp_path, 3) as cluster:
        await make(cluster, 2, retention_ms="-1")
        await move(cluster, 3, 1)
        await in_sync(cluster, 2, 3)
        await cluster.stop(2)
        await until(lambda: state(cluster, 3).leader == 3 and state(cluster).in_sync == (3,))
        await write(cluster, 3, (b"k", b"acknowledged"))
        assert await asked_to_move(cluster, None) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert await asked_to_move(cluster, (1,)) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        await cluster.start(2)
        await in_sync(cluster, 2, 3)
        assert (await cluster[3].client.fetch({("t", 0): 0})).values() == [b"acknowledged"]
        assert await asked_to_move(cluster, None) == 0, "now somebody else has it, too"
        await until(lambda: state(cluster, 2).leader == 2)
        assert records(replica(cluster, 2)) == [(b"k", b"acknowledged")]
