"""Topics made, filled and deleted by librdkafka, which shares no code with what is tested here."""

from collections.abc import Sequence

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.waiting import PATIENCE_SECONDS


def create(bootstrap: str, topic: str, partitions: int = 1, **config: str) -> None:
    """Settings with underscores for dots: `max_message_bytes="20000"`."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    settings = {name.replace("_", "."): value for name, value in config.items()}
    admin.create_topics([NewTopic(topic, partitions, 1, config=settings)])[topic].result(PATIENCE_SECONDS)


def delete(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(PATIENCE_SECONDS)


def delete_before(bootstrap: str, topic: str, offset: int, partition: int = 0) -> None:
    """What retention would do."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    place = TopicPartition(topic, partition, offset)
    next(iter(admin.delete_records([place]).values())).result(PATIENCE_SECONDS)


def fill(bootstrap: str, topic: str, values: Sequence[bytes], partition: int = 0, **options: object) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **options})
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(PATIENCE_SECONDS) == 0


def ends(bootstrap: str, topic: str) -> list[int]:
    """Of all partitions: the offset of the next message."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"ends-of-{topic}"})
    partitions = sorted(consumer.list_topics(topic, timeout=PATIENCE_SECONDS).topics[topic].partitions)
    found = [
        consumer.get_watermark_offsets(TopicPartition(topic, one), timeout=PATIENCE_SECONDS)[1] for one in partitions
    ]
    consumer.close()
    return found


def numbered(count: int, size: int = 20) -> list[bytes]:
    return [b"%08d" % n + b"." * size for n in range(count)]


def contents(bootstrap: str, topic: str) -> list[bytes]:
    """The values of all messages that are there now, partition by partition."""
    group = f"contents-of-{topic}"
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    partitions = sorted(consumer.list_topics(topic, timeout=PATIENCE_SECONDS).topics[topic].partitions)
    out = []
    for partition in partitions:
        place = TopicPartition(topic, partition, 0)
        first, last = consumer.get_watermark_offsets(place, timeout=PATIENCE_SECONDS)
        place.offset = first
        consumer.assign([place])
        while first < last:
            (message,) = consumer.consume(1, timeout=PATIENCE_SECONDS)
            out.append(message.value())
            first = message.offset() + 1
    consumer.close()
    return out
