"""A broker's life: take the data directory, open what is in it, listen, keep house, drain, leave cleanly.

server = BrokerServer(BrokerConfig(data_dir="data"))
await server.start()
…
await server.stop()
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from clarion.broker.broker import Broker
from clarion.broker.checkpoint_writer import CheckpointWriter
from clarion.broker.cleaning import Cleaner
from clarion.broker.config import BrokerConfig, ListenerConfig
from clarion.broker.descriptors import net_limits, open_files_max
from clarion.broker.dispatch import Dispatch
from clarion.broker.dynamic_settings import DynamicSettings
from clarion.broker.group_service import GroupService
from clarion.broker.housekeeping import Housekeeping
from clarion.broker.metrics import MetricsEndpoint, OpenGateway
from clarion.broker.partitions import Partitions
from clarion.broker.queues import Queues
from clarion.broker.reloading import Reloaded, reloaded
from clarion.broker.settings import host_port
from clarion.broker.subscriptions import Subscriptions, catalog_of
from clarion.broker.tls import tls_for_clients
from clarion.cluster import CoordinationStore, Endpoint, ProducerIds, SettingsRegistry, SqliteStore, TopicRegistry
from clarion.cluster.features import check_level
from clarion.cluster.journal_import import import_journal
from clarion.cluster.schema import CLUSTER_ID, NO_EPOCH
from clarion.log.ballast import Ballast
from clarion.log.checkpoints import CleanShutdown
from clarion.log.clock_trust import ClockTrust
from clarion.log.data_directory import REGISTRY_FILE, claim_folder
from clarion.log.files import FileCache
from clarion.log.offset_files import OffsetFiles
from clarion.log.room import Room
from clarion.net import Server, Service
from clarion.net.http import HttpApi
from clarion.replication import FlushThreads, GroupCommit, ProducerLimits, Threads
from clarion.world import (
    Clock,
    Disk,
    Randomness,
    RealDisk,
    SystemClock,
    SystemRandomness,
    boot_seconds,
    event_log,
    make_lasting_folder,
    new_uuid,
)

if TYPE_CHECKING:
    from clarion.broker.cluster_node import ClusterNode

log = event_log("broker")

OnFailure = Callable[[Exception], None]
OpenStore = Callable[[OnFailure], Awaitable[CoordinationStore]]

_SECRET_BYTES: Final = 16
_FLUSH_THREADS: Final = 8  # flushes of different partitions overlap in the device up to about here
_DRAIN_SECONDS: Final = 3.0  # for requests under way; with the files to close, a stop takes less than five seconds


class BrokerServer:
    def __init__(
        self,
        config: BrokerConfig,
        *,
        disk: Disk | None = None,
        clock: Clock | None = None,
        elapsed: Callable[[], float] = boot_seconds,
        randomness: Randomness | None = None,
        flush_threads: Threads | None = None,
        open_store: OpenStore | None = None,
        on_failure: Callable[[], None] = lambda: None,
        intercept: Callable[[Service], Service] | None = None,
        gateway: OpenGateway | None = None,
    ) -> None:
        """`elapsed`: seconds that only grow, also while the machine sleeps, as leases need them.
        `open_store` opens another coordination store than the one that the settings name.

        `on_failure` is called when the broker has to end: `failure` says why, and `stop` is what is left to do.
        `intercept` may stand between the sockets and the broker, as a test that injects faults does.
        `gateway` makes what serves the HTTP API, where there is to be one.
        """
        self.config = config
        self._disk = disk or RealDisk()
        self._clock = clock or SystemClock()
        self._elapsed = elapsed
        self._randomness = randomness or SystemRandomness()
        self._flush_threads = flush_threads
        self._open_store = open_store or (self._open_shared if config.cluster else self._open_sqlite)
        self.node: ClusterNode | None = None  # where there are other brokers
        self._on_failure = on_failure
        self._intercept = intercept
        self._gateway = gateway
        self.failure: Exception | None = None
        self.addresses: list[Endpoint] = []
        self.metrics_address: Endpoint | None = None
        self.gateway: HttpApi | None = None  # what serves the HTTP API
        self._drain_seconds = 0.0
        self._term = NO_EPOCH  # until every partition is led in it: of a start that failed before, nothing can be said
        self._taken = AsyncExitStack()  # what was taken, to be given back in the opposite order

    async def start(self) -> None:
        """Returns when clients can connect. Raises, with everything given back, when that cannot be."""
        try:
            self._claim_folder()
            await self._open_registry()
            await self._open()
            self._prepare()
            await self.broker.subscriptions.start()
            await self._listen()
            await self._join()
            self._taken.push_async_callback(self.broker.shares.leaders.follow_clock)
        except BaseException:
            await self.stop(drain_seconds=0)
            raise

    def on_stop(self, callback: Callable[[float], Awaitable[None]]) -> None:
        """Of what stands on the broker, in a room above: it ends first, and is told how many seconds it may take."""
        self._taken.push_async_callback(lambda: callback(self._drain_seconds))

    async def stop(self, drain_seconds: float = _DRAIN_SECONDS) -> None:
        """Finish what is under way, flush everything, and leave a mark that the next start may trust the files."""
        self._drain_seconds = drain_seconds
        await self._taken.aclose()

    async def reload(self, wanted: BrokerConfig) -> Reloaded:
        """Take on what can change while it runs, certificates included; raises before anything has changed.

        KafkaError where a topic's own settings do not go with its new defaults; OSError where TLS cannot be had.
        """
        found = reloaded(self.config, wanted)
        contexts = [tls_for_clients(listener.tls) for listener in found.config.listeners]
        await self._dynamic.reload(self.broker, self._with_http_address(found.config))
        self.config = found.config
        for number, context in enumerate(contexts):
            if context is not None:
                self.net.renew_tls(number, context)
        if self.node is not None:
            self.node.renew_tls(found.config)
        return found

    def on_change(self, callback: Callable[[BrokerConfig], None]) -> None:
        """Called with the settings that hold, now and whenever they change."""
        callback(self.broker.config)
        self._dynamic.on_change(callback)

    async def kill(self) -> None:
        """End as a process does that is killed: the sockets and the folder's lock go, nothing is flushed or marked.

        For tests that have several lives of a broker in one process. Whoever gave it a disk cuts that off before.
        """
        self.net.abort()
        if self.node is not None:
            self.node.abandon()
        await self.groups.stop()
        self._flushers.abandon()
        await self.broker.subscriptions.stop()
        await self.store.close()
        self._claim.release()

    def _claim_folder(self) -> None:
        config = self.config
        make_lasting_folder(self._disk, config.data_dir)
        self._claim = claim_folder(self._disk, config.data_dir)
        self._taken.callback(self._claim.release)
        self._claim.check_node(config.node_id)
        if config.cluster:
            self._claim.check_member()
        else:
            self._claim.check_alone()

    async def _open_registry(self) -> None:
        """What the cluster agrees on, and that this folder is a part of it."""
        config = self.config
        self.store = await self._open_store(self._fail)
        self._taken.push_async_callback(self.store.close)
        if config.cluster:
            await check_level(self.store)  # before anything is read that this version may not understand
        else:
            await import_journal(self._disk, config.data_dir, self.store)
        self._claim.check_registry(is_new=await self.store.get(CLUSTER_ID) is None)
        self._registry = await TopicRegistry.load(
            self.store,
            lambda: new_uuid(self._randomness),
            partitions_max=config.limits.partitions_max,
            topic_partitions_max=config.limits.topic_partitions_max,
            node_id=config.node_id,
            replication_factor=config.default_replication_factor,
        )
        self._settings = await SettingsRegistry.load(self.store)
        self._dynamic = DynamicSettings(config, self._settings)
        self._directory = self._claim.directory_id(lambda: str(new_uuid(self._randomness))) if config.cluster else None
        self._claim.settle(self._registry.image.cluster_id, config.node_id, self._directory)
        if config.cluster:
            from clarion.broker.cluster_node import ClusterNode  # a broker that is alone starts without it

            rules_of = lambda topic: self._partitions.rules_of(topic)  # noqa: E731
            self.node = await ClusterNode.open(
                self.store, self._registry, self._settings, rules_of, config.node_id, self._fail
            )
            self._taken.push_async_callback(self.node.close)

    async def _open_sqlite(self, on_failure: OnFailure) -> CoordinationStore:
        return await SqliteStore.open(os.path.join(self.config.data_dir, REGISTRY_FILE), on_failure)

    async def _open_shared(self, on_failure: OnFailure) -> CoordinationStore:
        from clarion.cluster.opening import open_store

        return await open_store(self.config.cluster, on_failure)

    def _fail(self, error: Exception) -> None:
        """What the store holds now is not known here: going on would be guessing. The next start finds out."""
        self.failure = error
        log.error("broker_ends", reason=str(error))
        self._on_failure()

    async def _open(self) -> None:
        """The files, down to the last partition."""
        config = self.config
        self._flushers = self._flush_threads or FlushThreads(_FLUSH_THREADS)
        self._taken.callback(self._flushers.close)
        self.commits = GroupCommit(self._flushers)
        self._taken.callback(self.commits.stop)
        offset_files = OffsetFiles(self._disk, config.data_dir)
        self._partitions = Partitions(
            self._disk,
            self._clock,
            config.data_dir,
            FileCache(self._disk, open_files_max(config)),
            self._dynamic.defaults,
            self.commits,
            ProducerLimits(config.limits.producers_max, config.limits.partition_producers_max),
            Room(config.reserve_bytes),
            config.node_id,
            None if self.node is None else self.node.for_partitions,
        )
        self._clean_shutdown = CleanShutdown(self._disk, config.data_dir)
        topics, deleted = list(self._registry.image.topics.values()), self._registry.being_deleted
        was_clean = self._clean_shutdown.take() or not topics  # nothing was left unclean where there is nothing
        report = self._partitions.open_all(topics, offset_files, was_clean=was_clean, deleted=deleted)
        self._checkpoints = CheckpointWriter(offset_files, self._partitions)
        self._taken.push_async_callback(self._close_files)
        self._taken.push_async_callback(self._checkpoints.stop)
        if self.node is None:
            await self._registry.forget_deleted(deleted)
            await self._registry.forget_unclaimed()
            await self._begin_term()
        log.info("partitions_opened", count=report.partitions, clean=report.was_clean, cut_bytes=report.cut_bytes)

    def _prepare(self) -> None:
        """What serves requests. The groups are loading, and say so, before the first client can ask for one."""
        self.broker = Broker(
            self.config,
            self._clock,
            self._randomness,
            self._registry,
            self._settings,
            ProducerIds(
                self.store,
                self._directory or f"broker {self.config.node_id}",
                (one.id for partition in self._partitions for one in partition.producers),
            ),
            self._partitions,
            self._dynamic,
        )
        if self.node is not None:
            self.broker.node = self.node
            self._taken.push_async_callback(self.node.stop_replicas)
        self._taken.callback(self.broker.waiting_produces.close)
        self._taken.callback(self.broker.waiting_coordinators.close)
        self._taken.push_async_callback(self.broker.turns.stop)
        self._taken.push_async_callback(self.broker.preparing.stop)
        self.broker.subscriptions = Subscriptions(self.broker, catalog_of(self.config, self.store))
        self._taken.push_async_callback(self.broker.subscriptions.stop)
        self.broker.cleaner = Cleaner(self.broker, self._disk)
        self.broker.checkpoints = self._checkpoints
        self.broker.ballast = Ballast(self._disk, self.config.data_dir)
        self.broker.clock_trust = ClockTrust(
            self._clock, asyncio.get_running_loop().time, self._disk, self.config.data_dir
        )
        self.dispatch = Dispatch(self.broker)
        self._taken.push_async_callback(self.dispatch.stop)
        self.groups = self.broker.groups = GroupService(self.broker, self.config.groups, self._randomness)
        self._taken.push_async_callback(self.groups.stop)
        self.broker.queues = Queues(self.broker)
        self._dynamic.tell_groups(self.groups)
        if self.node is not None:
            self._dynamic.follow(self.broker)
        self.groups.start()
        self.housekeeping = Housekeeping(self.broker, self._disk)
        self._taken.push_async_callback(self.housekeeping.stop)
        self.housekeeping.start()

    async def _listen(self) -> None:
        service = self._intercept(self.dispatch) if self._intercept else self.dispatch
        self.net = Server(service, net_limits(self.broker.config), self.dispatch.latencies)
        self._dynamic.on_change(self._limit_connections)
        if self.config.metrics_port is not None:
            metrics = MetricsEndpoint(self, self._gateway if self.config.serves_http_api else None)
            self.gateway = metrics.api
            self._taken.push_async_callback(metrics.stop)
            self.metrics_address = await metrics.listen(
                self.config.metrics_host, self.config.metrics_port, or_any=self.config.http_is_auto
            )
            self._dynamic.static_config = self._with_http_address(self.config)
            self.broker.config = self._dynamic.config()
        self._taken.push_async_callback(self._stop_net)
        contexts = [tls_for_clients(listener.tls) for listener in self.config.listeners]
        for listener, tls in zip(self.config.listeners, contexts, strict=True):
            host, port = await self.net.listen(listener.host, listener.port, tls)
            self.addresses.append(Endpoint(host, port))
            if self.node is None:
                self._registry.announce(self._endpoints())
        if self.node is None:
            await self._registry.register()

    async def _join(self) -> None:
        """The cluster hears of this broker, and gives it something to do."""
        node, marked = self.node, self._clean_shutdown
        if node is None:
            return
        from clarion.cluster.membership import BrokerMembership, Newcomer

        assert self._directory is not None
        newcomer = Newcomer(
            self.config.node_id,
            self._directory,
            self.config.rack or None,
            marked.broker_epoch,
            NO_EPOCH if marked.clean_since is None else marked.clean_since,
            last_life=self._claim.last_life,
        )
        membership = BrokerMembership(
            self.store,
            newcomer,
            lambda: self._randomness.bytes(_SECRET_BYTES).hex(),
            term_seconds=self.config.session_seconds,
            elapsed=self._elapsed,
            note_life=self._claim.note_life,
        )
        await node.join(membership, self.broker, tuple(self._endpoints()))
        self._term = membership.epoch
        self._taken.push_async_callback(node.hand_over)

    def _endpoints(self) -> list[Endpoint]:
        """What clients are told, of the listeners that listen already."""
        return list(map(_advertised, self.config.listeners, self.addresses))

    def _with_http_address(self, config: BrokerConfig) -> BrokerConfig:
        """What clients are told of the HTTP port is what it has become, unless somebody knows better."""
        if config.http_advertised or (address := self.metrics_address) is None:
            return config
        first, is_everywhere = config.listeners[0], address.host in ("0.0.0.0", "::")
        host = first.advertised_host or first.host if is_everywhere else address.host
        return replace(config, http_advertised=host_port(host, address.port))

    def _limit_connections(self, config: BrokerConfig) -> None:
        """Those who are there may stay."""
        self.net.limits = replace(self.net.limits, connections_max=config.limits.connections_max)

    async def _stop_net(self) -> None:
        await self.net.stop(self._drain_seconds)

    async def _close_files(self) -> None:
        partitions = self._partitions
        await partitions.settle(partitions)
        await partitions.close_all()
        try:
            self._checkpoints.save_last()
            if all(partition.failure is None for partition in partitions):
                member = None if self.node is None else self.node.membership
                self._clean_shutdown.leave(
                    member.epoch if member else self._term, member.clean_since if member else None
                )
        except OSError as error:  # a full disk, for one: the files of before are still there
            log.error("stop_not_clean", reason=str(error), consequence="the next start checks the logs")

    async def _begin_term(self) -> None:
        """Lead, with higher epochs than ever before."""
        await self._registry.begin_term(self._partitions.latest_epoch, self._clean_shutdown.broker_epoch)
        self._partitions.lead(self._registry.image.topics.values())
        self._term = self._registry.broker_epoch


def _advertised(listener: ListenerConfig, address: Endpoint) -> Endpoint:
    return Endpoint(listener.advertised_host or address.host, listener.advertised_port or address.port)
