"""Queues of this broker: share groups' state, the share-partitions that it leads, and their members' sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from clarion.broker.authorizer import ANONYMOUS
from clarion.broker.broker import RequestContext
from clarion.broker.coordinator_shard import CoordinatorShard
from clarion.broker.kafka_calls import KafkaCalls
from clarion.broker.queue_rules import identity_of, rules_of
from clarion.broker.share_leader import ShareLeader
from clarion.broker.share_leaders import ShareLeaders
from clarion.broker.share_states import ShareStates
from clarion.cluster import Topic
from clarion.groups import share_requests
from clarion.groups.coordinator import GroupCoordinator
from clarion.groups.share_group import ShareGroup
from clarion.groups.share_records import InitializedTopic
from clarion.groups.share_requests import Begun, Named
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import TopicId
from clarion.queues.sessions import ShareSessions
from clarion.queues.state_records import ShareKey
from clarion.wire import apis
from clarion.wire.messages.share_groups import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from clarion.world import event_log
from clarion.world.tasks import start_task

if TYPE_CHECKING:
    from clarion.broker.broker import Broker

log = event_log("broker")

_BEGIN_SECONDS: Final = 2.0  # so long a heartbeat waits for share state to begin
_LOOK_SECONDS: Final = 1.0  # so long a fetch waits for a look at what is known
_TRIES: Final = 5
_OURSELVES: Final = RequestContext(0, "clarion", "127.0.0.1", 0)

Shard = CoordinatorShard[GroupCoordinator]


class ShareService:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.states = ShareStates(broker)
        self.leaders = ShareLeaders(broker, self.states)
        self.sessions = ShareSessions(broker.config.groups.share_sessions_max)
        # By group: one at a time has share state begin or end. As long as somebody has the lock or waits for it.
        self._beginning: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._begun_by: dict[str, asyncio.Task[bool]] = {}  # by group
        self._telling: set[ShareKey] = set()  # that they are not there
        broker.on_topics_changed(self._on_topics_changed)

    def start(self) -> None:
        self.states.start()

    async def stop(self) -> None:
        for task in list(self._begun_by.values()):
            task.cancel()
        self.leaders.stop()
        await self.states.stop()

    # Share state of groups

    async def begin_missing(self, group_id: str, context: RequestContext) -> bool:
        """Have the share state of a group's partitions begin where it has not; whether something has.

        All members wait for the same beginning, and not for long: it goes on without them, where it needs a share
        coordinator that cannot be asked now, and their next heartbeats find it done.

        Nothing begins for a subscription that is paused: perhaps it is being deleted, and what the group would know of
        by then would be gone.
        """
        if rules_of(self._broker, group_id).is_paused:
            return False
        shard = self._broker.groups.runtime.find(group_id)
        if shard is None or not shard.is_loaded or not share_requests.uninitialized(shard.coordinator, group_id):
            return False
        task = self._begun_by.get(group_id)
        if task is None:
            beginning = self._begin(shard, group_id, context)
            task = self._begun_by[group_id] = start_task(beginning, "beginning of share state")
            task.add_done_callback(lambda _: self._begun_by.pop(group_id))
        done, _ = await asyncio.wait([task], timeout=_BEGIN_SECONDS)
        return bool(done) and task.result()

    async def _begin(self, shard: Shard, group_id: str, context: RequestContext) -> bool:
        try:
            async with self._alone(group_id):
                missing = share_requests.uninitialized(shard.coordinator, group_id)
                if missing:
                    epoch = share_requests.share_group(shard.coordinator, group_id).epoch
                    await self._initialize(group_id, epoch, missing)
                    await shard.call(share_requests.begin, Begun(group_id, missing), context)
        except KafkaError as error:  # the members are in all the same, and the next heartbeat tries again
            log.warning("share_state_not_begun", group=group_id, reason=error.message or error.code.name)
            return False
        return True

    def _alone(self, group_id: str) -> asyncio.Lock:
        return self._beginning.setdefault(group_id, asyncio.Lock())

    async def _initialize(self, group_id: str, epoch: int, topics: Named) -> None:
        """Where a state is known already, a broker ended between these two steps: it stays as it is."""
        identity = identity_of(self._broker, group_id)
        for topic_id, topic in topics.items():
            for index in sorted(topic.partitions):
                key = ShareKey(group_id, topic_id, index)
                if not (await self.states.summary(key)).is_known:
                    if rules_of(self._broker, group_id).is_paused:
                        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{group_id} was paused meanwhile")
                    await self.states.initialize(key, epoch, subscription_ms=identity)

    def tell_not_begun(self, key: ShareKey) -> None:
        """A member has this share-partition to read, and there is no state. Its group could read nothing there, ever:
        it has to hear of it, and has the state begin anew with its next heartbeat."""
        if key not in self._telling:
            self._telling.add(key)
            self._broker.turns.start(self._tell_not_begun(key), lambda: None)

    async def _tell_not_begun(self, key: ShareKey) -> None:
        try:
            if self._broker.groups.runtime.find(key.group_id) is not None:
                await self._note_not_begun(key)
            else:
                await self._ask_for(key)
        except KafkaError as error:  # the next fetch says it again
            log.warning("share_state_missing", share=str(key), reason=error.message or error.code.name)
        finally:
            self._telling.discard(key)

    async def _note_not_begun(self, key: ShareKey) -> None:
        shard = await self._broker.groups.runtime.get(key.group_id)
        async with self._alone(key.group_id):
            group = share_requests.find(shard.coordinator, key.group_id)
            begun = None if group is None else group.initialized.get(key.topic_id)
            if begun is None or key.partition not in begun.partitions or (await self.states.summary(key)).is_known:
                return
            log.warning("share_state_missing", share=str(key), consequence="it begins anew")
            missing = InitializedTopic(begun.name, frozenset({key.partition}))
            await shard.call(
                share_requests.begin, Begun(key.group_id, {key.topic_id: missing}, is_over=True), _OURSELVES
            )

    async def _ask_for(self, key: ShareKey) -> None:
        """The group's coordinator finds it missing too when it is asked where the group is."""
        topic = self._broker.image.topics_by_id.get(key.topic_id)
        if topic is None:
            return
        wanted = DescribeShareGroupOffsetsRequestTopic(topic_name=topic.name, partitions=(key.partition,))
        group = DescribeShareGroupOffsetsRequestGroup(group_id=key.group_id, topics=(wanted,))
        calls = KafkaCalls(self._broker)
        try:
            asked = DescribeShareGroupOffsetsRequest(groups=(group,))
            await calls.of_group(key.group_id, apis.DESCRIBE_SHARE_GROUP_OFFSETS, asked, ANONYMOUS)
        finally:
            calls.close()

    async def alter(self, group_id: str, topic: Topic, offsets: dict[int, int], context: RequestContext) -> None:
        """Begin anew at these offsets; leaders that have the state as it was are fenced.

        The state first, and then the group: a group that knows of a state which is not there could read nothing, ever.
        """
        shard, identity = await self._broker.groups.runtime.get(group_id), identity_of(self._broker, group_id)
        async with self._alone(group_id):
            group = self.empty_group(group_id)
            for index, offset in offsets.items():
                key = ShareKey(group_id, topic.id, index)
                known = await self.states.summary(key)
                epoch = max(group.epoch, known.state_epoch + 1)
                await self.states.initialize(key, epoch, offset, subscription_ms=identity)
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
                await self.end(ShareKey(group_id, topic_id, index))

    async def end(self, key: ShareKey) -> None:
        """Of what is known now: should the deletion come late, it does not harm a group that has begun anew."""
        self.leaders.forget(key)
        for _ in range(_TRIES):
            known = await self.states.summary(key)
            try:
                if known.is_known:
                    await self.states.delete(key, known.version)
                return
            except KafkaError as error:
                if error.code is not ErrorCode.FENCED_STATE_EPOCH:
                    raise  # its leader, on another broker, has just written that a lock has ended
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{key} is still in use")

    async def delete_all(self, group_id: str, context: RequestContext) -> None:
        """Of a group that is about to be deleted."""
        shard = await self._broker.groups.runtime.get(group_id)
        group = share_requests.find(shard.coordinator, group_id)
        if group is not None and group.is_empty:
            for topic_id, topic in list(group.initialized.items()):
                await self.delete(group_id, topic_id, topic, context)

    async def renew(self, leaders: Iterable[ShareLeader], seconds: float = 0.0) -> None:
        """Somebody begins to read: what this broker knows of these share-partitions may be another's by now.

        Who alters or deletes a group's offsets does so where the group is coordinated. Leaders on other brokers hear
        of it when they write; one that has nothing to deliver writes nothing, and looks here, unless what it knows was
        confirmed within so many seconds. The group was empty then, so that whoever reads now has begun since.
        """
        if self._broker.node is None:
            return  # they were told (`leaders.forget`)
        before = asyncio.get_running_loop().time() - seconds
        quiet = [leader for leader in leaders if leader.saved() is None and leader.confirmed_at <= before]
        as_known = await asyncio.gather(*(self._is_as_known(leader) for leader in quiet))  # a second for all of them
        for leader, is_as_known in zip(quiet, as_known, strict=True):
            leader.confirm()
            if not is_as_known and self.leaders.known(*leader.key) is leader:
                self.leaders.forget(leader.key)

    async def _is_as_known(self, leader: ShareLeader) -> bool:
        version = leader.state_version
        try:
            known = await self.states.summary(leader.key, _LOOK_SECONDS)
        except KafkaError:
            return bool(leader.share.open_count)  # nobody holds anything that would be lost by loading it anew
        return leader.state_version != version or leader.saved() is not None or known.version == version

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
            self.states.forget_later(self.states.keys_of_topic(deleted.id))
