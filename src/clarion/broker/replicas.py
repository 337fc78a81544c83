"""What this broker holds becomes what the cluster wants it to hold: replicas are made, led, followed, removed.

Roles change at once, in the turn in which an image says so: who no longer leads must not write one batch more. Files
follow in a task of their own, one image at a time; a replica that is not there yet takes its role when it is made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol

from clarion.broker.outdated import OutdatedReplicas
from clarion.broker.threads import in_thread
from clarion.cluster import ClusterImage, PartitionState, Topic
from clarion.cluster.image import EMPTY
from clarion.cluster.schema import NO_EPOCH, NO_LEADER
from clarion.log.folder import TopicIdMismatch
from clarion.model.ids import TopicId, TopicPartition
from clarion.model.names import COORDINATED_TOPICS, OFFSETS_TOPIC
from clarion.replication import Partition
from clarion.world import event_log
from clarion.world.tasks import start_task

if TYPE_CHECKING:
    from clarion.broker.broker import Broker
    from clarion.broker.coordinator_runtime import CoordinatorRuntime

log = event_log("broker")

_RETRY_SECONDS: Final = 5.0  # a full disk may have room again
_SETTLE_SECONDS_MAX: Final = 30.0  # so long a client is kept waiting for files of its own topic


class Fetchers(Protocol):
    """Who fetches for followers."""

    def follow(self, partition: Partition, leader_id: int, leader_epoch: int) -> None: ...

    def forget(self, partition: Partition) -> None: ...


class Replicas:
    def __init__(
        self,
        broker: Broker,
        fetchers: Fetchers,
        epoch: Callable[[], int],
        note_removed: Callable[[TopicId], Awaitable[None]],
    ) -> None:
        """`epoch`: of this life of the broker. `note_removed`: of a deleted topic nothing is left here."""
        self._broker = broker
        self._fetchers = fetchers
        self._epoch = epoch
        self._note_removed = note_removed
        self._image = EMPTY
        self._settled_image = EMPTY
        self._retired: list[tuple[TopicId, list[Partition]]] = []  # out of service; their files are still there
        self._outdated = OutdatedReplicas(broker.node_id)
        self._followed: dict[Partition, tuple[int, int]] = {}  # leader and its epoch
        self._coordinated: dict[TopicPartition, int] = {}  # of coordinators' topics, and the epoch of our term
        self._damaged: dict[Partition, int] = {}  # to be filled anew, and their sizes
        self._kept: dict[tuple[TopicId, int], str] = {}  # folders of damaged ones, until good ones are in their place
        self._unsettled: set[TopicId] = set()  # topics with partitions that were removed here to be made anew
        self.not_made: dict[tuple[TopicId, int], str] = {}  # partitions whose files could not be made, and why
        self._has_news = asyncio.Event()
        self._has_settled = asyncio.Condition()
        self._settling: asyncio.Task[None] | None = None
        self.in_sync_shrinks_total = 0  # of partitions led here
        self.in_sync_expands_total = 0

    def start(self, image: ClusterImage) -> None:
        """Since the partitions were opened topics may have been deleted, or altered."""
        self._kept = self._broker.partitions.damaged_kept()
        self._broker.partitions.configure_opened(image.topics_by_id.values())
        for topic_id in [one for one in self._broker.partitions.topic_ids if one not in image.topics_by_id]:
            self._retire(topic_id)
        self.on_image(image)
        self._settling = start_task(self._settle_for_ever(), "replicas of this broker")

    async def stop(self) -> None:
        if self._settling is not None:
            self._settling.cancel()
            await asyncio.gather(self._settling, return_exceptions=True)

    async def settled(self) -> None:
        """Returns when the files are as the present image wants them, or when that takes too long."""
        revision = self._image.revision
        try:
            async with asyncio.timeout(_SETTLE_SECONDS_MAX), self._has_settled:
                await self._has_settled.wait_for(lambda: self._settled_image.revision >= revision)
        except TimeoutError:
            log.warning("replicas_not_settled", revision=revision)

    def fill_anew(self, partition: Partition) -> None:
        """All of it is fetched again, and then its files go. Nobody counts on it any more (`unsound`)."""
        if partition not in self._damaged:
            self._damaged[partition] = _size_of(partition)
            self._has_news.set()

    # Roles

    def on_image(self, image: ClusterImage) -> None:
        before, self._image = self._image, image
        gone = [topic for topic_id, topic in before.topics_by_id.items() if topic_id not in image.topics_by_id]
        changed = [one for one in image.topics_by_id.values() if before.topics_by_id.get(one.id) is not one]
        for topic in gone:
            self._retire(topic.id)
        for topic in changed:
            self._configure(topic, before.topics_by_id.get(topic.id))
            self._look(topic, before.topics_by_id.get(topic.id))
        brokers_changed = image.brokers is not before.brokers
        if changed or brokers_changed:
            self._give_up_outdated(image)
        self._take_roles(image.topics_by_id.values() if brokers_changed else changed)
        if gone or changed or brokers_changed:
            self._tell(before, gone, changed)
            self._has_news.set()
        elif image.deleting is not before.deleting:
            self._has_news.set()
        elif self._settled_image is before:
            self._settled_image = image  # of a later revision, and with nothing in it that concerns files

    def take_roles_again(self) -> None:
        """This broker is in another life: what it was given in the last one is over."""
        self._take_roles(self._image.topics_by_id.values())
        self._broker.resolver.change()

    def _take_roles(self, topics: Iterable[Topic]) -> None:
        for topic in topics:
            for partition in self._broker.partitions.of_topic(topic):
                self._take_role(partition, topic.partitions[partition.tp.partition])

    def _take_role(self, partition: Partition, state: PartitionState) -> None:
        here = self._broker.node_id
        if state.leader == here and here in state.replicas and state.life_of(here) == self._epoch():
            self._lead(partition, state)
        elif state.leader in (here, NO_LEADER) or here not in state.replicas:
            self._stop_following(partition)
            self._stop_coordinating(partition)
            partition.resign()
        else:
            self._follow(partition, state)

    def _lead(self, partition: Partition, state: PartitionState) -> None:
        self._stop_following(partition)
        self._count_in_sync(partition, state)
        partition.lead(state, self._broker.clock.now_ms())
        if partition.tp.topic in COORDINATED_TOPICS and self._coordinated.get(partition.tp) != state.leader_epoch:
            self._stop_coordinating(partition)
            self._coordinated[partition.tp] = state.leader_epoch
            self._runtime_of(partition).lead(partition)

    def _count_in_sync(self, partition: Partition, now: PartitionState) -> None:
        before = partition.state
        if before is not None and before.in_sync != now.in_sync:
            self.in_sync_shrinks_total += not set(before.in_sync) <= set(now.in_sync)
            self.in_sync_expands_total += not set(now.in_sync) <= set(before.in_sync)

    def _follow(self, partition: Partition, state: PartitionState) -> None:
        self._stop_coordinating(partition)
        partition.follow(state)
        if state.leader not in self._image.brokers or partition.unsound or partition in self._outdated:
            self._stop_following(partition)  # an unsound one must not come to be in sync
        elif self._followed.get(partition) != (state.leader, state.leader_epoch):
            self._followed[partition] = (state.leader, state.leader_epoch)
            self._outdated.note_filled(partition, state.leader)
            self._fetchers.follow(partition, state.leader, state.leader_epoch)

    def _stop_following(self, partition: Partition) -> None:
        if self._followed.pop(partition, None) is not None:
            self._fetchers.forget(partition)

    def _stop_coordinating(self, partition: Partition) -> None:
        if self._coordinated.pop(partition.tp, None) is not None:
            self._runtime_of(partition).resign(partition.tp.partition)

    def _runtime_of(self, partition: Partition) -> CoordinatorRuntime[Any]:
        is_of_groups = partition.tp.topic == OFFSETS_TOPIC
        return self._broker.groups.runtime if is_of_groups else self._broker.shares.states.runtime

    def _retire(self, topic_id: TopicId) -> None:
        self._retired.append((topic_id, self._let_go(self._broker.partitions.retire(topic_id))))

    def _let_go(self, partitions: list[Partition]) -> list[Partition]:
        for partition in partitions:
            self._stop_following(partition)
            self._stop_coordinating(partition)
            self._outdated.forget(partition)
        return partitions

    def _look(self, topic: Topic, before: Topic | None) -> None:
        registered = self._image.brokers.get(self._broker.node_id)
        held_since = NO_EPOCH if registered is None else registered.held_since
        for partition in self._broker.partitions.of_topic(topic):
            index = partition.tp.partition
            known = before.partitions[index] if before is not None and index < before.partition_count else None
            self._outdated.look(partition, known, topic.partitions[index], held_since)

    def _give_up_outdated(self, image: ClusterImage) -> None:
        """In the turn in which that is known: the next image may give one to this broker again."""
        for partition in self._outdated.take(image):
            topic = image.topics_by_id[partition.topic_id]
            given_up = self._broker.partitions.give_up(topic, [partition.tp.partition])
            self._retired.append((topic.id, self._let_go(given_up)))
            self._unsettled.add(topic.id)
            self._has_news.set()

    def _configure(self, topic: Topic, before: Topic | None) -> None:
        if before is not None and before.overrides != topic.overrides:
            self._broker.partitions.configure(topic, self._broker.partitions.settings_of(topic))

    def _tell(self, before: ClusterImage, gone: list[Topic], changed: list[Topic]) -> None:
        self._broker.resolver.change()
        for topic in gone:
            self._broker.tell_change(topic.name, deleted=topic)
        for topic in changed:
            known = before.topics_by_id.get(topic.id)
            if known is None or known.partition_count != topic.partition_count:
                self._broker.tell_change(topic.name)

    # Files

    async def _settle_for_ever(self) -> None:
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            image = self._image
            if await self._settle_or_say_why(image):
                # An image that came meanwhile and was no news differs in its revision, for which somebody may wait.
                self._settled_image = image if self._has_news.is_set() else self._image
                async with self._has_settled:
                    self._has_settled.notify_all()
            else:
                asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._has_news.set)

    async def _settle_or_say_why(self, image: ClusterImage) -> bool:
        try:
            return await self._settle(image)
        except Exception as error:  # a mistake of ours, about one topic; the others need this task
            log.error("replicas_not_settled", revision=image.revision, error=error)
            return False

    async def _settle(self, image: ClusterImage) -> bool:
        """Whether all could be done."""
        is_done = True
        retired, self._retired = self._retired, []
        for topic_id, partitions in retired:
            if not await self._remove(partitions):
                is_done = False
                self._retired.append((topic_id, partitions))
        if retired:
            await self._broker.groups.forget_deleted()  # where groups are coordinated, before such a name comes again
        is_done = await self._remove_damaged(image) and is_done
        await self._remove_kept(image)
        for topic in image.topics_by_id.values():
            if topic.id in self._unsettled or self._settled_image.topics_by_id.get(topic.id) is not topic:
                now = self._image.topics_by_id.get(topic.id)
                # Of one that was deleted meanwhile the files are about to go, and must not be made again.
                is_done = (now is None or await self._settle_topic(now)) and is_done
        self._unsettled &= image.topics_by_id.keys()
        self.not_made = {one: why for one, why in self.not_made.items() if one[0] in image.topics_by_id}
        left = {topic_id for topic_id, _ in self._retired}
        for topic_id in image.deleting:
            if topic_id not in left and topic_id not in image.topics_by_id:
                await self._note_removed(topic_id)
        return is_done

    async def _settle_topic(self, topic: Topic) -> bool:
        partitions, here = self._broker.partitions, self._broker.node_id
        wanted = set(topic.held_by(here))
        held = {one.tp.partition for one in partitions.of_topic(topic)}
        waiting = {one.tp.partition for one in self._damaged if one.topic_id == topic.id}
        leaving = {one.tp.partition for topic_id, ones in self._retired if topic_id == topic.id for one in ones}
        missing = sorted(wanted - held - waiting - leaving)
        is_done = (not missing or await self._make(topic, missing)) and not wanted & leaving
        if is_done:
            self._unsettled.discard(topic.id)
        return is_done

    async def _remove_damaged(self, image: ClusterImage) -> bool:
        """Whether all could be. They are made anew when their topics are settled."""
        is_done = True
        for partition in list(self._damaged):
            index, topic = partition.tp.partition, image.topic_by_id(partition.topic_id)
            if topic is not None and self._broker.partitions.find(topic.id, index) is partition:
                log.warning("replica_filled_anew", partition=partition.tp, reason=partition.unsound)
                self._let_go(self._broker.partitions.give_up(topic, [index]))
            if topic is None or await self._put_aside(topic, partition):
                del self._damaged[partition]
                self._unsettled.add(partition.topic_id)
            else:
                is_done = False
        return is_done

    async def _put_aside(self, topic: Topic, partition: Partition) -> bool:
        """Where the disk has no room for two of it, or one is kept already, it goes."""
        place, partitions = (topic.id, partition.tp.partition), self._broker.partitions
        room = partitions.room
        if place in self._kept or room.free_bytes - room.reserve_bytes < self._damaged[partition]:
            return await self._remove([partition])
        await partitions.settle([partition])
        await self._broker.cleaner.settle([partition])
        try:
            self._kept[place] = await in_thread(lambda: partitions.keep_damaged(partition))
        except OSError as error:
            log.error("damaged_not_kept", partition=partition.tp, reason=str(error))
            return await self._remove([partition])
        return True

    async def _remove_kept(self, image: ClusterImage) -> None:
        """A good replica is in its place, or nobody wants one any more."""
        for place, name in list(self._kept.items()):
            topic, here = image.topic_by_id(place[0]), self._broker.node_id
            is_wanted = topic is not None and place[1] < topic.partition_count
            state = topic.partitions[place[1]] if topic is not None and is_wanted else None
            if state is None or here in state.in_sync or here not in state.replicas:
                del self._kept[place]
                try:
                    await in_thread(lambda name=name: self._broker.partitions.remove_kept(name))  # type: ignore[misc]
                    log.info("damaged_removed", folder=name)
                except OSError as error:
                    log.warning("damaged_stays", folder=name, reason=str(error))

    async def _make(self, topic: Topic, indexes: list[int]) -> bool:
        partitions = self._broker.partitions
        try:
            # One that is filled anew, or was another broker's for a while, had a log of which the checkpoint speaks.
            await self._broker.checkpoints.forget([(topic.id, index) for index in indexes])
            settings, deleted = partitions.settings_of(topic), self._broker.registry.being_deleted
            made = await in_thread(lambda: partitions.make(topic, settings, indexes, deleted=deleted))
        except (OSError, TopicIdMismatch) as error:
            log.error("replicas_not_made", topic=topic.name, reason=str(error))
            self.not_made |= {(topic.id, index): str(error) for index in indexes}
            return False
        for index in indexes:
            self.not_made.pop((topic.id, index), None)
        now = self._image.topics_by_id.get(topic.id)
        partitions.adopt(now or topic, made)
        if now is None:  # deleted meanwhile
            self._retire(topic.id)
            self._has_news.set()
        else:
            for partition in made:
                self._outdated.note_made(partition)
            self._look(now, now)
            self._give_up_outdated(self._image)
            self._take_roles([now])
            self._broker.resolver.change()
        return True

    async def _remove(self, retired: list[Partition]) -> bool:
        await self._broker.partitions.settle(retired)
        await self._broker.cleaner.settle(retired)
        try:
            await in_thread(lambda: self._broker.partitions.remove_files(retired))
        except OSError as error:
            first = retired[0]
            log.error("files_of_deleted_stay", topic=first.tp.topic, id=first.topic_id, reason=str(error))
            return False
        return True


def _size_of(partition: Partition) -> int:
    try:
        return partition.size_bytes
    except OSError:  # a disk that fails does not even tell that
        return 0
