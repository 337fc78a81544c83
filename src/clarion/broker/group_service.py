"""The group coordinators of this broker: who asks them what, what they are told of topics, and what they know.

Groups are spread over the partitions of `__consumer_offsets`; each partition has a coordinator of its own. What drives
them is `coordinator_runtime`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from clarion.broker.authorizer import Operation
from clarion.broker.broker import RequestContext
from clarion.broker.coordinator_runtime import CoordinatorRuntime, InternalTopic
from clarion.broker.coordinator_shard import CoordinatorShard
from clarion.broker.share_service import ShareService
from clarion.cluster import Topic
from clarion.groups import offset_requests
from clarion.groups.config import GroupConfig
from clarion.groups.coordinator import GroupCoordinator, GroupSummary
from clarion.groups.memory import Ledger
from clarion.groups.offset_requests import CommittedIn
from clarion.groups.outcome import Call, Outcome
from clarion.groups.subscriptions import resolve, resolve_again
from clarion.groups.topics import TopicInfo, TopicsView
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import NO_TOPIC_ID, TopicId, TopicPartition
from clarion.model.names import OFFSETS_TOPIC
from clarion.replication import Partition
from clarion.wire.messages.groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from clarion.world import Randomness, new_uuid

if TYPE_CHECKING:
    from clarion.broker.broker import Broker

OFFSETS_TOPIC_SETTINGS: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": "104857600",  # Kafka's offsets.topic.segment.bytes: compaction leaves the active segment alone
    "compression.type": "producer",
}
_FORGOTTEN_PER_TURN: Final = 500  # offsets of a deleted topic or group: about four milliseconds
_TELL_TOPICS_SECONDS: Final = 0.05  # a thousand topics made in a row are told to the coordinators once

OURSELVES: Final = RequestContext(0, "clarion", "127.0.0.1", 0)

Method = Callable[[GroupCoordinator, Any, Call], Outcome]
Shard = CoordinatorShard[GroupCoordinator]


class GroupService:
    def __init__(self, broker: Broker, config: GroupConfig, randomness: Randomness) -> None:
        self._broker = broker
        self._config = config
        self._ledger = Ledger(config.memory_bytes_max)
        self._overrides: dict[str, GroupConfig] = {}
        self._randomness = randomness
        self._loop = asyncio.get_running_loop()
        topic = InternalTopic(OFFSETS_TOPIC, lambda: broker.config.offsets_partitions, OFFSETS_TOPIC_SETTINGS)
        self.runtime = CoordinatorRuntime(broker, topic, self._new_coordinator, self)
        self._telling: asyncio.TimerHandle | None = None
        self._told_in_order = asyncio.Lock()
        self._view = TopicsView({})  # what the coordinators were told last
        # By shard: deleted topics whose offsets are not known to be gone yet.
        self._unforgotten: dict[Shard, set[str]] = {}
        self._forgetting = asyncio.Lock()
        self._deleting: set[str] = set()  # groups
        broker.on_topics_changed(self._on_topics_changed)
        broker.shares = self._shares = ShareService(broker)  # share groups are groups, and their state is theirs

    def start(self) -> None:
        """Begin to load the groups; until then they answer COORDINATOR_LOAD_IN_PROGRESS."""
        self.runtime.start()
        self._shares.start()

    async def stop(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
        await self._shares.stop()
        await self.runtime.stop()

    @property
    def shards(self) -> list[Shard]:
        return self.runtime.shards

    def is_loading(self, partition: Partition) -> bool:
        return any(shard.partition is partition and shard.is_loading for shard in self.shards)

    def config_of(self, group_id: str) -> GroupConfig:
        return self._overrides.get(group_id, self._config)

    def configure_group(self, group_id: str, **settings: Any) -> None:
        """Give one group settings of its own (fields of `GroupConfig`); without any it has the broker's again."""
        if settings:
            self._overrides[group_id] = replace(self._config, **settings)
        else:
            self._overrides.pop(group_id, None)

    def _new_coordinator(self) -> GroupCoordinator:
        known = self._broker.subscriptions
        return GroupCoordinator(
            self._config,
            lambda: new_uuid(self._randomness),
            self._overrides,
            self._ledger,
            lambda group_id: not known.has_loaded or known.get(group_id) is not None,
        )

    # Asking

    async def call(
        self, group_id: str, operation: Operation, method: Method, request: Any, context: RequestContext
    ) -> Any:
        """Ask the coordinator of a group for what is this operation on it. KafkaError if it cannot answer."""
        self._broker.resolver.require_group(context.principal, operation, group_id)
        if group_id in self._deleting:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{group_id} is being deleted")
        return await self._call(await self.runtime.get(group_id), method, request, context)

    async def delete_group(self, group_id: str, context: RequestContext) -> DeletableGroupResult:
        """With many offsets in several turns, in which nobody else can do anything with the group."""
        asked = DeleteGroupsRequest(groups_names=(group_id,))
        with self._only_deleter(group_id):
            self._broker.resolver.require_group(context.principal, Operation.DELETE, group_id)
            shard = await self.runtime.get(group_id)
            shard.check_loaded()
            await self._shares.delete_all(group_id, context)
            while outcome := shard.coordinator.delete_some_offsets(group_id, _FORGOTTEN_PER_TURN):
                if not (shard.is_loaded and shard.perform(outcome)):
                    raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "its offsets could not be removed")
                await self._broker.turns.pause()
            response: DeleteGroupsResponse = await self._call(shard, GroupCoordinator.delete_groups, asked, context)
            return response.results[0]

    @contextmanager
    def _only_deleter(self, group_id: str) -> Iterator[None]:
        if group_id in self._deleting:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{group_id} is being deleted")
        self._deleting.add(group_id)
        try:
            yield
        finally:
            self._deleting.discard(group_id)

    async def be_ready(self, group_id: str) -> None:
        """Returns when `call` need not wait before it asks: what is known of topics then is not out of date."""
        shard = await self.runtime.get(group_id)
        if shard in self._unforgotten:
            await self._forget(shard)

    async def call_all(self, method: Method, request: Any, context: RequestContext) -> list[Any]:
        """Ask every coordinator, for requests that are about all groups."""
        each = self._broker.turns.each
        return [await self._call(shard, method, request, context) async for shard in each(self.shards)]

    async def _call(self, shard: Shard, method: Method, request: Any, context: RequestContext) -> Any:
        shard.check_loaded()
        if shard in self._unforgotten and not await self._forget(shard):
            # The topic may have been made again, and what its predecessor's readers committed is not about it.
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "offsets of a deleted topic could not be removed yet")
        return await shard.call(method, request, context)

    # Knowing

    async def committed_in(self, shard: Shard, topics: Mapping[str, TopicId]) -> CommittedIn:
        """What the groups of a shard have committed in these topics, and no failover undoes. KafkaError if unknown."""
        found: CommittedIn = await self._call(shard, offset_requests.committed_in, topics, OURSELVES)
        return found

    def committed_offset(self, group_id: str, tp: TopicPartition) -> int | None:
        """What a group has committed, as far as it is known here and now; None also while it is being loaded."""
        shard = self.runtime.find(group_id)
        if shard is None or not shard.is_loaded or tp.topic in self._unforgotten.get(shard, ()):
            return None  # what was read so far may be further than where the group has gone back to since
        return shard.coordinator.committed_offsets(group_id).get(tp)

    def committed_partitions(self, group_id: str) -> list[TopicPartition]:
        """Where a group has committed offsets, as far as it is known here and now."""
        shard = self.runtime.find(group_id)
        return [] if shard is None else shard.coordinator.committed_partitions(group_id)

    def summaries(self) -> Iterator[GroupSummary]:
        for shard in self.shards:
            yield from shard.coordinator.summaries()

    def committed(self) -> Iterator[tuple[str, TopicPartition, int]]:
        """Every committed offset of every group."""
        for shard in self.shards:
            for summary in shard.coordinator.summaries():
                for tp, offset in shard.coordinator.committed_offsets(summary.group_id).items():
                    yield summary.group_id, tp, offset

    async def resolve_aside(self, group_id: str, regex: str | None) -> None:
        """Have a thread resolve what a heartbeat is going to need, unless that is known already."""
        shard = self.runtime.find(group_id)
        if shard is None:
            return
        for one in {*shard.coordinator.regexes(group_id), *([regex] if regex else [])}:
            if one not in self._view.resolved:
                await self._broker.turns.aside_slowly(resolve, one, self._view)

    # Topics

    async def before_load(self) -> None:
        await self._tell_topics()

    def after_load(self, shard: Shard) -> None:
        """A topic may have been deleted just before a crash, or while we were loading, and made again since.

        An offset says which topic it is of. Where it does not, what was made since the loading began is not what the
        log speaks of: nobody could commit meanwhile.
        """
        before, now = shard.taken_over_in.topics, self._broker.image.topics

        def is_there(name: str, topic_id: TopicId) -> bool:
            is_same = name in before and name in now and before[name].id == now[name].id
            return is_same and topic_id in (now[name].id, NO_TOPIC_ID)

        gone = {name for name, topic_id in shard.coordinator.committed_topics() if not is_there(name, topic_id)}
        if gone:
            self._unforgotten.setdefault(shard, set()).update(gone)
            self._broker.turns.start(self.forget_deleted(), lambda: None)

    def _on_topics_changed(self, deleted: Topic | None) -> None:
        if deleted is not None:
            for shard in self.shards:
                self._unforgotten.setdefault(shard, set()).add(deleted.name)
        if self._telling is None and self.shards:
            self._telling = self._loop.call_later(_TELL_TOPICS_SECONDS, self._tell_topics_soon)

    async def forget_deleted(self) -> None:
        """Of topics that are gone: returns when their offsets are, where that can be now."""
        for shard in list(self._unforgotten):
            await self._forget(shard)

    async def _forget(self, shard: Shard) -> bool:
        """A few offsets in each turn, when the groups are loaded. Whether nothing is left to forget."""
        async with self._forgetting:
            while shard.is_loaded and (names := frozenset(self._unforgotten.get(shard, ()))):
                there = self._broker.image.topics
                topics = {name: there[name].id if name in there else None for name in names}
                async for group_id in self._broker.turns.each(shard.coordinator.groups_with_offsets()):
                    if not await self._forget_of(shard, group_id, topics):
                        return False
                self._unforgotten[shard] -= names
                if not self._unforgotten[shard]:
                    del self._unforgotten[shard]
            return shard not in self._unforgotten

    async def _forget_of(self, shard: Shard, group_id: str, topics: Mapping[str, TopicId | None]) -> bool:
        """False if it cannot be written. Nobody commits meanwhile: `call` waits for us."""
        while outcome := shard.coordinator.delete_topic_offsets(group_id, topics, _FORGOTTEN_PER_TURN):
            if not (shard.is_loaded and shard.perform(outcome)):
                return False
            if len(outcome.records) < _FORGOTTEN_PER_TURN:
                break
            await self._broker.turns.pause()
        return True

    def _tell_topics_soon(self) -> None:
        self._telling = None
        self._broker.turns.start(self._tell_topics(), lambda: None)

    async def _tell_topics(self) -> None:
        async with self._told_in_order:
            topics = {one.name: TopicInfo(one.id, one.partition_count) for one in self._broker.image.topics.values()}
            view = TopicsView(topics, before=self._view)
            if view.resolved_before:
                await self._broker.turns.aside_slowly(resolve_again, view)
            self._view = view
            for shard in self.shards:
                shard.coordinator.on_topics_changed(view)
