"""A broker's part in a cluster: it is registered, follows what the cluster agrees on, and stands for controller.

    store ─→ Following ─→ image ─→ Replicas: what is held, led and followed here
      ↑                     └────→ Metadata and everybody else
      ├── BrokerMembership: the registration and its lease
      ├── Controller: of all brokers one decides
      └── InSyncSets: what leaders say about their followers

Made by `open`, before the partitions are opened; `join` when clients can connect.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from hmac import compare_digest
from typing import TYPE_CHECKING, Any, Final

from clarion import replication
from clarion.broker.checkpoint_writer import CheckpointWriter
from clarion.broker.config import BrokerConfig
from clarion.broker.event_topic import EventTopic
from clarion.broker.lost_leaders import LostLeaders
from clarion.broker.replicas import Replicas
from clarion.broker.tls import renew_tls_to_brokers, tls_to_brokers
from clarion.broker.unsound import UnsoundReplicas
from clarion.cluster import ClusterImage, CoordinationStore, Endpoint, SettingsRegistry, Topic, TopicRegistry
from clarion.cluster.changes import change, until_answered
from clarion.cluster.controller import Controller
from clarion.cluster.coordination import Delete, LeaseNotFoundError, Put, StoreError, absent, unchanged
from clarion.cluster.decisions import Policy
from clarion.cluster.elections import ElectionRules
from clarion.cluster.features import raise_level
from clarion.cluster.following import Following
from clarion.cluster.in_sync import InSyncSets
from clarion.cluster.membership import BrokerMembership
from clarion.cluster.opening import folder_of
from clarion.cluster.schema import life_key, removed_key
from clarion.model.ids import TopicId
from clarion.model.setting_kinds import LONG_MAX
from clarion.net.channel import ChannelSettings, LastingChannel
from clarion.replication.catch_up import CatchUp, is_listed
from clarion.replication.fetchers import ReplicaFetchers
from clarion.replication.lag import LagWatch
from clarion.replication.membership import Identity
from clarion.world import event_log
from clarion.world.tasks import start_task

if TYPE_CHECKING:
    from clarion.broker.broker import Broker
    from clarion.replication import Partition

log = event_log("broker")

_HAND_OVER_SECONDS: Final = 5.0  # for others to take what this broker leads; then it stops all the same
_LOOK_SECONDS: Final = 0.02
_AFTER_MISTAKE_SECONDS: Final = 1.0  # for others to be the controller first


class ClusterNode:
    def __init__(
        self,
        store: CoordinationStore,
        registry: TopicRegistry,
        settings: SettingsRegistry,
        rules_of: Callable[[Topic], ElectionRules],
        node_id: int,
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._store = store
        self._registry = registry
        self._rules_of = rules_of
        self._node_id = node_id
        self._now_ms: Callable[[], int]  # set by `join`
        self._probes_brokers = False
        self._policy = Policy()  # set by `join`
        self._tls: ssl.SSLContext | None = None  # where the other brokers' first listeners speak it
        self._following = Following(store, self._show, (settings,), on_failure=on_failure)
        self._controlling: asyncio.Task[None] | None = None
        self._altering: dict[asyncio.Task[None], None] = {}
        self._checkpoints: CheckpointWriter | None = None  # once it has joined
        self.lost_leaders = LostLeaders()
        self._in_sync = InSyncSets(store, node_id, lambda: registry.image, rules_of)
        self._fetchers: ReplicaFetchers | None = None  # once it has joined
        self._lag_watch: LagWatch | None = None  # likewise
        self._replicas: Replicas | None = None  # once it has joined
        self._event_topic: EventTopic | None = None  # likewise
        self._unsound: UnsoundReplicas | None = None  # likewise
        self.membership: BrokerMembership | None = None  # likewise
        self.controller: Controller | None = None  # of this life

    @classmethod
    async def open(
        cls,
        store: CoordinationStore,
        registry: TopicRegistry,
        settings: SettingsRegistry,
        rules_of: Callable[[Topic], ElectionRules],
        node_id: int,
        on_failure: Callable[[Exception], None],
    ) -> ClusterNode:
        """From here on the image follows the store; `on_failure`, when it no longer does."""
        node = cls(store, registry, settings, rules_of, node_id, on_failure)
        registry.follow(node._following)
        await node._following.start()
        return node

    def renew_tls(self, config: BrokerConfig) -> None:
        """The files with the certificate and the authority may be others now."""
        if self._tls is not None:
            renew_tls_to_brokers(self._tls, config)

    async def join(self, membership: BrokerMembership, broker: Broker, endpoints: tuple[Endpoint, ...]) -> None:
        """Be registered, hold what the cluster wants held, lead what it wants led."""
        self._tls = tls_to_brokers(broker.config)
        self._checkpoints = broker.checkpoints
        unsound = UnsoundReplicas(self._node_id, broker.partitions, self._in_sync, lambda: self._registry.image)
        await unsound.leave()
        await membership.be_drained(broker.config.is_drained)
        await membership.join(endpoints)
        self.membership = membership
        broker.dynamic.on_change(lambda config: self._take_on(broker, config))
        await self._following.refresh()
        now_ms = self._now_ms = broker.clock.now_ms
        self._set_policy(broker.config)
        # The store of one machine hears of a death by itself.
        self._probes_brokers = broker.config.probes_brokers and folder_of(broker.config.cluster) is None
        fetchers = self._fetchers = ReplicaFetchers(
            self.identity,
            partial(self.channel_to, broker),
            now_ms,
            CatchUp(lambda: broker.config.fill_share, membership.elapsed),
            partial(_throttled_rate, broker),
        )
        fetchers.on_leader = self.lost_leaders.note
        broker.is_broker = self.is_broker
        self._lag_watch = LagWatch(broker.partitions, now_ms, broker.sessions.replicas)
        self._replicas = Replicas(broker, fetchers, lambda: membership.epoch, self._note_removed)
        self._replicas.start(self._registry.image)
        if broker.config.keeps_events:
            self._event_topic = EventTopic(broker, self._store)
            self._event_topic.on_image()
        membership.on_joined(self._begin_life)
        unsound.start(self._replicas)
        self._unsound = unsound

    async def settled(self) -> None:
        """Returns when the files are as the cluster wants them. Before the broker has joined nobody wants any here."""
        if self._replicas is not None:
            await self._replicas.settled()

    @property
    def in_sync_changes(self) -> tuple[int, int]:
        """How often somebody has left, and joined, an in-sync set of which this broker is the leader."""
        replicas = self._replicas
        return (0, 0) if replicas is None else (replicas.in_sync_shrinks_total, replicas.in_sync_expands_total)

    async def hand_over(self) -> None:
        """Before a stop: returns when others lead all that they can."""
        assert self.membership is not None
        try:
            async with asyncio.timeout(_HAND_OVER_SECONDS):
                await self.membership.announce_leaving()
                while self._could_be_led_by_others():  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            log.warning("leaders_not_handed_over", broker=self._node_id)

    async def stop_replicas(self) -> None:
        """Before the files are closed: whatever is heard of the cluster from now on, no partition follows it. What was
        fetched behind the flush at the end would be taken for flushed by the next start."""
        replicas, self._replicas = self._replicas, None
        event_topic, self._event_topic = self._event_topic, None
        if self._unsound is not None:
            await self._unsound.stop()
        if replicas is not None:
            await replicas.stop()
        if event_topic is not None:
            await event_topic.close()
        if self._fetchers is not None:
            await self._fetchers.close()
        if self._lag_watch is not None:
            await self._lag_watch.close()

    def abandon(self) -> None:
        """As if the process had died: without a word to anybody."""
        for task in (*self._altering, self._controlling):
            if task is not None:
                task.cancel()
        if self.membership is not None:
            self.membership.abandon()
        self._following.abandon()

    async def close(self) -> None:
        for task in (*self._altering, *([self._controlling] if self._controlling else [])):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self.membership is not None:
            await self.membership.close()
        await self._following.close()

    async def forget(self, broker_id: int) -> bool:
        """The last life of a broker that is away and holds nothing. False if there was none."""
        key = life_key(broker_id)
        found = await until_answered(lambda: self._store.get(key))
        return found is not None and await change(self._store, [unchanged(found)], [Delete(key)], lambda _: None)

    async def raise_feature_level(self, level: int) -> None:
        await raise_level(self._store, level)
        await self._following.refresh()

    def is_broker(self, broker_id: int, epoch: int, secret: str) -> bool:
        """Whether it is this broker of the cluster, in this life, who says so."""
        known = self._registry.image.brokers.get(broker_id)
        if known is None or not known.secret:
            return False
        # As bytes: of text with anything but ASCII in it, which strangers may send, it cannot be asked.
        return known.epoch == epoch and compare_digest(known.secret.encode(), secret.encode())

    @property
    def for_partitions(self) -> replication.Membership:
        return replication.Membership(self.lease_is_valid, self, self._save_starts)

    def _save_starts(self) -> None:
        if self._checkpoints is not None:
            self._checkpoints.save_soon()

    def lease_is_valid(self) -> bool:
        return self.membership is not None and self.membership.lease_is_valid()

    def ask(self, partition: Partition, followers: Mapping[int, int]) -> None:
        """Have the cluster agree on who is in sync; the partition hears of it as of every change of its state."""
        state = partition.state
        if state is not None:
            alter = self._in_sync.alter(partition.topic_id, partition.tp.partition, state.partition_epoch, followers)
            task = start_task(alter, "change of an in-sync set")
            self._altering[task] = None
            task.add_done_callback(self._altering.pop)

    def identity(self) -> Identity:
        """As what this broker asks others for what only brokers get."""
        assert self.membership is not None
        return Identity(self._node_id, self.membership.epoch, self.membership.secret.encode())

    def channel_to(self, broker: Broker, broker_id: int, **how: Any) -> LastingChannel:
        """`how`: fields of `ChannelSettings`, where they are not as usual."""
        host, port = self._registry.image.brokers[broker_id].endpoint(0)
        settings = ChannelSettings(host, port, f"broker-{self._node_id}", self._tls, **how)
        return LastingChannel(settings, broker.randomness)

    # What happens

    def _show(self, image: ClusterImage) -> None:
        self._registry.image = image
        self.lost_leaders.on_image(image)
        if self._replicas is not None:
            self._replicas.on_image(image)
        if self._event_topic is not None:
            self._event_topic.on_image()

    def _take_on(self, broker: Broker, config: BrokerConfig) -> None:
        assert self.membership is not None
        broker.turns.start(self.membership.be_drained(config.is_drained), lambda: None)
        self._set_policy(config)

    def _set_policy(self, config: BrokerConfig) -> None:
        never = config.replace_after_ms < 0
        self._policy = Policy(
            replication_factor=self._registry.default_replication_factor,
            replace_after_seconds=float("inf") if never else config.replace_after_ms / 1000,
            prefer_after_seconds=config.rebalances_leaders_after_seconds if config.rebalances_leaders else None,
        )
        if self.controller is not None:
            self.controller.policy = self._policy

    def _begin_life(self) -> None:
        assert self.membership is not None
        if self._replicas is None:
            return  # it stops
        self._registry.broker_epoch = self.membership.epoch
        self._replicas.take_roles_again()
        if self._controlling is not None:
            self._controlling.cancel()
        self._controlling = start_task(self._control(), "controller")

    async def _control(self) -> None:
        assert self.membership is not None
        assert self.membership.lease is not None
        controller = self.controller = Controller(
            self._store,
            self._node_id,
            self.membership.lease,
            self._rules_of,
            self._policy,
            now_ms=self._now_ms,
            probes_brokers=self._probes_brokers,
        )
        while await _ended_by_mistake(controller):
            await controller.resign()  # another broker may be spared what this one has met
            await asyncio.sleep(_AFTER_MISTAKE_SECONDS)

    def _could_be_led_by_others(self) -> bool:
        image, here = self._registry.image, self._node_id
        others = {one.id for one in image.brokers.values() if not one.is_leaving and one.id != here}
        return any(
            state.leader == here and not others.isdisjoint(state.in_sync)
            for topic in image.topics.values()
            for state in topic.partitions
        )

    async def _note_removed(self, topic_id: TopicId) -> None:
        image, key = self._registry.image, removed_key(topic_id, self._node_id)
        held = image.unclaimed.get(topic_id, {})
        is_holder = any(self._node_id in state.replicas for state in held.values())
        if is_holder and self._node_id not in image.removed.get(topic_id, ()):
            try:
                await change(self._store, [absent(key)], [Put(key, b"")], lambda _: None)
            except (StoreError, OSError) as error:
                log.warning("removal_not_noted", id=topic_id, reason=str(error))


async def _ended_by_mistake(controller: Controller) -> bool:
    """Of ours: the log tells of it. False if this broker's life is over; the next one has a controller of its own."""

    async def run() -> bool:
        with suppress(LeaseNotFoundError):
            await controller.run()
        return False

    running = start_task(run(), "controller")
    try:
        await asyncio.wait([running])
    finally:
        running.cancel()
        await asyncio.wait([running])
    return not running.cancelled() and running.exception() is not None


def _throttled_rate(broker: Broker, partition: Partition) -> float | None:
    """How fast an operator allows a replica to be filled here, in bytes per second."""
    rate = broker.config.follower_throttled_rate
    listed = partition.settings.follower_replication_throttled_replicas
    return rate if rate != LONG_MAX and is_listed(listed, partition.tp.partition, broker.node_id) else None
