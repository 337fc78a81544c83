"""The processes of `clarion serve --brokers 3`, and what can happen to them. The supervisor starts anew what ends."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests import etcd as etcd_server
from tests.servers import ClarionProcess
from tests.waiting import wait_for

PATIENCE_SECONDS = 90
STORES = ("own store", "etcd")
PLACES = re.compile(r"brokers listen on (\S+), data in")


class Brokers:
    def __init__(self, supervisor: ClarionProcess, etcd: etcd_server.EtcdProcess | None = None) -> None:
        self.supervisor = supervisor
        self.etcd = etcd
        found = PLACES.search(supervisor._output.read_text())
        assert found is not None
        self.bootstrap = found[1]
        self.ids = range(1, len(self.bootstrap.split(",")) + 1)
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def pid_of(self, broker: int) -> int:
        children = Path(f"/proc/{self.supervisor.pid}/task/{self.supervisor.pid}/children").read_text().split()
        for pid in map(int, children):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if f"--node-id={broker}".encode() in words:
                return pid
        raise ProcessLookupError(f"there is no broker {broker}")

    def send(self, broker: int, number: signal.Signals) -> int:
        """Returns which process has got it."""
        pid = self.pid_of(broker)
        os.kill(pid, number)
        return pid

    def kill9(self, broker: int) -> None:
        self.send(broker, signal.SIGKILL)

    @contextmanager
    def frozen(self, broker: int) -> Iterator[None]:
        pid = self.send(broker, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def restart(self, broker: int) -> None:
        """Cleanly; returns when it is there again and every replica has everything."""
        pid = self.send(broker, signal.SIGTERM)

        def is_another() -> bool:
            try:
                return self.pid_of(broker) != pid
            except (ProcessLookupError, FileNotFoundError):
                return False

        wait_for(is_another, seconds=PATIENCE_SECONDS, what=f"broker {broker} is started anew")
        self.wait_until_whole()

    def create(self, topic: str, partitions: int, **config: str) -> None:
        asked = NewTopic(topic, partitions, 3, config={name.replace("_", "."): value for name, value in config.items()})
        self.admin.create_topics([asked])[topic].result(PATIENCE_SECONDS)
        self.wait_until_whole()

    def partitions(self, topic: str) -> dict[int, tuple[int, list[int]]]:
        """Leader and in-sync set of each."""
        found = self.admin.list_topics(topic, timeout=PATIENCE_SECONDS).topics[topic].partitions
        return {index: (one.leader, sorted(one.isrs)) for index, one in found.items()}

    def is_whole(self) -> bool:
        """All brokers are there, and every replica of every topic has everything."""
        try:
            told = self.admin.list_topics(timeout=10)
        except KafkaException:
            return False
        partitions = [one for topic in told.topics.values() for one in topic.partitions.values()]
        is_in_sync = all(one.leader > 0 and sorted(one.isrs) == sorted(one.replicas) for one in partitions)
        return len(told.brokers) == len(self.ids) and is_in_sync

    def wait_until_whole(self, seconds: float = PATIENCE_SECONDS) -> float:
        """Returns how long it took."""
        began = time.monotonic()
        wait_for(self.is_whole, seconds=seconds, what="every replica has everything")
        return time.monotonic() - began


@contextmanager
def running_brokers(folder: Path, store: str, *words: str) -> Iterator[Brokers]:
    """Three of them, over the store of one machine or over a real etcd."""
    with ExitStack() as taken:
        args, etcd = ["--brokers", "3", *words], None
        if store == "etcd":
            if not etcd_server.is_installed():
                pytest.skip(etcd_server.MISSING)
            (etcd,) = etcd_server.etcd_cluster(folder, 1)
            taken.callback(etcd.kill)
            args += ["--cluster", "etcd://{}:{}".format(*etcd.endpoint)]
        supervisor = taken.enter_context(ClarionProcess(folder / "data", durability="page-cache", args=args))
        yield Brokers(supervisor, etcd)
        assert supervisor.terminate() == 0
    assert "Traceback" not in supervisor.stderr
