"""Three brokers that are one cluster, all on 127.0.0.1: `clarion serve --brokers 3`, and three processes of Kafka.

On both sides three replicas of which two must have a message (`min.insync.replicas=2`). Clarion's supervisor starts a
broker anew that died; Kafka's are broker and controller at once, a quorum of three, and started anew by `start_again`.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from bench.load.cluster import BROKERS, brokers_known_at
from bench.peers.clarion import ClarionServer
from bench.peers.kafka import KafkaServer
from bench.peers.process import (
    READY_WITHIN_S,
    child_pids,
    cpu_seconds_of,
    free_ports_in_a_row,
)

_HEAP = "512m"  # of each of the three


class Cluster(Protocol):
    name: str
    is_supervised: bool  # whether a broker that was killed comes back by itself

    @property
    def pids(self) -> list[int]: ...
    @property
    def ports(self) -> list[int]: ...
    def __enter__(self) -> Self: ...
    def stop(self) -> None: ...
    def remove(self) -> None: ...
    def cpu_seconds(self) -> float: ...
    def pid_of(self, broker: int) -> int: ...
    def start_again(self, broker: int) -> None: ...


class ClarionCluster(ClarionServer):
    """One supervisor and its three brokers, on ports in a row; ready when each of them knows all three."""

    is_supervised = True

    def __init__(self, data_dir: Path, fsync: bool = False) -> None:
        super().__init__(data_dir, free_ports_in_a_row(BROKERS), fsync)

    @property
    def ports(self) -> list[int]:
        return list(range(self.port, self.port + BROKERS))

    def command(self) -> Sequence[str]:
        return (*super().command(), "--brokers", str(BROKERS))

    def wait_until_ready(self, deadline: float) -> None:
        self.poll_until(lambda: _all_know_all(self.ports), deadline)

    def pid_of(self, broker: int) -> int:
        for pid in child_pids(self.pid):
            if f"--node-id={broker}".encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                return pid
        raise RuntimeError(f"broker {broker} does not run")

    def start_again(self, broker: int) -> None:
        """Its supervisor does."""

    def remove(self) -> None:
        shutil.rmtree(self.data_dir.parent, ignore_errors=True)


class KafkaMember(KafkaServer):
    """One of three: broker and controller, in the static quorum that `voters` names."""

    formatting = ()

    def __init__(self, data_dir: Path, node: int, fsync: bool) -> None:
        super().__init__(data_dir, fsync=fsync, heap=_HEAP)
        self.node = node
        self.voters = ""

    def settings(self) -> dict[str, str]:
        one_node = super().settings()
        del one_node["controller.quorum.bootstrap.servers"]
        internal = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
        replicated = {f"{topic}.replication.factor": "3" for topic in ("default", *internal)}
        minima = {f"{topic}.min.isr": "2" for topic in internal[1:]} | {"min.insync.replicas": "2"}
        quorum = {"node.id": str(self.node), "controller.quorum.voters": self.voters}
        return one_node | replicated | minima | quorum


class KafkaCluster:
    """Three processes; what belongs to the group is here, the rest is each member's own."""

    name = "kafka"
    is_supervised = False

    def __init__(self, data_dir: Path, fsync: bool = False) -> None:
        self.data_dir = data_dir
        self.members = [KafkaMember(data_dir / f"broker-{node}", node, fsync) for node in range(1, BROKERS + 1)]
        voters = ",".join(f"{one.node}@127.0.0.1:{one.controller_port}" for one in self.members)
        for member in self.members:
            member.voters = voters

    def __enter__(self) -> Self:
        for member in self.members:
            member.data_dir.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(BROKERS) as pool:  # a JVM each, only to format
            list(pool.map(KafkaMember.prepare, self.members))
        try:
            for member in self.members:
                member.launch()  # none is ready before a second one is there to vote
            deadline = time.monotonic() + 2 * READY_WITHIN_S
            for member in self.members:
                member.poll_until(lambda: _all_know_all(self.ports), deadline)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pids(self) -> list[int]:
        return [member.pid for member in self.members]

    @property
    def ports(self) -> list[int]:
        return [member.port for member in self.members]

    def cpu_seconds(self) -> float:
        return sum(map(cpu_seconds_of, self.pids))

    def pid_of(self, broker: int) -> int:
        return self.members[broker - 1].pid

    def start_again(self, broker: int) -> None:
        member = self.members[broker - 1]
        member.kill()  # it is dead; this reaps it
        member.launch()

    def stop(self) -> None:
        """All at once, and kill -9: one that stops cleanly waits long for a quorum that is stopping too."""
        for member in self.members:
            member.kill()

    def remove(self) -> None:
        shutil.rmtree(self.data_dir.parent, ignore_errors=True)


CLUSTERS: dict[str, type[ClarionCluster | KafkaCluster]] = {"clarion": ClarionCluster, "kafka": KafkaCluster}


def _all_know_all(ports: Sequence[int]) -> bool:
    return all(brokers_known_at(("127.0.0.1", port)) == BROKERS for port in ports)
