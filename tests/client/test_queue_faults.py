"""Brokers restart, connections are lost, leaders change: readers of queues go on, and no message is lost."""

from __future__ import annotations

import os
import threading
import time

import pytest

import clarion
from clarion.client.bus import Bus
from clarion.testing import EmbeddedBroker, cluster, embedded

from .words import PATIENCE_SECONDS, queue_settings, take, wait_for


class Worker:
    """Reads a queue in a thread of its own, and acknowledges everything."""

    def __init__(self, bus: Bus, topic: str, queue: str | None = None) -> None:
        self.reading = bus.read(topic, subscription=queue or topic, mode=None if queue else "queue")
        self.seen: list[tuple[int, int, int]] = []
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        try:
            for message in self.reading:
                self.seen.append((message.partition, message.offset, message.deliveries))
                message.ack()
        except BaseException as error:
            self._failure = error
            raise

    def end(self) -> None:
        self.reading.close()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()
        assert self._failure is None

    @property
    def places(self) -> set[tuple[int, int]]:
        return {(partition, offset) for partition, offset, _ in self.seen}


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_a_reader_goes_on_after_its_broker_was_gone(how: str) -> None:
    with embedded() as broker, clarion.connect(broker.bootstrap) as bus:
        bus.create("orders", partitions=2)
        queue_settings(broker.bootstrap, "orders")
        worker = Worker(bus, "orders")
        written = {one[1:3] for one in bus.write_many("orders", [f"{n}" for n in range(50)])}
        wait_for(lambda: worker.places == written)
        if how == "kill":
            broker.kill()
            broker.start()
        else:
            broker.restart()
        written |= {one[1:3] for one in bus.write_many("orders", [f"{n}" for n in range(50, 100)])}
        wait_for(lambda: worker.places == written)
        worker.end()
        again = bus.read("orders", subscription="orders", mode="queue")
        assert again.batch(timeout=1) == []  # everything was acknowledged


def test_a_lost_connection_is_not_noticed() -> None:
    with embedded() as broker, clarion.connect(broker.bootstrap) as bus:
        bus.create("orders")
        queue_settings(broker.bootstrap, "orders")
        bus.write_many("orders", [f"{n}" for n in range(10)])
        with bus.read("orders", subscription="orders", mode="queue") as reading:
            seen = take(reading, 10)
            for message in seen[:5]:
                message.ack()
            broker.faults.drop_connections()
            for message in seen[5:]:
                message.ack()
            reading.flush()  # nothing that was said is lost, whichever connection it was said on
            bus.write("orders", "more")
            (more,) = take(reading, 1)
            assert (more.text, more.deliveries) == ("more", 1)
            more.ack()
        with bus.read("orders", subscription="orders", mode="queue") as reading:
            assert reading.batch(timeout=0.5) == []


def test_what_was_held_of_a_broker_that_restarted_comes_again_and_late_words_are_told() -> None:
    with embedded() as broker, clarion.connect(broker.bootstrap) as bus:
        bus.create("orders")
        queue_settings(broker.bootstrap, "orders")
        bus.write("orders", "once")
        with bus.read("orders", subscription="orders", mode="queue") as reading:
            (first,) = take(reading, 1)
            broker.restart()
            (second,) = take(reading, 1)
            assert (second.text, second.deliveries) == ("once", 2)
            first.ack()  # of a delivery that is over
            with pytest.raises(clarion.NotAcknowledged, match="orders-0@0"):
                reading.flush()
            second.ack()
            reading.flush()


def test_a_reader_follows_the_leader_of_its_partition() -> None:
    with cluster(brokers=3) as brokers, clarion.connect(brokers.bootstrap) as bus:
        brokers.create_topic("orders", 3)
        queue_settings(brokers.bootstrap, "orders")
        worker = Worker(bus, "orders")
        written = {
            one[1:3] for one in bus.write_many("orders", [{"value": f"{n}", "partition": n % 3} for n in range(60)])
        }
        wait_for(lambda: worker.places == written)
        brokers.kill(brokers.leader_of("orders", 0))
        written |= {
            one[1:3]
            for one in bus.write_many("orders", [{"value": f"{n}", "partition": n % 3} for n in range(60, 120)])
        }
        wait_for(lambda: worker.places == written)
        worker.end()
        again = bus.read("orders", subscription="orders", mode="queue")
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            for message in again.batch(timeout=0.2):  # what was acknowledged while the leader died may come again
                assert message.deliveries > 1
                message.ack()


def test_what_a_reader_holds_of_a_partition_that_goes_to_another_stays_its_own() -> None:
    """Each broker leads one partition: that the reader has none to read there any more does not end what it holds."""
    with cluster(brokers=3) as brokers, clarion.connect(brokers.bootstrap) as bus:
        bus.create("orders", partitions=3)
        queue_settings(brokers.bootstrap, "orders")
        for number in range(9):
            bus.write("orders", number % 3, f"{number}")
        reading = bus.read("orders", subscription="orders", mode="queue")
        held = take(reading, 9)
        assert {message.partition for message in held} == {0, 1, 2}
        reader = reading._source.reader
        with bus.read("orders", subscription="orders", mode="queue") as other:
            wait_for(lambda: len(reader._assignment) < 3 and len(other._source.reader._sessions) > 0)
            assert other.batch(9, "2s") == []
            for message in held:
                message.ack()
            reading.flush()
            sessions = list(reader._sessions.values())
            wait_for(lambda: all(task.done() for session, task in sessions if not session.partitions))
        bus.write("orders", 0, "one more")
        (again,) = take(reading, 1)
        assert (again.text, again.deliveries) == ("one more", 1)
        again.ack()
        reading.close()


def test_a_subscription_of_a_cluster_is_made_at_any_broker_and_outlives_one() -> None:
    with cluster(brokers=3, metrics_port=0) as brokers, clarion.connect(brokers.bootstrap) as bus:
        bus.create("orders", partitions=3, replication=3)
        bus.subscribe("orders", name="billing", ack_timeout="1m")
        worker = Worker(bus, "orders", "billing")
        written = {
            one[1:3] for one in bus.write_many("orders", [{"value": b"x", "partition": n % 3} for n in range(30)])
        }
        wait_for(lambda: worker.places == written)
        brokers.kill(brokers.leader_of("orders", 0))
        assert bus.subscription("billing").ack_timeout_ms == 60_000
        written |= {
            one[1:3] for one in bus.write_many("orders", [{"value": b"y", "partition": n % 3} for n in range(30)])
        }
        wait_for(lambda: worker.places == written)
        worker.end()


def test_a_forked_child_writes_and_reads_over_connections_of_its_own(
    broker: EmbeddedBroker, bus: Bus, topic: str
) -> None:
    bus.write(topic, 0, "parent")
    child = os.fork()
    if child == 0:  # no test framework from here on: the child tells by its exit status
        status = 1
        try:
            bus.write(topic, 0, "child")
            status = 0 if [one.text for one in take(bus.read(topic), 2)] == ["parent", "child"] else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    bus.write(topic, 0, "parent again")
    assert [one.text for one in take(bus.read(topic), 3)] == ["parent", "child", "parent again"]
