"""`cluster()`: several brokers of one real cluster inside this process, each in a thread of its own.

with cluster(brokers=3, topics={"orders": 2}) as brokers:
    producer = Producer({"bootstrap.servers": brokers.bootstrap, "acks": "all"})
    brokers.kill(brokers.leader_of("orders"))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from clarion.broker.broker import Broker
from clarion.cluster import ClusterImage, PartitionState
from clarion.testing.content import Message
from clarion.testing.embedded_broker import EmbeddedBroker, embedded
from clarion.testing.errors import BrokerDownError
from clarion.testing.folder import TemporaryFolder
from clarion.testing.options import Topics, topic_sizes
from clarion.testing.waiting import wait_until

__tracebackhide__: Final = True  # by pytest, as in embedded_broker
_WAIT_SECONDS: Final = 30.0  # elections and catching up take milliseconds; a busy machine takes longer


def cluster(
    *,
    brokers: int = 3,
    topics: Topics = (),
    settings: Mapping[str, object] | None = None,
    durability: str = "page-cache",
    data_dir: str | Path | None = None,
    racks: Sequence[str] = (),
    **config: Any,
) -> EmbeddedCluster:
    """Brokers that run as long as the block. What is said is as for `embedded`, and holds for all of them.

    racks: where each of them stands, in their order.
    """
    if brokers < 1:
        raise ValueError(f"a cluster of {brokers} brokers")
    if racks and len(racks) != brokers:
        raise ValueError(f"{len(racks)} racks of {brokers} brokers")
    each = [{**config, "rack": rack} for rack in racks] or [config] * brokers
    return EmbeddedCluster(topic_sizes(topics), settings or {}, durability, data_dir, each)


class EmbeddedCluster:
    """Made by `cluster`. `cluster[2]` is broker 2."""

    def __init__(
        self,
        topics: Mapping[str, int],
        settings: Mapping[str, object],
        durability: str,
        data_dir: str | Path | None,
        each: Sequence[Mapping[str, Any]],
    ) -> None:
        self._topics = topics
        self._folder = TemporaryFolder() if data_dir is None else None
        folder = self._folder.data if self._folder else Path(data_dir or "")
        self._brokers = {
            number: embedded(
                settings=settings,
                durability=durability,
                data_dir=folder / f"broker-{number}",
                node_id=number,
                cluster=f"file:{folder / 'cluster'}",
                **config,
            )
            for number, config in enumerate(each, start=1)
        }
        self._ending = ExitStack()

    def __enter__(self) -> Self:
        try:
            if self._folder is not None:
                self._ending.callback(self._folder.remove)
            for broker in self._brokers.values():
                self._ending.enter_context(broker)
            count = len(self._brokers)
            self.wait_for(lambda: all(len(self._image(one).brokers) == count for one in self._brokers))
            for name, partitions in self._topics.items():
                self.create_topic(name, partitions)
        except BaseException:
            self._ending.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ending.__exit__(kind, error, at)

    def __getitem__(self, number: int) -> EmbeddedBroker:
        return self._brokers[number]

    def __iter__(self) -> Iterator[EmbeddedBroker]:
        return iter(self._brokers.values())

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self._brokers.values())

    @property
    def running(self) -> list[int]:
        return [number for number, broker in self._brokers.items() if broker.is_running]

    # What happens to brokers

    def kill(self, number: int) -> None:
        """As kill -9 does."""
        self._brokers[number].kill()

    def stop(self, number: int) -> None:
        """Cleanly: it hands over what it leads first."""
        self._brokers[number].stop()

    def start(self, number: int) -> None:
        self._brokers[number].start()

    # What the cluster knows

    def create_topic(self, name: str, partitions: int = 1, **settings: object) -> None:
        """Returns when all its partitions are led, and every broker that runs knows of it."""
        self._brokers[self.running[0]].create_topic(name, partitions, **settings)
        self.wait_for(lambda: all(name in self._image(one).topics for one in self.running))
        self.wait_for(lambda: all(self._is_led(name, index) for index in range(partitions)))

    def leader_of(self, topic: str, partition: int = 0) -> int:
        """The number of the broker that leads it now; waits until there is one."""
        self.wait_for(lambda: self._is_led(topic, partition))
        return self._state(topic, partition).leader

    def in_sync(self, topic: str, partition: int = 0) -> list[int]:
        return sorted(self._state(topic, partition).in_sync)

    def wait_until_in_sync(self, topic: str, timeout: float = _WAIT_SECONDS) -> None:
        """Returns when every replica of the topic has everything."""
        self.wait_for(
            lambda: all(
                set(one.in_sync) == set(one.replicas) for one in self._image(self.running[0]).topics[topic].partitions
            ),
            timeout,
        )

    def messages(self, topic: str) -> list[Message]:
        """Every message that a reader could see now, partition by partition, from their leaders."""
        count = len(self._image(self.running[0]).topics[topic].partitions)
        return [
            message
            for index in range(count)
            for message in self._brokers[self.leader_of(topic, index)].messages(topic, index)
        ]

    def wait_for(self, condition: Callable[[], object], timeout: float = _WAIT_SECONDS) -> None:
        wait_until(condition, timeout)

    def _is_led(self, topic: str, index: int) -> bool:
        leader = self._state(topic, index).leader
        if leader not in self.running:
            return False

        def leads(broker: Broker) -> bool:
            partition = broker.partitions.find(broker.image.topics[topic].id, index)
            return partition is not None and partition.is_watermark_current

        try:
            return self._brokers[leader]._call(leads)
        except (BrokerDownError, KeyError):
            return False

    def _state(self, topic: str, index: int) -> PartitionState:
        return self._image(self.running[0]).topics[topic].partitions[index]

    def _image(self, number: int) -> ClusterImage:
        return self._brokers[number]._call(lambda broker: broker.image)
