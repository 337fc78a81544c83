"""The broker's state as handlers see it, and the changes that more than one handler makes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from clarion.broker.authorizer import ANONYMOUS, Principal
from clarion.broker.auto_creation import AutoCreation
from clarion.broker.config import BrokerConfig
from clarion.broker.dynamic_settings import DynamicSettings
from clarion.broker.endpoint_health import EndpointHealths
from clarion.broker.fetch_sessions import FetchSessions
from clarion.broker.metadata_cache import MetadataCache
from clarion.broker.partitions import MIN_IN_SYNC, Partitions
from clarion.broker.preparing import Preparing
from clarion.broker.resolver import Resolver
from clarion.broker.session import Sessions
from clarion.broker.threads import in_thread
from clarion.broker.turns import Turns
from clarion.broker.waiting import WaitingReplies
from clarion.cluster import ClusterImage, Endpoint, ProducerIds, SettingsRegistry, Topic, TopicRegistry
from clarion.cluster.changes import despite_others
from clarion.cluster.placement import Replicas
from clarion.cluster.schema import NO_LEADER
from clarion.log.ballast import Ballast
from clarion.log.folder import TopicIdMismatch
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import TopicId
from clarion.model.names import COORDINATED_TOPICS, INTERNAL_TOPICS, METADATA_TOPIC
from clarion.model.topic_settings import parse
from clarion.replication import Partition
from clarion.replication.catch_up import Throttle
from clarion.world import NO_ROOM, Clock, Randomness, event_log, new_session_id

if TYPE_CHECKING:
    from clarion.broker.checkpoint_writer import CheckpointWriter
    from clarion.broker.cleaning import Cleaner
    from clarion.broker.cluster_node import ClusterNode
    from clarion.broker.group_service import GroupService
    from clarion.broker.queues import Queues
    from clarion.broker.retention_needs import RetentionNeeds
    from clarion.broker.share_service import ShareService
    from clarion.broker.subscriptions import Subscriptions
    from clarion.log.clock_trust import ClockTrust

log = event_log("broker")

# After these nothing has been changed, and files that were made for it are nobody's. (After an error of the store
# that is not known, and the next start finds out.)
REFUSED: Final = (OSError, KafkaError)

Result = TypeVar("Result")
Change = Callable[[Topic], Mapping[str, str]]  # from a topic to the settings it shall have, or a KafkaError


class RequestContext(NamedTuple):
    """Who asks, and how."""

    version: int
    client_id: str
    host: str
    listener: int
    principal: Principal = ANONYMOUS
    has_left: Callable[[], bool] = lambda: False  # whether the client has gone: nobody will hear the answer


class Broker:
    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        randomness: Randomness,
        registry: TopicRegistry,
        settings: SettingsRegistry,
        producer_ids: ProducerIds,
        partitions: Partitions,
        dynamic: DynamicSettings,
    ) -> None:
        self.dynamic = dynamic
        self.config = dynamic.config()
        self.clock = clock
        self.randomness = randomness
        self.registry = registry
        self.settings = settings
        self._producer_ids = producer_ids
        self.partitions = partitions
        self.resolver = Resolver(registry, partitions)
        self.node_id = config.node_id
        self.node: ClusterNode | None = None  # where there are other brokers
        # Whether a broker with this id, epoch and secret is in the cluster; None without one, where nobody is.
        self.is_broker: Callable[[int, int, str], bool] | None = None
        self.groups: GroupService  # set by the server, which knows both
        self.shares: ShareService  # by the groups
        self.queues: Queues  # by the server, as are those below
        self.subscriptions: Subscriptions  # by the server, as are those below
        self.cleaner: Cleaner  # likewise
        self.needs: RetentionNeeds  # by the housekeeping
        self.checkpoints: CheckpointWriter  # likewise
        self.clock_trust: ClockTrust  # likewise
        self.ballast: Ballast  # likewise
        # Topics that only the broker itself makes and writes.
        self.closed_to_clients = INTERNAL_TOPICS | {METADATA_TOPIC}
        self.waiting_produces = WaitingReplies()
        self.waiting_coordinators = WaitingReplies()
        self.preparing = Preparing()
        self.turns = Turns(clock)
        self.clients = Sessions()
        self.sessions = FetchSessions(config.limits.fetch_sessions_max, lambda: new_session_id(randomness))
        self.replica_throttle = Throttle()  # of followers that are being filled from here
        # Each may hold the unpacked batch and a thread for a tenth of a second: those who ask wait in line for two.
        self.time_searches = asyncio.Semaphore(2)
        self.auto_creation = AutoCreation(
            config.limits.auto_created_per_request_max, config.limits.auto_created_per_second_max
        )
        self.metadata = MetadataCache()
        self.endpoints = EndpointHealths()  # of push subscriptions
        self._changing = asyncio.Lock()  # one change of the topics at a time; reading needs no lock
        self._listeners_of_change: list[Callable[[Topic | None], None]] = []

    @property
    def controller_id(self) -> int:
        """The broker that decides for all: without a cluster, the one that there is. -1 while it is not known."""
        if self.node is None:
            return self.node_id
        image = self.image
        return image.controller if image.controller in image.brokers else NO_LEADER

    @property
    def own_endpoints(self) -> tuple[Endpoint, ...]:
        """Where clients are told to find this broker: nowhere while it is not registered, its lease having ended."""
        registered = self.image.brokers.get(self.node_id)
        return () if registered is None else registered.endpoints

    @property
    def image(self) -> ClusterImage:
        """The cluster as this broker knows it now. Whoever waits in between and asks again may get another one."""
        return self.registry.image

    def arrival_ms(self) -> int:
        """When what arrives now does: by the wall clock, or by what it should say while it is known to be behind."""
        return self.clock.now_ms() + self.clock_trust.late_by_ms

    # Topics

    @property
    def changing(self) -> asyncio.Lock:
        """Held while a topic changes: whoever holds it finds all of them as they are."""
        return self._changing

    def on_topics_changed(self, callback: Callable[[Topic | None], None]) -> None:
        """Called after every change, with the topic if it was deleted."""
        self._listeners_of_change.append(callback)

    async def create_topic(
        self,
        name: str,
        partition_count: int,
        overrides: Mapping[str, str],
        replication_factor: int | None = None,
        assignments: Sequence[Replicas] | None = None,
    ) -> Topic:
        """`replication_factor`: None if nobody asked for one. `assignments`: each partition's replicas, if told."""
        async with self._changing:
            draft = self.registry.draft(name, partition_count, overrides, replication_factor, assignments)
            parse(overrides, self.partitions.defaults)
            if self.node is not None:
                topic = await self.registry.add(draft)
                await self.node.settled()
                log.info("topic_created", topic=name, partitions=partition_count, id=topic.id)
                return topic
            try:
                made = await self._make(draft)
                # Last, since a full disk would not let it be taken back. Files without a topic are nobody's.
                topic = await self.registry.add(draft)
            except REFUSED:
                await self._take_back(draft, 0)
                raise
            self.partitions.adopt(topic, made)
        log.info("topic_created", topic=name, partitions=partition_count, id=topic.id)
        self.tell_change(topic.name)
        return topic

    async def delete_topic(self, name: str, topic_id: TopicId | None = None) -> Topic:
        """With `topic_id`, only that topic, not one made under its name meanwhile."""
        async with self._changing:
            if name in COORDINATED_TOPICS:
                raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{name} is internal and cannot be deleted")
            if topic_id is not None and self.image.topic_by_id(topic_id) is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with the id {topic_id}")
            topic = await self.making_room(lambda: self.registry.delete(name))
            if self.node is not None:
                await self.node.settled()
                log.info("topic_deleted", topic=name, id=topic.id)
                return topic
            retired = self.partitions.retire(topic.id)
            self.tell_change(topic.name, deleted=topic)
            await self.groups.forget_deleted()  # before another one can be made under this name
            # What is under way in threads ends first: it would write into a folder that may soon be another topic's.
            await self.partitions.settle(retired)
            await self.cleaner.settle(retired)
            try:
                await in_thread(lambda: self.partitions.remove_files(retired))
                await self.registry.forget_deleted([topic.id])
            except OSError as error:
                # The topic is gone for good all the same. Its id stays noted: the next start removes what is left.
                log.error("files_of_deleted_stay", topic=name, id=topic.id, reason=str(error))
        log.info("topic_deleted", topic=name, id=topic.id)
        return topic

    async def making_room(self, work: Callable[[], Awaitable[Result]]) -> Result:
        """Of work that ends with more room on the disk: it is tried again without the ballast if it finds none."""
        try:
            return await work()
        except OSError as error:
            if error.errno not in NO_ROOM or not await in_thread(self.ballast.give_up):
                raise
        return await work()

    async def grow_topic(self, name: str, partition_count: int, assignments: Sequence[Replicas] | None = None) -> Topic:
        async with self._changing:
            first = self.registry.known(name).partition_count
            if name in COORDINATED_TOPICS:
                raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"{name} keeps its number of partitions for life")
            if self.node is not None:
                await despite_others(
                    lambda: self.registry.grow(self.registry.draft_grown(name, partition_count, assignments))
                )
                topic = self.registry.known(name)
                await self.node.settled()
                log.info("topic_grown", topic=name, partitions=partition_count)
                return topic
            draft = self.registry.draft_grown(name, partition_count, assignments)
            try:
                made = await self._make(draft, first)
                topic = await self.registry.grow(draft)
            except REFUSED:
                await self._take_back(draft, first)
                raise
            self.partitions.adopt(topic, made)
        log.info("topic_grown", topic=name, partitions=partition_count)
        self.tell_change(topic.name)
        return topic

    async def _make(self, draft: Topic, first: int = 0) -> list[Partition]:
        settings = self.partitions.settings_of(draft)
        try:
            deleted = self.registry.being_deleted
            indexes = range(first, draft.partition_count)
            return await in_thread(lambda: self.partitions.make(draft, settings, indexes, deleted=deleted))
        except TopicIdMismatch as error:
            # What another topic of this name has left, and what could not be removed just now.
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    async def _take_back(self, draft: Topic, first: int) -> None:
        """What was made of it before it was refused. Where that cannot be, the next start removes it."""
        await in_thread(lambda: self.partitions.remove_strays(draft, range(first, draft.partition_count)))
        try:
            await self.registry.forget_unclaimed([draft.id])
        except REFUSED as error:
            log.warning("partitions_stay_noted", topic=draft.name, id=draft.id, reason=str(error))

    async def configure_topic(self, name: str, change: Change) -> Topic:
        """Read, change and write a topic's settings as one step, so that of two changes at once none is lost."""

        async def attempt() -> Topic:
            before = self.registry.known(name)
            overrides = change(before)
            parse(overrides, self.partitions.defaults)
            forgets = overrides.get(MIN_IN_SYNC) != before.overrides.get(MIN_IN_SYNC)
            return await self.registry.configure(name, overrides, forgets_eligible=forgets)

        async with self._changing:
            topic = await despite_others(attempt)
            self.partitions.configure(topic, self.partitions.settings_of(topic))
        log.info("topic_configured", topic=name, settings=dict(topic.overrides))
        self.tell_change(topic.name)
        return topic

    async def new_producer_id(self) -> int:
        """Now and then this writes to the store; a change of the topics does not hold it up."""
        fresh = self._producer_ids.at_hand()
        return await self._producer_ids.next() if fresh is None else fresh

    def tell_change(self, name: str, deleted: Topic | None = None) -> None:
        self.metadata.forget(name)
        self.resolver.change()  # what was understood of topics may be wrong now
        for callback in self._listeners_of_change:
            callback(deleted)
