"""Where queues are, for whoever describes one or peeks into it: by their leader, or by what it has written down.

A queue that is only pulled from has no group that would know its positions, and its share-partition is loaded where it
is led, if somebody has read since that broker has begun to lead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from clarion.broker.queue_rules import identity_of
from clarion.model.errors import KafkaError
from clarion.model.ids import TopicPartition
from clarion.model.names import SHARE_STATE_TOPIC
from clarion.queues.state_records import UNINITIALIZED, ShareKey

if TYPE_CHECKING:
    from clarion.broker.broker import Broker
    from clarion.broker.share_leader import ShareLeader

_PATIENCE_SECONDS: Final = 1.0  # for a share coordinator that is asked what it knows


class QueueLook(NamedTuple):
    """`position`: the first message that is not done, and how many behind it are; UNINITIALIZED: nobody knows."""

    position: int = UNINITIALIZED
    done: int = 0
    leader: ShareLeader | None = None  # if it is here


NOTHING_KNOWN: Final = QueueLook()


async def look_at_queue(
    broker: Broker, group_id: str, places: Iterable[TopicPartition]
) -> dict[TopicPartition, QueueLook]:
    keys = {place: ShareKey(group_id, broker.image.topics[place.topic].id, place.partition) for place in places}
    known = [broker.shares.leaders.known(*key) for key in keys.values()]
    await broker.shares.renew([leader for leader in known if leader is not None])  # others may have moved it since
    found = await asyncio.gather(*(_look(broker, key) for key in keys.values()))
    return dict(zip(keys, found, strict=True))


async def _look(broker: Broker, key: ShareKey) -> QueueLook:
    leader = broker.shares.leaders.known(*key)
    if leader is None:
        if broker.image.topic(SHARE_STATE_TOPIC) is None:
            return NOTHING_KNOWN  # nobody has ever read from a queue
        try:
            state = await broker.shares.states.summary(key, _PATIENCE_SECONDS)
        except KafkaError:
            return NOTHING_KNOWN
        if state.start_offset == UNINITIALIZED or state.subscription_ms not in (0, identity_of(broker, key.group_id)):
            return NOTHING_KNOWN  # where it begins is for its first reader to decide
        leader = await _load(broker, key)
        if leader is None:
            return QueueLook(state.start_offset, max(state.done_count, 0))
    return QueueLook(leader.share.start_offset, leader.share.done_count, leader)


async def _load(broker: Broker, key: ShareKey) -> ShareLeader | None:
    partition = broker.partitions.find(key.topic_id, key.partition)
    if partition is not None and partition.is_leader:
        with suppress(KafkaError):  # it is led elsewhere by now
            return await broker.shares.leaders.get(key.group_id, key.topic_id, partition)
    return None
