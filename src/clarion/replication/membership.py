"""How a partition meets its cluster: what a broker lends its partitions, and what it tells them.

The cluster's word on a partition is an `Assignment` (`cluster.PartitionState` is one). Whoever watches the store calls

    partition.lead(state, now_ms)    this broker leads: a new term, or news of the one that it is in
    partition.follow(state)          another broker does; `ReplicaFetchers.follow` fetches from it
    partition.resign()               nobody does, or this broker is no replica any longer

on every change of it; what is older than what the partition knows is passed over. One node without a cluster calls
`lead` with itself as the only replica, and has no `Membership`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from clarion.replication.partition import Partition

NOBODY: Final = -1


class Assignment(Protocol):
    """Who leads a partition, who has it, and who has all of it."""

    @property
    def leader(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def replicas(self) -> tuple[int, ...]: ...
    @property
    def in_sync(self) -> tuple[int, ...]: ...
    @property
    def eligible(self) -> tuple[int, ...]:
        """Not in sync, but may be elected: nothing is committed while there are any."""
        ...

    @property
    def partition_epoch(self) -> int: ...
    @property
    def min_in_sync(self) -> int:
        """What min.insync.replicas is where nobody has set it."""
        ...


class Term(NamedTuple):
    """An assignment as plain values: of a node that is alone, and of tests."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    partition_epoch: int = 0
    min_in_sync: int = 1
    eligible: tuple[int, ...] = ()


class InSyncRequests(Protocol):
    def ask(self, partition: Partition, followers: Mapping[int, int]) -> None:
        """Have the cluster agree on these followers, each with the broker epoch in which it was seen.

        `partition.lead` tells what was agreed; until then the partition asks for nothing else.
        """
        ...


class Membership(NamedTuple):
    """What a broker of a cluster lends its partitions."""

    lease_is_valid: Callable[[], bool]  # while it is not, another broker may lead what this one believes to
    in_sync: InSyncRequests
    save_starts: Callable[[], None]  # where logs begin: `note_start_saved` tells when that is on disk


class Identity(NamedTuple):
    """By what a leader knows the broker that fetches from it."""

    node_id: int
    broker_epoch: int
    secret: bytes
