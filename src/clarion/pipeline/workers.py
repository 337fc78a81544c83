"""What a Python process of Spark keeps from one task to the next: connections, producers, a quick garbage collector.

Workers are forked once and used for many tasks, and PySpark collects garbage after each of them. Whatever lives through
that (all imported modules) is taken out of its sight: 40 ms per task become 10.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from clarion.pipeline.kafka.client import Client
from clarion.pipeline.kafka.producer import IdempotentProducer, ProducerSettings
from clarion.pipeline.kafka.settings import ClientSettings

_clients: dict[tuple[int, ClientSettings], Client] = {}
_producers: dict[tuple[int, ClientSettings, ProducerSettings], IdempotentProducer] = {}


def kept_client(settings: ClientSettings) -> Client:
    """This process's client for these settings. The process id is part of the key: sockets do not survive a fork."""
    key = (os.getpid(), settings)
    client = _clients.get(key)
    if client is None:
        client = _clients[key] = Client(settings)
    return client


@contextmanager
def kept_producer(client: ClientSettings, settings: ProducerSettings) -> Iterator[IdempotentProducer]:
    """This process's producer for these settings, for one task. Whoever fails leaves it in doubt, and the next task
    gets a new one."""
    key = (os.getpid(), client, settings)
    producer = _producers.pop(key, None) or IdempotentProducer(kept_client(client), settings)
    try:
        producer.begin()
        yield producer
        producer.flush()
    except BaseException:
        producer.close()
        raise
    _producers[key] = producer


def freeze_in_workers() -> None:
    """To be called at the end of a module that workers import."""
    if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER":
        gc.collect()
        gc.freeze()


CORES_VARIABLE: Final = "CLARION_SPARK_CORES"


def cores() -> int | None:
    """How many tasks run at once, as whoever made the session told us: a planner cannot ask Spark. None where only the
    cluster knows; and where nobody said anything, Spark runs on this machine."""
    told = os.environ.get(CORES_VARIABLE, "")
    return (int(told) or None) if told.isdigit() else len(os.sched_getaffinity(0))
