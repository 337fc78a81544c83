"""A share group (KIP-932): members that read the same partitions together, and none of them owns one.

As in a KIP-848 group the epoch grows with members and topics, and a target is made for an epoch; but there is nothing
to give up before another may begin, so a member has its target with its next heartbeat. Members are given only
partitions whose share state has begun (`initialized`). This class is the sum of the group's records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from uuid import UUID

from clarion.groups.consumer_group import NEWCOMER
from clarion.groups.memory import GROUP_BYTES, PARTITION_BYTES, weight_of_member
from clarion.groups.partitions import NOTHING, Partitions, count
from clarion.groups.records import CurrentAssignment, GroupEpoch, MemberMetadata, TargetEpoch
from clarion.groups.share_records import Initialized
from clarion.groups.topics import TopicsView


class ShareGroupState(StrEnum):
    EMPTY = "Empty"
    STABLE = "Stable"


@dataclass(slots=True)
class ShareGroup:
    group_id: str
    epoch: int = 0
    metadata_hash: int = 0
    target_epoch: int = 0
    target_timestamp_ms: int = -1
    members: dict[str, MemberMetadata] = field(default_factory=dict)
    targets: dict[str, Partitions] = field(default_factory=dict)
    currents: dict[str, CurrentAssignment] = field(default_factory=dict)
    initialized: Initialized = field(default_factory=dict)
    weight: int = GROUP_BYTES  # in bytes
    topics_version_seen: int = -1  # soft: which view of the topics the hash was last compared with

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def state(self) -> ShareGroupState:
        return ShareGroupState.EMPTY if self.is_empty else ShareGroupState.STABLE

    def current(self, member_id: str) -> CurrentAssignment:
        return self.currents.get(member_id, NEWCOMER)

    def target(self, member_id: str) -> Partitions:
        return self.targets.get(member_id, NOTHING)

    def is_subscribed_to(self, topic: str) -> bool:
        return any(topic in member.subscribed_topic_names for member in self.members.values())

    def uninitialized(self, view: TopicsView) -> dict[UUID, tuple[str, frozenset[int]]]:
        """Partitions that members want and whose share state has not begun."""
        names = {name for member in self.members.values() for name in member.subscribed_topic_names}
        found = {}
        for name in sorted(names & view.topics.keys()):
            topic = view.topics[name]
            begun = self.initialized[topic.topic_id].partitions if topic.topic_id in self.initialized else frozenset()
            missing = frozenset(range(topic.partition_count)) - begun
            if missing:
                found[topic.topic_id] = (name, missing)
        return found

    def deliverable(self, view: TopicsView) -> Mapping[UUID, frozenset[int]]:
        """What can be given to members: of topics that are there."""
        return {topic_id: one.partitions for topic_id, one in self.initialized.items() if topic_id in view.names}

    # Replay: one method per kind of record; None is the tombstone

    def replay_epoch(self, group: GroupEpoch) -> None:
        self.epoch, self.metadata_hash = group

    def replay_target_epoch(self, target: TargetEpoch | None) -> None:
        self.target_epoch, self.target_timestamp_ms = target or TargetEpoch(0, -1)

    def replay_member(self, member_id: str, member: MemberMetadata | None) -> None:
        before = self.members.pop(member_id, None)
        self.weight += (weight_of_member(member) if member else 0) - (weight_of_member(before) if before else 0)
        if member is not None:
            self.members[member_id] = member

    def replay_target(self, member_id: str, partitions: Partitions | None) -> None:
        self.weight += PARTITION_BYTES * (count(partitions or NOTHING) - count(self.target(member_id)))
        if partitions is None:
            self.targets.pop(member_id, None)
        else:
            self.targets[member_id] = partitions

    def replay_current(self, member_id: str, current: CurrentAssignment | None) -> None:
        before = self.current(member_id)
        self.weight += PARTITION_BYTES * (count((current or NEWCOMER).assigned) - count(before.assigned))
        if current is None:
            self.currents.pop(member_id, None)
        else:
            self.currents[member_id] = current

    def replay_initialized(self, topics: Initialized | None) -> None:
        self.weight += PARTITION_BYTES * (_partitions(topics or {}) - _partitions(self.initialized))
        self.initialized = topics or {}


def _partitions(topics: Initialized) -> int:
    return sum(len(topic.partitions) for topic in topics.values())
