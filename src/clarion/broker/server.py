"""A broker's life: take the data directory, open what is in it, listen, keep house, drain, leave cleanly.

server = BrokerServer(BrokerConfig(data_dir="data"))
await server.start()
…
await server.stop()
"""

from __future__ import annotations

import os
import resource
import ssl
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final

from clarion.broker.broker import Address, Broker
from clarion.broker.cleaning import Cleaner
from clarion.broker.config import BrokerConfig, ListenerConfig, TlsConfig
from clarion.broker.dispatch import Dispatch
from clarion.broker.group_service import GroupService
from clarion.broker.housekeeping import Housekeeping
from clarion.broker.identity import claim_folder
from clarion.broker.metrics import MetricsEndpoint
from clarion.broker.offset_files import OffsetFiles
from clarion.broker.partitions import Partitions
from clarion.cluster import EmbeddedStore, TopicRegistry
from clarion.groups.config import GroupConfig
from clarion.log.checkpoints import CleanShutdown
from clarion.log.files import FileCache
from clarion.model.topic_settings import TopicSettings, parse
from clarion.net import NetLimits, Server, Service
from clarion.replication import FlushThreads, GroupCommit, Threads
from clarion.world import (
    Clock,
    Disk,
    Randomness,
    RealDisk,
    SystemClock,
    SystemRandomness,
    event_log,
    make_lasting_folder,
    new_uuid,
)

log = event_log("broker")

REGISTRY_FILE: Final = "registry.journal"
_BROKER_EPOCH: Final = "broker-epoch"
_FLUSH_THREADS: Final = 8  # flushes of different partitions overlap in the device up to about here
_DRAIN_SECONDS: Final = 5.0


