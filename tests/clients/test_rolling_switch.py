"""`group.protocol` is switched by a rolling restart, under load: classic → consumer → classic."""

from __future__ import annotations

import pytest

from tests.clients.adapters import Confluent
from tests.clients.adapters.model import PATIENCE_S, Client, Member, Outgoing
from tests.clients.workers import Pump, Worker, wait_until_shared
from tests.waiting import wait_for

PARTITIONS = 6
MODERN = {"group.protocol": "consumer"}


class RollingGroup:
    """Members at work, replaced one after the other; every message they are sent counts."""

    def __init__(self, client: Confluent, admin: Client, name: str, *, strategy: str, instances: bool) -> None:
        self.client, self.admin, self.name = client, admin, name
        self.classic = {"partition.assignment.strategy": strategy}
        self.instances = instances
        self.everything = {(name, partition) for partition in range(PARTITIONS)}
        admin.create_topic(name, PARTITIONS)
        self.pump = Pump(admin, name, PARTITIONS)
        self.workers: list[Worker] = []
        self.retired: list[Worker] = []
        self.stable_times: list[range] = []  # of message numbers, while nobody came or went

    def start(self, count: int) -> None:
        self.workers = [self._worker(at, self.classic) for at in range(count)]
        self._see_it_stable()

    def switch(self, settings: dict[str, str]) -> None:
        for at, worker in enumerate(self.workers):
            worker.leave()
            self.retired.append(worker)
            self.workers[at] = self._worker(at, settings)
            wait_until_shared(self.workers, self.everything)
        self._see_it_stable()

    def finish(self) -> None:
        sent = self.pump.stop()

        def missing() -> set[bytes]:
            return set(sent).difference(self._seen())

        wait_for(lambda: not missing(), seconds=PATIENCE_S, what="every message to be processed")
        for worker in self.workers:
            worker.leave()
        for numbers in self.stable_times:
            seen = [value for value in self._seen() if int(value) in numbers]
            assert len(seen) == len(set(seen)), "a message of a stable time was processed twice: two owners"

    def _worker(self, at: int, settings: dict[str, str]) -> Worker:
        instance = f"instance-{at}" if self.instances else None

        def join() -> Member:
            return self.client.member(self.name, [self.name], instance=instance, **settings)

        return Worker(join)

    def _see_it_stable(self) -> None:
        wait_until_shared(self.workers, self.everything)
        first = len(self.pump.sent) + 50  # what was in flight before may have been seen by an earlier owner
        wait_for(lambda: len(self.pump.sent) > first + 150, what="load on a stable assignment")
        self.stable_times.append(range(first, first + 100))

    def _seen(self) -> list[bytes]:
        return [message.value for worker in (*self.retired, *self.workers) for message in worker.seen]


@pytest.mark.needs("kip848")
def test_a_rolling_switch_of_the_group_protocol_and_back_loses_and_repeats_nothing(
    client: Confluent, admin: Client, unique: str
) -> None:
    group = RollingGroup(client, admin, unique, strategy="cooperative-sticky", instances=False)
    group.start(2)
    group.switch(MODERN)
    group.switch(group.classic)
    group.finish()


@pytest.mark.campaign
@pytest.mark.needs("kip848")
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("instances", [False, True], ids=["dynamic", "static"])
def test_rolling_switches_of_larger_groups_again_and_again(
    client: Confluent, admin: Client, unique: str, strategy: str, instances: bool
) -> None:
    group = RollingGroup(client, admin, unique, strategy=strategy, instances=instances)
    group.start(3)
    for _ in range(2):
        group.switch(MODERN)
        group.switch(group.classic)
    group.finish()


@pytest.mark.needs("kip848")
def test_a_group_in_the_middle_of_the_switch_outlives_the_brokers_death(
    client: Confluent, own_server, unique: str
) -> None:
    client = type(client)(own_server.bootstrap)
    client.create_topic(unique, PARTITIONS)
    everything = {(unique, partition) for partition in range(PARTITIONS)}
    classic = {"partition.assignment.strategy": "cooperative-sticky"}
    workers = [Worker(lambda how=how: client.member(unique, [unique], **how)) for how in (classic, MODERN)]
    wait_until_shared(workers, everything)
    client.produce(unique, [Outgoing(b"%d" % n, partition=n % PARTITIONS) for n in range(60)])
    wait_for(lambda: len(_values(workers)) == 60, seconds=PATIENCE_S, what="the first messages")
    wait_for(lambda: sum(at.offset for at in client.group_offsets(unique).values()) == 60, what="their commits")
    own_server.restart(kill=True)
    Confluent(own_server.bootstrap).produce(
        unique, [Outgoing(b"%d" % n, partition=n % PARTITIONS) for n in range(60, 120)]
    )
    wait_for(lambda: len(set(_values(workers))) == 120, seconds=PATIENCE_S, what="the others")
    wait_until_shared(workers, everything)
    for worker in workers:
        worker.leave()
    assert sorted(_values(workers), key=int)[:60] == [b"%d" % n for n in range(60)], "what was committed came again"


def _values(workers: list[Worker]) -> list[bytes]:
    return [message.value for worker in workers for message in worker.seen]
