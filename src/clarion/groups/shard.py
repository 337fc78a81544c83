"""What the parts of one coordinator share: the groups, the offsets, the timers, the topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from clarion.groups.classic_group import ClassicGroup
from clarion.groups.config import GroupConfig
from clarion.groups.consumer_group import ConsumerGroup
from clarion.groups.memory import GROUP_BYTES, Ledger, Share
from clarion.groups.names import check_group_id
from clarion.groups.offset_store import OffsetStore
from clarion.groups.outcome import Call, Outcome
from clarion.groups.share_group import ShareGroup
from clarion.groups.timers import TimerKey, TimerKind, Timers
from clarion.groups.topics import NO_TOPICS, TopicsView
from clarion.model.errors import ErrorCode, KafkaError
from clarion.wire.messages.groups import JoinGroupRequest

Group = ClassicGroup | ConsumerGroup | ShareGroup


class Step(NamedTuple):
    """One event on its way through the shard: what it happens to, what comes out, and when."""

    shard: Shard
    out: Outcome
    now_ms: int
    wall_ms: int


@dataclass(slots=True)
class Shard:
    config: GroupConfig
    new_uuid: Callable[[], UUID]
    overrides: Mapping[str, GroupConfig]  # of groups that have settings of their own
    ledger: Ledger
    is_kept: Callable[[str], bool]  # of a group: its offsets do not expire
    groups: dict[str, Group] = field(default_factory=dict)
    offsets: OffsetStore = field(default_factory=OffsetStore)
    timers: Timers = field(default_factory=Timers)
    # Joins that came in the step that changes their group's type: they are handed in again when that is done.
    deferred: dict[str, list[tuple[JoinGroupRequest, Call]]] = field(default_factory=dict)
    expiring: list[str] = field(default_factory=list)  # groups whose offsets are still to be looked at
    topics: TopicsView = NO_TOPICS
    topics_version: int = 0

    def check_topics_known(self) -> None:
        if self.topics_version == 0:
            # Without topics every member's share would be taken away.
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the topics are not known yet")

    def config_of(self, group_id: str) -> GroupConfig:
        return self.overrides.get(group_id, self.config)

    def check_room_for_members(self, group_id: str, more: int) -> None:
        """Whether a group's members may hold so much more than they do; what they hold already they keep."""
        group = self.groups.get(group_id)
        if more > 0 and (group.weight if group else GROUP_BYTES) + more > self.config.group_bytes_max:
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"{group_id} would take too much memory")
        self.check_room(group_id, more)

    def check_room(self, group_id: str, more: int) -> None:
        if more > 0 and group_id not in self.groups:
            more += GROUP_BYTES
        if more > 0 and not self.ledger.has_room(more):
            # Clients take it for a passing state, and try again until other groups have gone.
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "all groups together take too much memory")

    def weigh(self, group_id: str) -> None:
        """To be called whenever a group has changed, has come or gone."""
        group = self.groups.get(group_id)
        self.ledger.note(group_id, Share.MEMBERS, group.weight if group else 0)

    def weigh_offsets(self, group_id: str) -> None:
        self.ledger.note(group_id, Share.OFFSETS, self.offsets.weight_of(group_id))

    def drop_if_void(self, group_id: str) -> None:
        """A classic group that memory alone knows, and that nobody is in."""
        group = self.classic(group_id)
        if group and group.stored is None and group.is_idle and not self.offsets.of(group_id):
            del self.groups[group_id]

    def schedule_expiry(self, now_ms: int) -> None:
        self.timers.start(TimerKey(TimerKind.EXPIRY), now_ms + self.config.offsets_retention_check_interval_ms)

    def known_classic(self, group_id: str) -> ClassicGroup:
        check_group_id(group_id)
        group = self.classic(group_id)
        if group is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    def classic(self, group_id: str) -> ClassicGroup | None:
        group = self.groups.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def consumer(self, group_id: str) -> ConsumerGroup | None:
        group = self.groups.get(group_id)
        return group if isinstance(group, ConsumerGroup) else None

    def share(self, group_id: str) -> ShareGroup | None:
        group = self.groups.get(group_id)
        return group if isinstance(group, ShareGroup) else None
