"""The one way in which records become state, after a restart and after every append."""

from __future__ import annotations

from clarion.groups import records as r
from clarion.groups import share_records as s
from clarion.groups.classic_group import ClassicGroup
from clarion.groups.consumer_group import ConsumerGroup
from clarion.groups.shard import Shard
from clarion.groups.share_group import ShareGroup
from clarion.groups.timers import TimerKey, TimerKind
from clarion.model.ids import TopicPartition


def replay(shard: Shard, key_bytes: bytes, value: bytes | None) -> None:
    key = r.decode_key(key_bytes)
    if key is None:
        return
    if key.type in r.OFFSET_TYPES:
        _replay_offset(shard, key, value)
        shard.weigh_offsets(key.group_id)
        return
    if key.type == r.CLASSIC_GROUP_TYPE:
        _replay_classic(shard, key, value)
    elif key.type in s.SHARE_TYPES:
        _replay_share(shard, key, value)
    elif value is None:
        _replay_consumer_tombstone(shard, key)
    else:
        _replay_consumer(shard, key, value)
    shard.weigh(key.group_id)


def _replay_offset(shard: Shard, key: r.Key, value: bytes | None) -> None:
    partition = TopicPartition(key.name, key.partition)
    if value is not None:
        shard.offsets.put(key.group_id, partition, r.decode_offset(value))
        if key.group_id not in shard.groups:
            # A simple group: its offsets are all there is of it.
            shard.groups[key.group_id] = ClassicGroup(key.group_id)
            shard.weigh(key.group_id)
        return
    shard.offsets.drop(key.group_id, partition)
    shard.drop_if_void(key.group_id)
    shard.weigh(key.group_id)


def _replay_classic(shard: Shard, key: r.Key, value: bytes | None) -> None:
    group = shard.classic(key.group_id)
    if value is not None:
        if group is None:
            group = shard.groups[key.group_id] = ClassicGroup(key.group_id)
        group.adopt(r.decode_classic(value))
    elif group is not None:
        _cancel_classic_timers(shard, group)
        _forget(shard, key.group_id)


def _replay_consumer(shard: Shard, key: r.Key, value: bytes) -> None:
    group = shard.consumer(key.group_id)
    if group is None:
        group = shard.groups[key.group_id] = ConsumerGroup(key.group_id)
    match key.type:
        case r.CONSUMER_GROUP_TYPE:
            group.replay_epoch(r.decode_group_epoch(value))
        case r.MEMBER_TYPE:
            group.replay_member(key.name, r.decode_member(value))
        case r.TARGET_EPOCH_TYPE:
            group.replay_target_epoch(r.decode_target_epoch(value))
        case r.TARGET_MEMBER_TYPE:
            group.replay_target(key.name, r.decode_target(value))
        case r.CURRENT_TYPE:
            group.replay_current(key.name, r.decode_current(value))
        case r.REGEX_TYPE:
            group.replay_regex(key.name, r.decode_regex(value))


def _replay_consumer_tombstone(shard: Shard, key: r.Key) -> None:
    group = shard.consumer(key.group_id)
    if group is None:
        return
    match key.type:
        case r.CONSUMER_GROUP_TYPE:
            _forget(shard, key.group_id)
        case r.MEMBER_TYPE:
            group.replay_member(key.name, None)
            for kind in (TimerKind.SESSION, TimerKind.REVOKE, TimerKind.JOIN, TimerKind.SYNC):
                shard.timers.cancel(TimerKey(kind, key.group_id, key.name))
        case r.TARGET_EPOCH_TYPE:
            group.replay_target_epoch(None)
        case r.TARGET_MEMBER_TYPE:
            group.replay_target(key.name, None)
        case r.CURRENT_TYPE:
            group.replay_current(key.name, None)
        case r.REGEX_TYPE:
            group.replay_regex(key.name, None)


def _replay_share(shard: Shard, key: r.Key, value: bytes | None) -> None:
    group = shard.share(key.group_id)
    if group is None:
        if value is None:
            return
        group = shard.groups[key.group_id] = ShareGroup(key.group_id)
    match key.type:
        case s.SHARE_GROUP_TYPE if value is None:
            _forget(shard, key.group_id)
        case s.SHARE_GROUP_TYPE if value is not None:
            group.replay_epoch(s.decode_share_epoch(value))
        case s.SHARE_MEMBER_TYPE:
            group.replay_member(key.name, None if value is None else s.decode_share_member(value))
            if value is None:
                shard.timers.cancel(TimerKey(TimerKind.SESSION, key.group_id, key.name))
        case s.SHARE_TARGET_EPOCH_TYPE:
            group.replay_target_epoch(None if value is None else r.decode_target_epoch(value))
        case s.SHARE_TARGET_MEMBER_TYPE:
            group.replay_target(key.name, None if value is None else r.decode_target(value))
        case s.SHARE_CURRENT_TYPE:
            group.replay_current(key.name, None if value is None else s.decode_share_current(value))
        case s.SHARE_STATE_TYPE:
            group.replay_initialized(None if value is None else s.decode_initialized(value))


def _cancel_classic_timers(shard: Shard, group: ClassicGroup) -> None:
    """Members keep theirs: in an upgrade they live on in the group that takes this one's place."""
    for kind in (TimerKind.JOIN, TimerKind.INITIAL, TimerKind.SYNC):
        shard.timers.cancel(TimerKey(kind, group.group_id))
    for member_id in group.pending:
        shard.timers.cancel(TimerKey(TimerKind.PENDING, group.group_id, member_id))


def _forget(shard: Shard, group_id: str) -> None:
    del shard.groups[group_id]
    if shard.offsets.of(group_id):
        shard.groups[group_id] = ClassicGroup(group_id)
