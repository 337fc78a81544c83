"""A KIP-848 group: the broker divides the work, and leads each member towards its target at its own pace.

The group epoch grows whenever members or topics change. A target assignment is made for an epoch (the assignment
epoch), and each member walks towards it: first it gives up what it must, then its own epoch moves to the target's,
then it gets what others have released. All of it is in the log; this class is the sum of its records, in whatever
order compaction left them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TypeVar
from uuid import UUID

from clarion.groups.memory import GROUP_BYTES, PARTITION_BYTES, weight_of_member
from clarion.groups.partitions import NOTHING, Partitions, count, each
from clarion.groups.records import CurrentAssignment, GroupEpoch, MemberMetadata, ResolvedRegex, TargetEpoch
from clarion.model.errors import ErrorCode, KafkaError

_Value = TypeVar("_Value")

JOIN_EPOCH = 0
STATIC_LEAVE_EPOCH = -2  # a static member that will be back


class ConsumerState(StrEnum):
    EMPTY = "Empty"
    ASSIGNING = "Assigning"  # the target is older than the group
    RECONCILING = "Reconciling"  # some members are still on their way
    STABLE = "Stable"


class MemberState(IntEnum):
    STABLE = 0
    UNREVOKED = 1  # must give up partitions before its epoch may move
    UNRELEASED = 2  # has the target's epoch, and waits for partitions that others have not released yet


NEWCOMER = CurrentAssignment(JOIN_EPOCH, -1, MemberState.STABLE, NOTHING, NOTHING)


@dataclass(slots=True)
class ConsumerGroup:
    group_id: str
    epoch: int = 0
    metadata_hash: int = 0
    target_epoch: int = 0
    target_timestamp_ms: int = -1
    members: dict[str, MemberMetadata] = field(default_factory=dict)
    targets: dict[str, Partitions] = field(default_factory=dict)
    currents: dict[str, CurrentAssignment] = field(default_factory=dict)
    regexes: dict[str, ResolvedRegex] = field(default_factory=dict)
    static_ids: dict[str, str] = field(default_factory=dict)  # instance id → member id
    owners: dict[tuple[UUID, int], str] = field(default_factory=dict)  # until released, not only while assigned
    weight: int = GROUP_BYTES  # in bytes
    topics_version_seen: int = -1  # soft: which view of the topics the hash was last compared with

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def state(self) -> ConsumerState:
        if self.is_empty:
            return ConsumerState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerState.ASSIGNING
        if all(self._has_arrived(self.current(member_id)) for member_id in self.members):
            return ConsumerState.STABLE
        return ConsumerState.RECONCILING

    def current(self, member_id: str) -> CurrentAssignment:
        return self.currents.get(member_id, NEWCOMER)

    def target(self, member_id: str) -> Partitions:
        return self.targets.get(member_id, NOTHING)

    def is_subscribed_to(self, topic: str) -> bool:
        return any(
            topic in member.subscribed_topic_names or topic in self.matched_by(member.subscribed_topic_regex)
            for member in self.members.values()
        )

    def matched_by(self, regex: str | None) -> tuple[str, ...]:
        resolved = self.regexes.get(regex) if regex else None
        return resolved.topics if resolved else ()

    def check_static(self, member_id: str, instance_id: str) -> None:
        owner = self.static_ids.get(instance_id)
        if owner is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"no member has the instance id {instance_id}")
        if owner != member_id:
            raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, f"instance id {instance_id} belongs to another member")

    def _has_arrived(self, current: CurrentAssignment) -> bool:
        return current.state == MemberState.STABLE and current.member_epoch == self.target_epoch

    # Replay: one method per kind of record; None is the tombstone

    def replay_epoch(self, group: GroupEpoch) -> None:
        self.epoch, self.metadata_hash = group

    def replay_target_epoch(self, target: TargetEpoch | None) -> None:
        self.target_epoch, self.target_timestamp_ms = target or TargetEpoch(0, -1)

    def replay_member(self, member_id: str, member: MemberMetadata | None) -> None:
        before = self.members.pop(member_id, None)
        self.weight += (weight_of_member(member) if member else 0) - (weight_of_member(before) if before else 0)
        if before and before.instance_id and self.static_ids.get(before.instance_id) == member_id:
            del self.static_ids[before.instance_id]
        if member is None:
            return
        self.members[member_id] = member
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member_id

    def replay_target(self, member_id: str, partitions: Partitions | None) -> None:
        self.weight += PARTITION_BYTES * (count(partitions or NOTHING) - count(self.target(member_id)))
        _put(self.targets, member_id, partitions)

    def replay_current(self, member_id: str, current: CurrentAssignment | None) -> None:
        before = self.current(member_id)
        self.weight += PARTITION_BYTES * (_held(current or NEWCOMER) - _held(before))
        for held in (before.assigned, before.pending_revocation):
            for partition in each(held):
                # By now it may already be somebody else's.
                if self.owners.get(partition) == member_id:
                    del self.owners[partition]
        _put(self.currents, member_id, current)
        if current is not None:
            for held in (current.assigned, current.pending_revocation):
                self.owners.update((partition, member_id) for partition in each(held))

    def replay_regex(self, regex: str, resolved: ResolvedRegex | None) -> None:
        _put(self.regexes, regex, resolved)


def _held(current: CurrentAssignment) -> int:
    return count(current.assigned) + count(current.pending_revocation)


def _put(entries: dict[str, _Value], key: str, value: _Value | None) -> None:
    if value is None:
        entries.pop(key, None)
    else:
        entries[key] = value
