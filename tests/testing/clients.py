"""Impatient clients: the three libraries with time limits that suit a test."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer


def confluent_producer(bootstrap: str, **settings: Any) -> Producer:
    return Producer(
        {**_quick(bootstrap), "linger.ms": 0, **{name.replace("_", "."): value for name, value in settings.items()}}
    )


def _quick(bootstrap: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "log_level": 0,  # lost connections are what these tests are about
        "retry.backoff.ms": 10,
        "retry.backoff.max.ms": 50,
        "reconnect.backoff.ms": 10,
        "reconnect.backoff.max.ms": 50,
    }


class Delivery:
    """What came of one message; `error` is None when it is acknowledged."""

    def __init__(self) -> None:
        self.error: KafkaError | None = None
        self.message: Message | None = None

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        self.error, self.message = error, message

    @property
    def is_done(self) -> bool:
        return self.message is not None


def send(producer: Producer, topic: str, value: str, *, seconds: float = 60) -> Delivery:
    """Produce one message and wait for its fate."""
    delivery = Delivery()
    producer.produce(topic, value.encode(), on_delivery=delivery)
    producer.flush(seconds)
    assert delivery.is_done, "no answer, and no time-out either"
    return delivery


@contextmanager
def confluent_consumer(bootstrap: str, *topics: str, **settings: Any) -> Iterator[Consumer]:
    quick = {
        **_quick(bootstrap),
        "group.id": "readers",
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 50,
        "fetch.error.backoff.ms": 10,
        "coordinator.query.interval.ms": 50,
    }
    consumer = Consumer({**quick, **{name.replace("_", "."): value for name, value in settings.items()}})
    consumer.subscribe(list(topics))
    try:
        yield consumer
    finally:
        consumer.close()


def read(consumer: Consumer, count: int, *, seconds: float = 60) -> list[str]:
    """The values of the next `count` messages; errors on the way are the client's to get over."""
    values: list[str] = []
    for _ in range(int(seconds / 0.1)):
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            values.append(message.value().decode())
            if len(values) == count:
                return values
    raise AssertionError(f"{len(values)} of {count} messages came: {values}")
