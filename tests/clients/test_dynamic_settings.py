"""Settings of brokers and groups that librdkafka's and kafka-python's admin clients change while the broker runs."""

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ConfigSource
from kafka.admin import ConfigResource as PythonResource
from kafka.admin import ConfigResourceType, KafkaAdminClient

from tests.clients.adapters import Confluent
from tests.clients.adapters.model import PATIENCE_S

NAME = "log.roll.jitter.ms"  # no other test looks at it


def resource(value: str | None) -> ConfigResource:
    operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    entry = ConfigEntry(NAME, value, incremental_operation=operation)
    return ConfigResource("broker", "1", incremental_configs=[entry])


@pytest.fixture
def python(bootstrap: str) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    yield client
    client.close()


def test_librdkafka_changes_what_topics_inherit(admin: Confluent, topic: str) -> None:
    def inherited() -> ConfigEntry:
        (answer,) = admin.admin.describe_configs([ConfigResource("topic", topic)]).values()
        return answer.result(PATIENCE_S)["segment.jitter.ms"]

    (changed,) = admin.admin.incremental_alter_configs([resource("1234")]).values()
    changed.result(PATIENCE_S)
    try:
        assert (inherited().value, inherited().source) == ("1234", ConfigSource.DYNAMIC_BROKER_CONFIG.value)
    finally:
        (changed,) = admin.admin.incremental_alter_configs([resource(None)]).values()
        changed.result(PATIENCE_S)
    assert (inherited().value, inherited().source) == ("0", ConfigSource.DEFAULT_CONFIG.value)


def test_kafka_python_gives_a_group_its_own_times(python: KafkaAdminClient, unique: str) -> None:
    wanted = {"consumer.session.timeout.ms": "50000"}
    python.alter_configs([PythonResource(ConfigResourceType.GROUP, unique, configs=wanted)])
    assert unique in python.list_config_resources(["GROUP"])["group"]
    told = python.describe_configs([PythonResource(ConfigResourceType.GROUP, unique)])["group"][unique]
    assert [(name, one["value"]) for name, one in told.items()] == list(wanted.items())
