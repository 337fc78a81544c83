"""When offsets are forgotten (KIP-211): after the retention time, counted from when nobody needed them any more.

An empty group's offsets age from when it became empty, or from the commit if that was later. A live group's offsets
do not age, but for topics that it no longer subscribes to: those age from the commit. A group that only commits (a
simple one) never says that it is there, so its offsets age from the commit as well. Those of a subscription do not age
while there is the subscription: it is promised messages for longer than that, and would not find its place in them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from clarion.groups.classic_group import ClassicGroup, ClassicState
from clarion.groups.consumer_group import ConsumerGroup
from clarion.groups.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from clarion.groups.group_admin import erase
from clarion.groups.offset_requests import drop
from clarion.groups.records import CommittedOffset
from clarion.groups.shard import Group, Step
from clarion.groups.share_group import ShareGroup
from clarion.groups.timers import TimerKey, TimerKind

_LOOKED_AT_PER_STEP: Final = 5_000  # offsets, and groups: a few milliseconds
_FORGOTTEN_PER_STEP: Final = 500  # the same, since each is written


def on_time(step: Step, but_for: Collection[str], *, may_expire: bool) -> None:
    """It is time to look. `but_for`: groups to which something has happened in this step already: who has just joined
    one of them would go with it."""
    if may_expire and _expire(step, but_for):
        step.shard.timers.start(TimerKey(TimerKind.EXPIRY), step.now_ms)  # in the next turn
    else:
        step.shard.schedule_expiry(step.now_ms)


def _expire(step: Step, but_for: Collection[str]) -> bool:
    """Look through some groups; an empty one that has no offsets left goes too. Whether others are left to look at."""
    shard = step.shard
    shard.expiring = shard.expiring or list(shard.groups)
    looked_at = 0
    while shard.expiring and looked_at < _LOOKED_AT_PER_STEP and len(step.out.records) < _FORGOTTEN_PER_STEP:
        group_id = shard.expiring.pop()
        group = shard.groups.get(group_id)
        if group is not None and group_id not in but_for:
            looked_at += 1 + len(shard.offsets.of(group_id))
            if not _expire_of(step, group):
                shard.expiring.append(group_id)  # the rest of it in the next step, when these are gone
                break
    return bool(shard.expiring)


def _expire_of(step: Step, group: Group) -> bool:
    """False if not all that is to go would fit into one step."""
    if isinstance(group, ShareGroup) or step.shard.is_kept(group.group_id):
        return True  # a share group's positions are not kept here, and last until somebody deletes it, too
    offsets = step.shard.offsets.of(group.group_id)
    expired = [at for at, offset in offsets.items() if _is_expired(step, group, at.topic, offset)]
    if len(expired) == len(offsets) <= _FORGOTTEN_PER_STEP and _is_deletable(group):
        erase(step, group)
        return True
    for at in expired[:_FORGOTTEN_PER_STEP]:
        drop(step, group.group_id, at)
    return len(expired) <= _FORGOTTEN_PER_STEP


def _is_expired(step: Step, group: ClassicGroup | ConsumerGroup, topic: str, offset: CommittedOffset) -> bool:
    if _is_needed(group, topic):
        return False
    if offset.expire_timestamp_ms != -1:
        return step.wall_ms >= offset.expire_timestamp_ms
    unneeded_since_ms = max(offset.commit_timestamp_ms, _empty_since_ms(group))
    return step.wall_ms - unneeded_since_ms >= step.shard.config.offsets_retention_ms


def _is_needed(group: ClassicGroup | ConsumerGroup, topic: str) -> bool:
    if group.is_empty:
        return False
    if isinstance(group, ConsumerGroup):
        return group.is_subscribed_to(topic)
    # While a group rebalances its subscriptions are not settled; and what other protocols need we cannot read.
    is_readable = group.protocol_type == CONSUMER_PROTOCOL_TYPE and group.state is ClassicState.STABLE
    return not is_readable or group.is_subscribed_to(topic)


def _empty_since_ms(group: Group) -> int:
    if not group.is_empty:
        return -1
    return group.state_timestamp_ms if isinstance(group, ClassicGroup) else group.target_timestamp_ms


def _is_deletable(group: Group) -> bool:
    return group.is_idle if isinstance(group, ClassicGroup) else group.is_empty
