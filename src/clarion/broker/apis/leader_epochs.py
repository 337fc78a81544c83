"""Where a leader's term ended (KIP-320)."""

from __future__ import annotations

from typing import Final

from clarion.replication import Partition

UNKNOWN: Final = (-1, -1)


def end_of_epoch(partition: Partition, epoch: int) -> tuple[int, int]:
    """The greatest epoch up to this one that wrote something, and the offset where it ended.

    A term in which nothing was written leaves no trace in the log, but clients have heard of it, from Metadata and
    ListOffsets. To call it unknown would tell them that the log was cut, and they would start again from the beginning.
    """
    if epoch < 0 or epoch > partition.leader_epoch:
        return UNKNOWN
    if epoch == partition.leader_epoch:
        return epoch, partition.log.next_offset
    latest = partition.log.epochs.latest
    if epoch > latest:
        return (latest if latest >= 0 else epoch), partition.log.next_offset
    return partition.log.epochs.end_offset_for(epoch)
