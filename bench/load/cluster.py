"""Topics of a cluster: placed the same way on every peer, awaited until all replicas are in sync, counted by leader."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from bench import frames
from bench.load.admin import TOPIC_SETTINGS, KafkaAdmin

BROKERS = 3
REPLICAS = 3
_SETTINGS = TOPIC_SETTINGS | {"min.insync.replicas": "2"}
_WITHIN_S = 90.0  # three JVMs that share two cores with others have been seen to take 30 s
_LOOK_EVERY_S = 0.02
_UNKNOWN_YET = frozenset({3, 5})  # unknown topic, leader not available: this broker has not heard of it yet

Address = tuple[str, int]


def rotated(partitions: int) -> list[list[int]]:
    """Who holds each partition: the brokers 1 to 3 in turn, so that each is to lead a third of them."""
    brokers = range(1, BROKERS + 1)
    return [[brokers[(partition + place) % BROKERS] for place in range(REPLICAS)] for partition in range(partitions)]


class ClusterAdmin:
    """The wishes of an Admin, asked of any one broker; what only a leader answers is asked of the leaders."""

    def __init__(self, address: Address) -> None:
        self._any = KafkaAdmin(address)

    def create(self, topic: str, partitions: int = BROKERS) -> None:
        request = frames.create_placed_topic(topic, rotated(partitions), _SETTINGS)
        error = frames.create_topic_error(self._any.ask(request))
        if error:
            raise RuntimeError(f"topic {topic} could not be created: error {error}")
        self.wait_until(topic, lambda state: is_placed(state, partitions), "led where it was placed, and in sync")

    def delete(self, topic: str) -> None:
        self._any.delete(topic)

    def messages(self, topic: str, partitions: int = BROKERS) -> int:
        led: dict[Address, list[int]] = {}
        for partition, leader in enumerate(self.leaders(topic)):
            led.setdefault(leader, []).append(partition)
        return sum(_messages(leader, topic, theirs) for leader, theirs in led.items())

    def leaders(self, topic: str) -> list[Address]:
        """Where the leader of each partition listens."""
        state = self.state(topic)
        return [("127.0.0.1", state.ports[state.partitions[index].leader]) for index in sorted(state.partitions)]

    def state(self, topic: str) -> frames.ClusterState:
        return frames.read_metadata(self._any.ask(frames.metadata([topic])))

    def wait_until(self, topic: str, is_so: Callable[[frames.ClusterState], bool], what: str) -> None:
        deadline = time.monotonic() + _WITHIN_S
        while True:
            state = self.state(topic)
            if state.topic_error and state.topic_error not in _UNKNOWN_YET:
                raise RuntimeError(f"topic {topic}: error {state.topic_error}")
            if not state.topic_error and is_so(state):
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"topic {topic} was not {what} within {_WITHIN_S:.0f} s")
            time.sleep(_LOOK_EVERY_S)

    def close(self) -> None:
        self._any.close()


def is_placed(state: frames.ClusterState, partitions: int) -> bool:
    """Whether every partition is led by the broker that was named first for it, with all replicas in sync."""
    wanted = {index: brokers[0] for index, brokers in enumerate(rotated(partitions))}
    return is_replicated(state) and {index: one.leader for index, one in state.partitions.items()} == wanted


def is_replicated(state: frames.ClusterState) -> bool:
    return bool(state.partitions) and all(len(one.in_sync) == REPLICAS for one in state.partitions.values())


def is_led_without(state: frames.ClusterState, broker: int) -> bool:
    """Whether others lead everything, and nobody takes this broker for one that is in sync."""
    return all(one.leader not in (-1, broker) and broker not in one.in_sync for one in state.partitions.values())


def brokers_known_at(address: Address) -> int:
    """How many brokers the one at this address says there are; 0 if it does not answer yet."""
    try:
        admin = KafkaAdmin(address)
    except OSError:
        return 0
    try:
        return len(frames.read_metadata(admin.ask(frames.metadata([]))).ports)
    except OSError:
        return 0
    finally:
        admin.close()


def _messages(leader: Address, topic: str, partitions: Sequence[int]) -> int:
    admin = KafkaAdmin(leader)
    ends = frames.read_latest_offsets(admin.ask(frames.latest_offsets(topic, partitions)))
    admin.close()
    errors = sorted({error for error, _ in ends} - {0})
    if errors:
        raise RuntimeError(f"the ends of {topic} cannot be read: errors {errors}")
    return sum(offset for _, offset in ends)
