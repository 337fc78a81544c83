"""The share-partitions of this broker: those whose data it leads, loaded when they are first asked for.

get(group, topic, partition) → loaded from `share_states` in this leader's epoch → `share_leader`
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from clarion.broker.apis.k02_list_offsets import search_time
from clarion.broker.queue_rules import QueueRules, identity_of, rules_of
from clarion.broker.share_leader import ShareLeader, for_clients
from clarion.broker.share_states import ShareStates
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.group_settings import reset_duration_ms
from clarion.model.ids import TopicId
from clarion.queues.state_coordinator import StateReply
from clarion.queues.state_records import UNINITIALIZED, ShareKey
from clarion.replication import Partition
from clarion.world import event_log

if TYPE_CHECKING:
    from clarion.broker.broker import Broker

log = event_log("broker")

_STOP_SECONDS: Final = 2.0  # so long a stop waits for what is to be written down before it
_LEADERS_MAX: Final = 100_000  # share-partitions in memory; each takes a few kilobytes while it is idle


class ShareLeaders:
    def __init__(self, broker: Broker, states: ShareStates) -> None:
        self._broker = broker
        self._states = states
        self._leaders: dict[ShareKey, ShareLeader] = {}
        self._locks: WeakValueDictionary[ShareKey, asyncio.Lock] = WeakValueDictionary()  # as long as somebody loads
        self._loading: set[ShareKey] = set()  # and their state is still what it was when they were read

    def __len__(self) -> int:
        return len(self._leaders)

    async def get(self, group_id: str, topic_id: TopicId, partition: Partition) -> ShareLeader:
        key = ShareKey(group_id, topic_id, partition.tp.partition)
        known = self._leaders.get(key)
        if known is not None and known.is_current and known.partition is partition:
            return known
        async with self._locks.setdefault(key, asyncio.Lock()):
            known = self._leaders.get(key)
            if known is None or not known.is_current or known.partition is not partition:
                known = await self._load(key, partition)
            return known

    def known(self, group_id: str, topic_id: TopicId, index: int) -> ShareLeader | None:
        """One that is loaded: whoever has nothing of it need not load it."""
        leader = self._leaders.get(ShareKey(group_id, topic_id, index))
        return leader if leader is not None and leader.is_current else None

    def follow_rules(self, group_id: str) -> None:
        """A subscription has changed: what was paused may go on, and whoever waits hears of it."""
        rules = rules_of(self._broker, group_id)
        for leader in [leader for leader in self._leaders.values() if leader.key.group_id == group_id]:
            if leader.rules.identity not in (0, rules.identity):
                self.forget(leader.key)  # that one is deleted: what is known of its messages is not about the next
            else:
                leader.use(rules)
                leader.changed()

    def forget(self, key: ShareKey) -> None:
        """Its state is another's from now on, or nobody's."""
        self._loading.discard(key)
        leader = self._leaders.pop(key, None)
        if leader is not None:
            leader.stop()

    def _forget_led_elsewhere(self) -> None:
        """And those that have ended; nobody has asked for them since."""
        for key in [key for key, leader in self._leaders.items() if not leader.is_current]:
            self.forget(key)

    def forget_topic(self, topic_id: TopicId) -> None:
        for key in [key for key in (*self._leaders, *self._loading) if key.topic_id == topic_id]:
            self.forget(key)

    async def follow_clock(self) -> None:
        """Before a stop: delays go on for as long as they have left, also if the clock was set a moment ago."""
        current = [leader for leader in self._leaders.values() if leader.is_current]
        for leader in current:
            leader.follow_clock()
        saved = [one for leader in current if (one := leader.saved()) is not None]
        if saved:
            await asyncio.wait(saved, timeout=_STOP_SECONDS)

    def stop(self) -> None:
        for key in list(self._leaders):
            self.forget(key)

    async def _load(self, key: ShareKey, partition: Partition) -> ShareLeader:
        self.forget(key)
        if len(self._leaders) >= _LEADERS_MAX:
            self._forget_led_elsewhere()
        if len(self._leaders) >= _LEADERS_MAX:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "too many share-partitions are in use")
        if not self._broker.subscriptions.has_loaded:  # by which rules what is due is given up is not known
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the subscriptions have not been read yet")
        if not partition.is_watermark_current:  # records that are beyond it would seem to be lost: no dead letters
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "how far its log is committed is not known yet")
        self._loading.add(key)
        epoch = partition.leader_epoch
        try:
            state = await self._own_state(key, partition)
            before, start = rules_of(self._broker, key.group_id), state.start_offset
            if start == UNINITIALIZED:
                start = await self._first_offset(key, partition, before)
            rules = rules_of(self._broker, key.group_id)  # as they are now
            is_same = rules.identity == before.identity and state.subscription_ms in (0, rules.identity)
            if key not in self._loading or not is_same:
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "its state began anew while it was read")
            if not partition.is_leader or partition.leader_epoch != epoch:
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "another broker may have led, and written it")
        except KafkaError as error:
            if error.code is ErrorCode.INVALID_REQUEST:  # it was not initialized
                self._broker.shares.tell_not_begun(key)
            raise for_clients(error) from error
        finally:
            self._loading.discard(key)
        leader = ShareLeader(self._broker, self._states, key, partition, rules, start, state)
        share = leader.share
        if state.start_offset == UNINITIALIZED:
            share.begin()  # where a group begins is decided once, and not anew after the next restart
        leader.changed()
        self._leaders[key] = leader
        log.info("share_partition_loaded", share=str(key), start=share.start_offset, next=share.next_offset)
        return leader

    async def _first_offset(self, key: ShareKey, partition: Partition, rules: QueueRules) -> int:
        begins = None if rules.subscription is None else rules.subscription.begins
        if begins is None:
            return await first_offset(self._broker, partition, rules.start)
        at = begins.at(key.topic_id, key.partition)
        return min(max(at, partition.start_offset), partition.high_watermark.offset)

    async def _own_state(self, key: ShareKey, partition: Partition) -> StateReply:
        """Not what a subscription has left that had the name before: another one begins as if nobody had read.

        Which of the two is gone, the catalog says when it is asked after the state was read: whom it knows then is
        there, and whoever the state is of was made before; so it is a deleted one, unless it is the same.
        """
        state = await self._read_state(key, partition)
        if state.subscription_ms in (0, identity_of(self._broker, key.group_id)):
            return state
        if not await self._broker.subscriptions.look_again():
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the catalog is away, and knows whose state it is")
        identity = identity_of(self._broker, key.group_id)
        if state.subscription_ms == identity:
            return state
        log.info("share_state_of_deleted_subscription", share=str(key), of=state.subscription_ms, now=identity)
        await self._states.delete(key, state.version)
        if identity:  # else it is for the group to begin: who asks may be a consumer that has not heard yet
            await self._states.initialize(key, state.state_epoch + 1, subscription_ms=identity)
        return await self._read_state(key, partition)

    async def _read_state(self, key: ShareKey, partition: Partition) -> StateReply:
        """A power cut may have taken messages whose acknowledgements are on disk, or an older log was put back. Others
        come in their places: the state begins anew at the end, or what is written next would never be delivered."""
        state = await self._states.read(key, partition.leader_epoch)
        end = partition.next_offset
        if state.start_offset <= end and all(batch.last < end for batch in state.batches):
            return state
        begins = min(state.start_offset, end)
        log.warning("queue_ahead_of_log", share=str(key), was_at=state.start_offset, log_end=end, begins_anew_at=begins)
        epoch, identity = state.state_epoch + 1, state.subscription_ms
        await self._states.initialize(key, epoch, begins, subscription_ms=identity)
        return await self._states.read(key, partition.leader_epoch)


async def first_offset(broker: Broker, partition: Partition, start: str) -> int:
    """Where a share group begins in a partition it has not read yet: `share.auto.offset.reset`."""
    match start:
        case "earliest":
            return partition.start_offset
        case "latest":
            return partition.high_watermark.offset
        case by_duration:
            since_ms = broker.clock_trust.early_ms() - reset_duration_ms(by_duration)
            found = await search_time(broker, partition, since_ms)
            return partition.high_watermark.offset if found is None or found[1] < 0 else found[1]
