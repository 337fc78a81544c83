"""Replicas here whose files are not to be gone on with: they go, as soon as a broker that is there has everything.

    moved away    this broker is no replica any longer                 they go
    given again   it was none for a while, or may have been            they go, and are filled anew
    older         a copy of the data directory, as it was earlier      likewise, where the topic is compacted
    two leaders   it was filled by one, and another one leads now      likewise

What is missing in the middle of a log nobody sees: a follower goes on from its end. A tombstone is dropped when all who
are replicas then have it. So who was none at that moment may have the value that it deletes, and would come to its
place when it is gone. And each replica compacts by itself: one may still have a value where another one no longer has
even its tombstone. So what was not in sync yet since it was made is filled by one leader, from its beginning on.

Whether a broker was a replica all the time is told by the life in which the cluster last knew that it held everything
(`PartitionState.lives`): one that is added has none, until it is in sync. What it has before that, at a start, is of
this time as a replica or of an earlier one; nobody knows, so a compacted topic's is fetched once more.
"""

from __future__ import annotations

from collections.abc import Iterator

from clarion.cluster import ClusterImage, PartitionState
from clarion.cluster.schema import NO_EPOCH, NO_LEADER
from clarion.replication import Partition
from clarion.world import event_log

log = event_log("broker")


class OutdatedReplicas:
    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._reasons: dict[Partition, str] = {}
        self._filled_by: dict[Partition, int] = {}  # those that were not in sync yet since they were made, and by whom

    def __contains__(self, partition: Partition) -> bool:
        return partition in self._reasons

    def note_made(self, partition: Partition) -> None:
        """With nothing in it."""
        self._filled_by[partition] = NO_LEADER

    def note_filled(self, partition: Partition, leader: int) -> None:
        """It is fetched from this leader now."""
        if partition in self._filled_by:
            self._filled_by[partition] = leader

    def forget(self, partition: Partition) -> None:
        self._reasons.pop(partition, None)
        self._filled_by.pop(partition, None)

    def look(
        self, partition: Partition, before: PartitionState | None, now: PartitionState, held_since: int = NO_EPOCH
    ) -> None:
        """`before`: as this broker knew it; None if it has just started, and has found the files. `held_since`: the
        first of its lives with this data directory, if the cluster knows of another one, or of a later one."""
        if self._node_id in (now.leader, *now.in_sync, *now.eligible):
            self.forget(partition)  # also one that was elected though it lacks something: it is the best there is
            return
        if now.life_of(self._node_id) == NO_EPOCH:
            self._filled_by.setdefault(partition, NO_LEADER)
        if reason := self._why(partition, before, now, held_since):
            self._reasons.setdefault(partition, reason)

    def take(self, image: ClusterImage) -> Iterator[Partition]:
        """Those that can go now."""
        for partition, reason in list(self._reasons.items()):
            if partition.is_gone:
                self.forget(partition)
            elif is_elsewhere(partition, image, self._node_id):
                log.info("replica_outdated", partition=partition.tp, reason=reason)
                self.forget(partition)
                yield partition

    def _why(self, partition: Partition, before: PartitionState | None, now: PartitionState, held_since: int) -> str:
        here = self._node_id
        life = now.life_of(here)
        if here not in now.replicas:
            return "other brokers have it now"
        if partition.next_offset == partition.start_offset:
            return ""  # with nothing in it, it is as good as one that is made now
        if life == NO_EPOCH and before is not None and before.life_of(here) != NO_EPOCH:
            return "other brokers had it meanwhile"
        if not partition.settings.is_compacted:
            return ""
        if before is None and held_since > life:
            return "it is in an older copy of the data directory, or was never filled to its end"
        has_missed = before is None or now.partition_epoch > before.partition_epoch + 1
        if life == NO_EPOCH and has_missed:
            return "it was never filled to its end, and other brokers may have had it meanwhile"
        filled_by = self._filled_by.get(partition, NO_LEADER)
        if NO_LEADER not in (filled_by, now.leader) and filled_by != now.leader:
            return "another leader, whose log may be compacted otherwise, has filled a part of it"
        return ""


def is_elsewhere(partition: Partition, image: ClusterImage, here: int) -> bool:
    """Whether somebody who is there has everything, and the cluster is not an older one than wrote these files."""
    topic = image.topic_by_id(partition.topic_id)
    if topic is None or partition.tp.partition >= topic.partition_count:
        return False
    state = topic.partitions[partition.tp.partition]
    is_led = state.leader in state.in_sync and state.leader in image.brokers
    is_out = here not in (state.leader, *state.in_sync, *state.eligible)
    return is_led and is_out and state.leader_epoch >= partition.latest_epoch
