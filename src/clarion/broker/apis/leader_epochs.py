"""Where a leader's term ended (KIP-320)."""

from __future__ import annotations

from typing import Final

from clarion.model.errors import ErrorCode, KafkaError
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


def diverging_epoch(last_fetched_epoch: int, next_offset: int, partition: Partition) -> tuple[int, int] | None:
    """A reader that followed a log which has since lost its tail learns where the two part (KIP-595)."""
    if last_fetched_epoch < 0:
        return None
    known = end_of_epoch(partition, last_fetched_epoch)
    if known == UNKNOWN or next_offset < partition.start_offset:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)  # nothing here tells where the two logs part
    epoch, end_offset = known
    if epoch < last_fetched_epoch or end_offset < next_offset:
        return epoch, end_offset
    return None
