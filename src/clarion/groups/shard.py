"""What the parts of one coordinator share: the groups, the offsets, the timers, the topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from clarion.groups.classic_group import ClassicGroup
from clarion.groups.config import GroupConfig
from clarion.groups.consumer_group import ConsumerGroup
from clarion.groups.offset_store import OffsetStore
from clarion.groups.outcome import Call, Outcome
from clarion.groups.timers import Timers
from clarion.groups.topics import NO_TOPICS, TopicsView
from clarion.wire.messages.k11_join_group import JoinGroupRequest

Group = ClassicGroup | ConsumerGroup


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
    overrides: Mapping[str, GroupConfig] = field(default_factory=dict)  # of groups that have settings of their own
    groups: dict[str, Group] = field(default_factory=dict)
    offsets: OffsetStore = field(default_factory=OffsetStore)
    timers: Timers = field(default_factory=Timers)
    # Joins that came in the step that changes their group's type: they are handed in again when that is done.
    deferred: dict[str, list[tuple[JoinGroupRequest, Call]]] = field(default_factory=dict)
    topics: TopicsView = NO_TOPICS
    topics_version: int = 0

    def config_of(self, group_id: str) -> GroupConfig:
        return self.overrides.get(group_id, self.config)

    def classic(self, group_id: str) -> ClassicGroup | None:
        group = self.groups.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def consumer(self, group_id: str) -> ConsumerGroup | None:
        group = self.groups.get(group_id)
        return group if isinstance(group, ConsumerGroup) else None
