"""Topics made, filled and deleted by librdkafka, which shares no code with what is tested here."""

from collections.abc import Sequence

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic


def create(bootstrap: str, topic: str, partitions: int = 1, **config: str) -> None:
    """Settings with underscores for dots: `max_message_bytes="20000"`."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    settings = {name.replace("_", "."): value for name, value in config.items()}
    admin.create_topics([NewTopic(topic, partitions, 1, config=settings)])[topic].result(15)


def delete(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(15)


def fill(bootstrap: str, topic: str, values: Sequence[bytes], partition: int = 0, **options: object) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **options})
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(30) == 0


def numbered(count: int, size: int = 20) -> list[bytes]:
    return [b"%08d" % n + b"." * size for n in range(count)]
