"""Transactions come later. Until then who asks for one is told so at once: an error, never a hang."""

import asyncio
import time

import pytest

from tests.clients.adapters import Aio, Confluent, KafkaPython
from tests.clients.adapters.model import Client
from tests.servers import peer_name

QUICK_S = 30

pytestmark = pytest.mark.skipif(peer_name() != "clarion", reason="Apache Kafka has transactions")


@pytest.mark.needs("transactions")
def test_a_transactional_producer_is_refused_at_once_with_an_error(client: Client, unique: str) -> None:
    attempt = {Confluent: _confluent, KafkaPython: _kafka_python, Aio: _aiokafka}[type(client)]
    began = time.monotonic()
    with pytest.raises(Exception, match=r"(?i)transaction|not supported|unsupported|version|request") as caught:
        attempt(client.bootstrap, unique)
    assert time.monotonic() - began < QUICK_S, f"it took too long to say {caught.value!r}"
    assert not isinstance(caught.value, TimeoutError)


def _confluent(bootstrap: str, name: str) -> None:
    import confluent_kafka

    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "log_level": 0})
    producer.init_transactions(2 * QUICK_S)


def _kafka_python(bootstrap: str, name: str) -> None:
    import kafka

    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, transactional_id=name, max_block_ms=2000 * QUICK_S)
    try:
        producer.init_transactions()
    finally:
        producer.close(0.5)


def _aiokafka(bootstrap: str, name: str) -> None:
    import aiokafka

    async def attempt() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
        try:
            await asyncio.wait_for(producer.start(), 2 * QUICK_S)
        finally:
            await producer.stop()

    asyncio.run(attempt())
