"""Queues of this broker: share groups' state, the share-partitions that it leads, and their members' sessions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from clarion.broker.broker import RequestContext
from clarion.broker.share_leaders import ShareLeaders
from clarion.broker.share_states import ShareStates
from clarion.cluster import Topic
from clarion.groups import share_requests
from clarion.groups.share_group import ShareGroup
from clarion.groups.share_records import InitializedTopic
from clarion.groups.share_requests import Begun, Named
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import TopicId
from clarion.queues.sessions import ShareSessions
from clarion.queues.state_records import ShareKey
from clarion.world import event_log

if TYPE_CHECKING:
    from clarion.broker.broker import Broker

log = event_log("broker")


class ShareService:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.states = ShareStates(broker)
        self.leaders = ShareLeaders(broker, self.states)
        self.sessions = ShareSessions(broker.config.groups.share_sessions_max)
        # By group: one at a time has share state begin or end. As long as somebody has the lock or waits for it.
        self._beginning: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        broker.on_topics_changed(self._on_topics_changed)

    def start(self) -> None:
        self.states.start()

    async def stop(self) -> None:
        self.leaders.stop()
        await self.states.stop()

    # Share state of groups

    async def begin_missing(self, group_id: str, context: RequestContext) -> bool:
        """Have the share state of a group's partitions begin where it has not; whether something has."""
        shard = self._broker.groups.runtime.find(group_id)
        if shard is None or not shard.is_loaded or not share_requests.uninitialized(shard.coordinator, group_id):
            return False
        async with self._alone(group_id):
            missing = share_requests.uninitialized(shard.coordinator, group_id)
            if missing:
                epoch = share_requests.share_group(shard.coordinator, group_id).epoch
                await self._initialize(group_id, epoch, missing)
                await shard.call(share_requests.begin, Begun(group_id, missing), context)
        return True

    def _alone(self, group_id: str) -> asyncio.Lock:
        return self._beginning.setdefault(group_id, asyncio.Lock())

    async def _initialize(self, group_id: str, epoch: int, topics: Named) -> None:
        """Where a state is known already, a broker ended between these two steps: it stays as it is."""
        for topic_id, topic in topics.items():
            for index in sorted(topic.partitions):
                key = ShareKey(group_id, topic_id, index)
                if not (await self.states.summary(key)).is_known:
                    await self.states.initialize(key, epoch)

    async def alter(self, group_id: str, topic: Topic, offsets: dict[int, int], context: RequestContext) -> None:
        """Begin anew at these offsets; leaders that have the state as it was are fenced.

        The state first, and then the group: a group that knows of a state which is not there could read nothing, ever.
        """
        shard = await self._broker.groups.runtime.get(group_id)
        async with self._alone(group_id):
            group = self.empty_group(group_id)
            for index, offset in offsets.items():
                key = ShareKey(group_id, topic.id, index)
                known = await self.states.summary(key)
                await self.states.initialize(key, max(group.epoch, known.state_epoch + 1), offset)
                self.leaders.forget(key)
            partitions = InitializedTopic(topic.name, frozenset(offsets))
            await shard.call(share_requests.begin, Begun(group_id, {topic.id: partitions}), context)

    async def delete(self, group_id: str, topic_id: TopicId, topic: InitializedTopic, context: RequestContext) -> None:
        """A topic of a group: its positions are gone, and whoever subscribes again begins as if it were new.

        The group first, and then the state, for the same reason.
        """
        shard = await self._broker.groups.runtime.get(group_id)
        async with self._alone(group_id):
            self.empty_group(group_id)
            await shard.call(share_requests.begin, Begun(group_id, {topic_id: topic}, is_over=True), context)
            for index in sorted(topic.partitions):
                key = ShareKey(group_id, topic_id, index)
                self.leaders.forget(key)
                await self.states.delete(key)

    async def delete_all(self, group_id: str, context: RequestContext) -> None:
        """Of a group that is about to be deleted."""
        shard = await self._broker.groups.runtime.get(group_id)
        group = share_requests.find(shard.coordinator, group_id)
        if group is not None and group.is_empty:
            for topic_id, topic in list(group.initialized.items()):
                await self.delete(group_id, topic_id, topic, context)

    def group(self, group_id: str) -> ShareGroup:
        shard = self._broker.groups.runtime.find(group_id)
        if shard is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"another broker coordinates {group_id!r}")
        shard.check_loaded()
        return share_requests.share_group(shard.coordinator, group_id)

    def empty_group(self, group_id: str) -> ShareGroup:
        group = self.group(group_id)
        if not group.is_empty:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"{group_id} has members")
        return group

    # Topics

    def _on_topics_changed(self, deleted: Topic | None) -> None:
        if deleted is not None:
            self.leaders.forget_topic(deleted.id)
            keys = self.states.keys_of_topic(deleted.id)
            if keys:
                self._broker.turns.start(self._forget(keys), lambda: None)

    async def _forget(self, keys: list[ShareKey]) -> None:
        for key in keys:
            try:
                await self.states.delete(key)
            except KafkaError as error:  # it stays, and is nobody's: ids are never used again
                log.warning("share_state_stays", share=str(key), reason=error.message or error.code.name)
