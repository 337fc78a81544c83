"""Where a run takes place: the folders, the pool of warmed servers, and fresh ones for rows that need a first start."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from bench.load import run_job
from bench.load.admin import Admin, admin_for
from bench.load.cluster import BROKERS, ClusterAdmin
from bench.peers.clarion import ClarionServer
from bench.peers.cluster import CLUSTERS, Cluster
from bench.peers.kafka import KafkaServer
from bench.peers.nats import NatsServer
from bench.peers.process import ROOT, PeerUnavailable, ServerProcess
from bench.peers.rabbitmq import RabbitServer
from bench.sizes import Sizes

PEERS: dict[str, type[ServerProcess]] = {
    "clarion": ClarionServer, "kafka": KafkaServer, "nats": NatsServer, "rabbitmq": RabbitServer,
}  # fmt: skip
_TMPFS = Path("/dev/shm")
_QUIET_CPU_SHARE = 0.05  # an idle JVM stays below it
_QUIET_WITHIN_S = 3.0
_PRETOUCH_CHUNK = bytes(4_000_000)
T = TypeVar("T")


class Arena:
    """Everything made here is removed at the end, whatever happened."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.why_not: dict[str, str] = {}
        self._pool: dict[tuple[str, str], ServerProcess] = {}
        self._clusters: dict[tuple[str, str], Cluster] = {}
        self._filled: dict[tuple[str, int], tuple[str, int]] = {}
        self._made: dict[str, tuple[str, int]] = {}
        self._kept: dict[str, Any] = {}
        self._keepers = ExitStack()
        self._numbers = itertools.count(1)

    def __enter__(self) -> Self:
        self.tmpfs = Path(tempfile.mkdtemp(prefix="clarion-bench-", dir=_TMPFS if _TMPFS.is_dir() else None))
        self.disk = Path(tempfile.mkdtemp(prefix="clarion-bench-", dir=_disk_folder()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._keepers.close()
        for one in (*self._pool.values(), *self._clusters.values()):
            one.stop()
        for folder in (self.tmpfs, self.disk):
            shutil.rmtree(folder, ignore_errors=True)

    def server(self, peer: str, durability: str) -> ServerProcess:
        """The pool's server, started and warmed at its first use."""
        if (peer, durability) not in self._pool:
            server = self._new(peer, durability)
            server.__enter__()
            self._pool[peer, durability] = server
            self._warm(server, durability)
        return self._pool[peer, durability]

    def cluster(self, peer: str, durability: str) -> Cluster:
        """The peer's three brokers, started and warmed at their first use. Those of another durability go first."""
        if (peer, durability) not in self._clusters:
            for key in [key for key in self._clusters if key[0] == peer]:
                self._clusters[key].stop()
                self._clusters.pop(key).remove()
            cluster = CLUSTERS[peer](self._folder(peer, durability), fsync=durability == "fsync")
            cluster.__enter__()
            self._clusters[peer, durability] = cluster
            self._warm_cluster(peer, durability)
        return self._clusters[peer, durability]

    @contextmanager
    def cluster_topic(self, peer: str, durability: str, partitions: int = BROKERS) -> Iterator[tuple[Cluster, str]]:
        """A cluster that has become quiet, and a replicated topic for one round, deleted after it."""
        cluster = self.cluster(peer, durability)
        name = f"c{next(self._numbers):05d}"
        admin = ClusterAdmin(("127.0.0.1", cluster.ports[-1]))  # not the one that a row kills
        admin.create(name, partitions)
        self.wait_for_quiet()
        try:
            yield cluster, name
        finally:
            admin.delete(name)
            admin.close()

    @contextmanager
    def fresh(self, peer: str, durability: str = "page-cache") -> Iterator[ServerProcess]:
        """A server of its own, prepared but not started; its data goes when the row is done."""
        server = self._new(peer, durability)
        try:
            server.data_dir.mkdir(parents=True)
            server.prepare()
            yield server
        finally:
            server.stop()
            shutil.rmtree(server.data_dir, ignore_errors=True)

    @contextmanager
    def topic(self, server: ServerProcess, partitions: int = 1) -> Iterator[str]:
        """A topic for one round, deleted after it."""
        name = f"t{next(self._numbers):05d}"  # of one length, so that frames are of one length too
        admin = self.admin(server)
        admin.create(name, partitions)
        try:
            yield name
        finally:
            admin.delete(name)
            admin.close()

    def filled(self, server: ServerProcess, value_bytes: int) -> tuple[str, int]:
        """A topic with data for the reading rows (page cache), made once per server: its name and message count."""
        key = (server.name, value_bytes)
        if key not in self._filled:
            name = f"f{next(self._numbers):05d}"
            admin = self.admin(server)
            admin.create(name, 1)
            self.load(server, "produce", topic=name, value_bytes=value_bytes, connections=4, seconds=60.0,
                      bytes_max=self.sizes.filled_bytes)  # fmt: skip
            self._filled[key] = name, admin.messages(name)
            admin.close()
        return self._filled[key]

    def made(self, what: str, fill: Callable[[str], int]) -> tuple[str, int]:
        """A topic that `fill` makes at its first use: its name and message count."""
        if what not in self._made:
            name = f"m{next(self._numbers):05d}"
            self._made[what] = name, fill(name)
        return self._made[what]

    def kept(self, what: str, make: Callable[[], AbstractContextManager[T]]) -> T:
        """Something that lives from its first use to the end of the run."""
        if what not in self._kept:
            self._kept[what] = self._keepers.enter_context(make())
        kept: T = self._kept[what]
        return kept

    def admin(self, server: ServerProcess) -> Admin:
        return admin_for(server.name, server.address)

    def load(self, server: ServerProcess, job: str, **settings: object) -> dict[str, float]:
        return run_job(job, dialect=server.name, port=server.port, pids=server.pids, **settings)

    def wait_for_quiet(self) -> None:
        """Lets what the last round left behind (deletions, compilers, collectors) finish first; bounded."""
        deadline = time.monotonic() + _QUIET_WITHIN_S
        while time.monotonic() < deadline:
            before = self._pool_cpu_seconds()
            time.sleep(0.2)
            processes = max(1, len(self._pool) + BROKERS * len(self._clusters))
            if self._pool_cpu_seconds() - before <= 0.2 * _QUIET_CPU_SHARE * processes:
                return

    def pretouch(self) -> float:
        """Makes the hypervisor back the memory that the rows will use; returns GB/s, for the record."""
        path, began = self.tmpfs / "pretouch", time.perf_counter()
        with path.open("wb", buffering=0) as file:
            for _ in range(self.sizes.pretouch_bytes // len(_PRETOUCH_CHUNK)):
                file.write(_PRETOUCH_CHUNK)
        path.unlink()
        return self.sizes.pretouch_bytes / (time.perf_counter() - began) / 1e9

    def _new(self, peer: str, durability: str) -> ServerProcess:
        return PEERS[peer](self._folder(peer, durability), fsync=durability == "fsync")  # type: ignore[call-arg]

    def _folder(self, peer: str, durability: str) -> Path:
        if peer in self.why_not:
            raise PeerUnavailable(self.why_not[peer])
        place = self.disk if durability == "fsync" else self.tmpfs
        return place / f"{peer}-{next(self._numbers)}" / "data"

    def _warm(self, server: ServerProcess, durability: str) -> None:
        seconds, acks = self.sizes.warm_seconds, -1 if durability == "fsync" else 1
        if server.name == "rabbitmq":  # which is asked for nothing else
            with self.topic(server) as topic:
                self.load(server, "queue", topic=topic, messages=self.sizes.queue_messages // 4)
            return
        bounds = {"seconds": seconds, "bytes_max": self.sizes.produce_bytes, "acks": acks}
        with self.topic(server) as topic:
            self.load(server, "produce", topic=topic, connections=4, **bounds)
            messages = self.admin(server).messages(topic)
            self.load(server, "consume", topic=topic, messages=messages, seconds=seconds)
        with self.topic(server) as topic:
            self.load(
                server, "produce", topic=topic, connections=50, window=1, value_bytes=100, batch_bytes=1, **bounds
            )
        with self.topic(server) as topic:
            rate = self.sizes.latency_rate_fsync
            self.load(server, "latency", topic=topic, rate=rate, seconds=seconds, acks=acks)

    def _warm_cluster(self, peer: str, durability: str) -> None:
        bounds = {"dialect": peer, "seconds": self.sizes.cluster_warm_seconds, "acks": -1}
        with self.cluster_topic(peer, durability) as (cluster, topic):
            where = {"port": cluster.ports[0], "pids": cluster.pids, "topic": topic}
            run_job("produce", is_cluster=True, partitions=BROKERS, connections=2 * BROKERS,
                    bytes_max=self.sizes.cluster_bytes, **where, **bounds)  # fmt: skip
        with self.cluster_topic(peer, durability) as (cluster, topic):
            where = {"port": cluster.ports[0], "pids": cluster.pids, "topic": topic}
            run_job("latency", rate=self.sizes.cluster_latency_rate_fsync, **where, **bounds)

    def _pool_cpu_seconds(self) -> float:
        return sum(one.cpu_seconds() for one in (*self._pool.values(), *self._clusters.values()))


def _disk_folder() -> Path:
    """A folder on a real disk: the system's temporary one unless that is a tmpfs, else the project's cache."""
    temporary = Path(tempfile.gettempdir())
    if os.stat(temporary).st_dev != os.stat(_TMPFS).st_dev and _file_system(temporary) != "tmpfs":
        return temporary
    cache = ROOT / ".cache"
    cache.mkdir(exist_ok=True)
    return cache


def _file_system(path: Path) -> str:
    best = ("", "")
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, *_ = line.split()
        if path.is_relative_to(mount) and len(mount) > len(best[0]):
            best = (mount, kind)
    return best[1]
