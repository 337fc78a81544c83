"""What a client's idea of a leader's term is worth: fencing (KIP-320), and where a term ended."""

from __future__ import annotations

from typing import Final

from clarion.model.errors import ErrorCode, KafkaError
from clarion.replication import Partition

UNKNOWN: Final = (-1, -1)


def check_leader_epoch(asked: int, partition: Partition) -> None:
    """A client with stale metadata is fenced, one that knows a later term than we do has to wait; -1 knows nothing."""
    if 0 <= asked < partition.leader_epoch:
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, f"{partition.tp} is in epoch {partition.leader_epoch}")
    if asked > partition.leader_epoch:
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"{partition.tp} is in epoch {partition.leader_epoch}")


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
