"""A real consumer with `client.rack`: it reads from the broker in its rack, and from the leader when that one dies."""

from __future__ import annotations

import uuid

from confluent_kafka import Consumer, Producer, TopicPartition

from clarion.testing import EmbeddedCluster, cluster

RACKS = ("a", "b", "c")
COUNT = 300


def write(bootstrap: str, first: int, count: int) -> None:
    failures: list[object] = []
    client = Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "log_level": 0})
    for number in range(first, first + count):
        client.produce("t", b"%d" % number, on_delivery=lambda error, _: failures.append(error) if error else None)
    assert client.flush(60) == 0
    assert not failures


def served_bytes(brokers: EmbeddedCluster, number: int) -> int:
    """To clients, not to followers."""
    return brokers[number]._call(lambda broker: sum(one.bytes_out_total for one in broker.partitions))


def is_known_to(brokers: EmbeddedCluster, follower: int, leader: int, watermark: int) -> bool:
    def heard(broker) -> bool:
        session = broker.sessions._followers.get(follower)
        followed = session and session.partitions.get((broker.image.topics["t"].id, 0))
        return bool(followed) and broker.sessions.heard_watermark(follower, followed) >= watermark

    return brokers[leader]._call(heard)


class Reader:
    def __init__(self, brokers: EmbeddedCluster, rack: str) -> None:
        self.values: list[int] = []
        self.watermarks: list[int] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": brokers.bootstrap,
                "group.id": str(uuid.uuid4()),
                "client.rack": rack,
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        self._at = TopicPartition("t", 0, 0)
        self._consumer.assign([self._at])

    def read_until(self, brokers: EmbeddedCluster, count: int) -> None:
        def has_all() -> bool:
            for message in self._consumer.consume(100, 0.2):
                assert message.error() is None
                self.values.append(int(message.value()))
            known = self._consumer.get_watermark_offsets(self._at, cached=True)
            if known is not None and known[1] >= 0:
                self.watermarks.append(known[1])
            return len(self.values) >= count

        brokers.wait_for(has_all, 120)

    def close(self) -> None:
        self._consumer.close()


def test_a_consumer_reads_in_its_rack_and_from_the_leader_when_that_broker_dies() -> None:
    selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
    with cluster(brokers=3, topics=["t"], racks=RACKS, replica_selector_class=selector) as brokers:
        write(brokers.bootstrap, 0, COUNT)
        leader = brokers.leader_of("t")
        follower = next(one for one in (3, 2, 1) if one != leader)
        brokers.wait_for(lambda: is_known_to(brokers, follower, leader, COUNT), 60)
        reader = Reader(brokers, RACKS[follower - 1])
        reader.read_until(brokers, COUNT)
        assert served_bytes(brokers, follower) > 0
        assert served_bytes(brokers, leader) == 0, "all came from the follower"
        write(brokers.bootstrap, COUNT, COUNT)
        reader.read_until(brokers, 2 * COUNT)
        brokers.kill(follower)
        write(brokers.bootstrap, 2 * COUNT, COUNT)
        reader.read_until(brokers, 3 * COUNT)
        assert served_bytes(brokers, leader) > 0
        reader.close()
        assert reader.values == list(range(3 * COUNT))
        assert reader.watermarks == sorted(reader.watermarks)
