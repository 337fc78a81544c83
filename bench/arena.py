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
from bench.peers.clarion import ClarionServer
from bench.peers.kafka import KafkaServer
from bench.peers.nats import NatsServer
from bench.peers.process import ROOT, PeerUnavailable, ServerProcess
from bench.sizes import Sizes

PEERS: dict[str, type[ServerProcess]] = {"clarion": ClarionServer, "kafka": KafkaServer, "nats": NatsServer}
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
        for server in self._pool.values():
            server.stop()
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
        return run_job(job, dialect=server.name, port=server.port, pid=server.pid, **settings)

    def wait_for_quiet(self) -> None:
        """Lets what the last round left behind (deletions, compilers, collectors) finish first; bounded."""
        deadline = time.monotonic() + _QUIET_WITHIN_S
        while time.monotonic() < deadline:
            before = self._pool_cpu_seconds()
            time.sleep(0.2)
            if self._pool_cpu_seconds() - before <= 0.2 * _QUIET_CPU_SHARE * max(1, len(self._pool)):
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
        if peer in self.why_not:
            raise PeerUnavailable(self.why_not[peer])
        fsync = durability == "fsync"
        folder = (self.disk if fsync else self.tmpfs) / f"{peer}-{next(self._numbers)}" / "data"
        return PEERS[peer](folder, fsync=fsync)  # type: ignore[call-arg]

    def _warm(self, server: ServerProcess, durability: str) -> None:
        seconds, acks = self.sizes.warm_seconds, -1 if durability == "fsync" else 1
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

    def _pool_cpu_seconds(self) -> float:
        return sum(server.cpu_seconds() for server in self._pool.values())


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
