"""The clients under test."""

from tests.clients.adapters.aio import Aio
from tests.clients.adapters.confluent import Confluent
from tests.clients.adapters.kafka_python import KafkaPython
from tests.clients.adapters.kcat import Kcat

CLIENTS = (Confluent, KafkaPython, Aio, Kcat)

__all__ = ["CLIENTS", "Aio", "Confluent", "KafkaPython", "Kcat"]
