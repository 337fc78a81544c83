"""`clarion.testing.cluster`: several brokers in a test's process, and what becomes of messages when they die."""

from confluent_kafka import Consumer, Producer

from clarion.testing import cluster


def producer(bootstrap: str) -> Producer:
    return Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "log_level": 0})


def write(client: Producer, topic: str, first: int, count: int) -> None:
    """Returns when all are acknowledged."""
    failures: list[object] = []
    for number in range(first, first + count):
        client.produce(topic, b"%d" % number, on_delivery=lambda error, _: failures.append(error) if error else None)
    assert client.flush(60) == 0
    assert not failures


def test_messages_survive_the_death_of_their_leader():
    with cluster(brokers=3, topics=["orders"]) as brokers:
        client = producer(brokers.bootstrap)
        write(client, "orders", 0, 50)
        first = brokers.leader_of("orders")
        brokers.kill(first)
        write(client, "orders", 50, 50)
        assert brokers.leader_of("orders") != first
        assert [int(one.value) for one in brokers.messages("orders")] == list(range(100))
        brokers.start(first)
        brokers.wait_until_in_sync("orders")
        assert brokers.in_sync("orders") == [1, 2, 3]


def test_a_group_goes_on_where_it_was_when_its_coordinator_dies():
    with cluster(brokers=3, topics=["orders"]) as brokers:
        client = producer(brokers.bootstrap)
        write(client, "orders", 0, 10)
        reader = Consumer(
            {"bootstrap.servers": brokers.bootstrap, "group.id": "g", "auto.offset.reset": "earliest", "log_level": 0}
        )
        reader.subscribe(["orders"])
        read = [int(one.value()) for one in reader.consume(10, 60)]
        reader.commit(asynchronous=False)
        reader.close()
        assert read == list(range(10))
        brokers.kill(brokers.leader_of("__consumer_offsets"))
        write(client, "orders", 10, 10)
        again = Consumer(
            {"bootstrap.servers": brokers.bootstrap, "group.id": "g", "auto.offset.reset": "earliest", "log_level": 0}
        )
        again.subscribe(["orders"])
        assert [int(one.value()) for one in again.consume(10, 60)] == list(range(10, 20))
        again.close()


def test_a_clean_stop_hands_over_first_and_nobody_is_asked_twice():
    with cluster(brokers=3, topics={"orders": 3}) as brokers:
        client = producer(brokers.bootstrap)
        write(client, "orders", 0, 30)
        for number in (1, 2, 3):
            brokers.stop(number)
            write(client, "orders", 30 * number, 30)
            brokers.start(number)
            brokers.wait_until_in_sync("orders")
        assert sorted(int(one.value) for one in brokers.messages("orders")) == list(range(120))