class BrokerServer:
    def __init__(
        self,
        config: BrokerConfig,
        *,
        disk: Disk | None = None,
        clock: Clock | None = None,
        randomness: Randomness | None = None,
        flush_threads: Threads | None = None,
        intercept: Callable[[Service], Service] | None = None,
    ) -> None:
        """`intercept` may stand between the sockets and the broker, as a test that injects faults does."""
        self.config = config
        self._disk = disk or RealDisk()
        self._clock = clock or SystemClock()
        self._randomness = randomness or SystemRandomness()
        self._flush_threads = flush_threads
        self._intercept = intercept
        self.addresses: list[Address] = []
        self.metrics_address: Address | None = None
        self._drain_seconds = 0.0
        self._taken = AsyncExitStack()  # what was taken, to be given back in the opposite order

    async def start(self) -> None:
        """Returns when clients can connect. Raises, with everything given back, when that cannot be."""
        try:
            self._claim_folder()
            self._open()
            self._prepare()
            await self._listen()
        except BaseException:
            await self.stop(drain_seconds=0)
            raise

    async def stop(self, drain_seconds: float = _DRAIN_SECONDS) -> None:
        """Finish what is under way, flush everything, and leave a mark that the next start may trust the files."""
        self._drain_seconds = drain_seconds
        await self._taken.aclose()

    def _claim_folder(self) -> None:
        config = self.config
        make_lasting_folder(self._disk, config.data_dir)
        self._claim = claim_folder(self._disk, config.data_dir)
        self._taken.callback(self._claim.release)

    def _open(self) -> None:
        """The files, from the registry to the last partition."""
        config = self.config
        self._store = EmbeddedStore(self._disk, os.path.join(config.data_dir, REGISTRY_FILE))
        self._taken.callback(self._store.close)
        self._registry = TopicRegistry(
            self._store, lambda: new_uuid(self._randomness), partitions_max=config.limits.partitions_max
        )
        self._claim.check_identity(self._registry.cluster_id, config.node_id)
        self._flushers = self._flush_threads or FlushThreads(_FLUSH_THREADS)
        self._taken.callback(self._flushers.close)
        self.commits = GroupCommit(self._flushers)
        self._taken.callback(self.commits.stop)
        self._offset_files = OffsetFiles(self._disk, config.data_dir)
        self._partitions = Partitions(
            self._disk,
            self._clock,
            config.data_dir,
            FileCache(self._disk, _open_files_max(config)),
            _defaults(config),
            self.commits,
            self._next_epoch(),
        )
        self._clean_shutdown = CleanShutdown(self._disk, config.data_dir)
        was_clean = self._clean_shutdown.take()
        topics, deleted = list(self._registry), self._registry.being_deleted
        report = self._partitions.open_all(
            topics, self._offset_files.load(topics, was_clean=was_clean), was_clean=was_clean, deleted=deleted
        )
        self._taken.push_async_callback(self._close_files)
        self._registry.forget_deleted(deleted)
        log.info("partitions_opened", count=report.partitions, clean=report.was_clean, cut_bytes=report.cut_bytes)

    def _prepare(self) -> None:
        """What serves requests. The groups are loading, and say so, before the first client can ask for one."""
        self.broker = Broker(self.config, self._clock, self._randomness, self._registry, self._partitions)
        self._taken.callback(self.broker.waiting_produces.close)
        self._taken.push_async_callback(self.broker.preparing.stop)
        self.broker.cleaner = Cleaner(self.broker, self._disk)
        self.dispatch = Dispatch(self.broker)
        self._taken.push_async_callback(self.dispatch.stop)
        self.groups = self.broker.groups = GroupService(self.broker, _group_config(self.config), self._randomness)
        self._taken.push_async_callback(self.groups.stop)
        self.groups.start()
        self.housekeeping = Housekeeping(self.broker, self._offset_files)
        self._taken.push_async_callback(self.housekeeping.stop)
        self.housekeeping.start()

    async def _listen(self) -> None:
        service = self._intercept(self.dispatch) if self._intercept else self.dispatch
        self.net = Server(service, _net_limits(self.config))
        if self.config.metrics_port is not None:
            metrics = MetricsEndpoint(self)
            self._taken.push_async_callback(metrics.stop)
            self.metrics_address = await metrics.listen(self.config.metrics_host, self.config.metrics_port)
        self._taken.push_async_callback(self._stop_net)
        contexts = [_tls_context(listener.tls) for listener in self.config.listeners]
        for listener, tls in zip(self.config.listeners, contexts, strict=True):
            host, port = await self.net.listen(listener.host, listener.port, tls)
            self.addresses.append(Address(host, port))
            self.broker.advertised.append(_advertised(listener, host, port))

    async def _stop_net(self) -> None:
        await self.net.stop(self._drain_seconds)

    async def _close_files(self) -> None:
        partitions = self._partitions
        await partitions.settle(partitions)
        partitions.close_all()
        self._offset_files.save(self._offset_files.take(partitions))
        if all(partition.log.failed is None for partition in partitions):
            self._clean_shutdown.leave()

    def _next_epoch(self) -> int:
        """Every start begins a new term as leader: a log that lost its tail must not pass for the one it was."""
        last = self._store.get(_BROKER_EPOCH)
        epoch = 0 if last is None else int(last) + 1
        self._store.put(_BROKER_EPOCH, epoch)
        return epoch


def _defaults(config: BrokerConfig) -> TopicSettings:
    return parse({"clarion.durability": config.durability.value, **config.topic_defaults}, TopicSettings())


def _open_files_max(config: BrokerConfig) -> int:
    if config.limits.open_files_max:
        return config.limits.open_files_max
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(64, soft // 4)


def _group_config(config: BrokerConfig) -> GroupConfig:
    return GroupConfig(
        initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        session_timeout_min_ms=config.group_min_session_timeout_ms,
        session_timeout_max_ms=config.group_max_session_timeout_ms,
        members_max=config.group_max_size,
        consumer_heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
        consumer_session_timeout_ms=config.group_consumer_session_timeout_ms,
        consumer_members_max=config.group_max_size,
        offsets_retention_ms=config.offsets_retention_minutes * 60_000,
    )


def _net_limits(config: BrokerConfig) -> NetLimits:
    limits = config.limits
    return NetLimits(
        connections_max=limits.connections_max,
        frame_bytes_max=limits.frame_bytes_max,
        frames_memory_max=limits.frames_memory_max,
        requests_in_flight_max=limits.requests_in_flight_max,
        frame_seconds_max=limits.frame_seconds_max,
        idle_seconds_max=limits.idle_seconds_max,
    )


def _advertised(listener: ListenerConfig, host: str, port: int) -> Address:
    return Address(listener.advertised_host or host, listener.advertised_port or port)


def _tls_context(tls: TlsConfig | None) -> ssl.SSLContext | None:
    if tls is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tls.client_ca)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(tls.certificate, tls.key)
    if tls.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    return context
