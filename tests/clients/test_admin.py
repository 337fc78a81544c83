"""Admin calls: topics, their settings and partitions, groups."""

import confluent_kafka as ck
import pytest

from tests.clients.adapters import Confluent
from tests.clients.adapters.model import (
    EARLIEST,
    INVALID_CONFIG,
    INVALID_RECORD,
    NON_EMPTY_GROUP,
    PATIENCE_S,
    TOPIC_ALREADY_EXISTS,
    UNKNOWN_TOPIC_OR_PARTITION,
    Client,
    Outgoing,
    Refused,
)
from tests.clients.workers import Worker, wait_until_shared
from tests.waiting import wait_for


@pytest.mark.needs("admin")
def test_a_topic_is_created_described_grown_and_deleted(client: Client, unique: str) -> None:
    client.create_topic(unique, 3)
    assert unique in client.topics()
    assert client.partition_count(unique) == 3
    client.add_partitions(unique, 5)
    wait_for(lambda: client.partition_count(unique) == 5, what="five partitions")
    client.produce(unique, [Outgoing(b"in a new one", partition=4)])
    assert client.read(unique, 4, EARLIEST, 1)[0].value == b"in a new one"
    client.delete_topic(unique)
    wait_for(lambda: unique not in client.topics(), what="the topic to be gone")


@pytest.mark.needs("admin")
def test_what_makes_no_sense_is_refused_with_its_reason(client: Client, topic: str) -> None:
    assert _refusal(lambda: client.create_topic(topic)) == TOPIC_ALREADY_EXISTS
    assert _refusal(lambda: client.delete_topic(f"{topic}-unheard-of")) == UNKNOWN_TOPIC_OR_PARTITION
    assert _refusal(lambda: client.create_topic(f"{topic}-2", config={"no.such.setting": "1"})) == INVALID_CONFIG
    assert _refusal(lambda: client.create_topic(f"{topic}-2", config={"retention.ms": "soon"})) == INVALID_CONFIG
    assert _refusal(lambda: client.set_config(topic, "cleanup.policy", "burn")) == INVALID_CONFIG
    assert _refusal(lambda: client.create_topic(f"{topic} with spaces")) == 17
    assert _refusal(lambda: client.add_partitions(topic, 1)) == 37
    assert f"{topic}-2" not in client.topics()


@pytest.mark.needs("admin")
def test_settings_are_listed_with_defaults_and_change_when_told(client: Client, unique: str) -> None:
    client.create_topic(unique, config={"retention.ms": "3600000"})
    before = client.config(unique)
    assert (before["retention.ms"], before["max.message.bytes"]) == ("3600000", "1048588")
    assert (before["cleanup.policy"], before["compression.type"]) == ("delete", "producer")
    client.set_config(unique, "max.message.bytes", "2000000")
    wait_for(lambda: client.config(unique)["max.message.bytes"] == "2000000", what="the new limit")


@pytest.mark.needs("topic-ids")
def test_a_topic_that_is_created_again_is_another_topic(client: Client, unique: str) -> None:
    client.create_topic(unique)
    client.produce(unique, [Outgoing(b"of the first life")])
    first = client.topic_id(unique)
    client.delete_topic(unique)
    wait_for(lambda: unique not in client.topics(), what="the topic to be gone")
    client.create_topic(unique)
    assert client.topic_id(unique) not in (first, "AAAAAAAAAAAAAAAAAAAAAA", str(None))
    client.produce(unique, [Outgoing(b"of the second life")])
    found = client.read(unique, 0, EARLIEST, 1)
    assert [(m.offset, m.value) for m in found] == [(0, b"of the second life")]


@pytest.mark.needs("admin", "groups")
def test_groups_are_listed_and_described(client: Client, topic: str, admin: Client) -> None:
    group = f"{topic}-group"
    admin.produce(topic, [Outgoing(b"v")])
    worker = Worker(lambda: client.member(group, [topic]))
    wait_until_shared([worker], {(topic, 0)})
    wait_for(lambda: worker.seen, what="the message")
    assert group in client.groups()
    view = client.describe_group(group)
    assert (view.state, view.members) == ("Stable", 1)
    worker.leave()
    wait_for(lambda: client.describe_group(group).state == "Empty", seconds=PATIENCE_S, what="an empty group")
    assert client.group_offsets(group)[topic, 0].offset == 1


@pytest.mark.needs("delete-group")
def test_a_group_is_deleted_only_when_it_is_empty(client: Client, topic: str, admin: Client) -> None:
    group = f"{topic}-group"
    admin.produce(topic, [Outgoing(b"v")])
    worker = Worker(lambda: client.member(group, [topic]))
    wait_for(lambda: worker.seen, seconds=PATIENCE_S, what="the message")
    assert _refusal(lambda: client.delete_group(group)) == NON_EMPTY_GROUP
    worker.leave()
    client.delete_group(group)
    assert group not in client.groups()


@pytest.mark.needs("admin")
def test_a_compacted_topic_refuses_a_message_without_a_key(client: Client, unique: str) -> None:
    client.create_topic(unique, config={"cleanup.policy": "compact"})
    client.produce(unique, [Outgoing(b"kept", b"key")])
    refusal = _refusal(lambda: client.produce(unique, [Outgoing(b"lost")]))
    assert refusal == (-1 if client.name == "aiokafka" else INVALID_RECORD), "aiokafka does not know this code"
    assert [m.value for m in client.read(unique, 0, EARLIEST, 1)] == [b"kept"]


def test_an_unknown_topic_appears_when_somebody_writes_to_it(client: Client, unique: str, admin: Client) -> None:
    client.produce(unique, [Outgoing(b"hello")])
    assert unique in admin.topics()
    assert client.read(unique, 0, EARLIEST, 1)[0].value == b"hello"


@pytest.mark.needs("auto-create")
@pytest.mark.parametrize("allowed", [True, False], ids=["allowed", "not-allowed"])
def test_asking_about_an_unknown_topic_creates_it_only_if_the_client_allows_it(
    client: Confluent, unique: str, allowed: bool
) -> None:
    settings = client.settings(**{"group.id": unique, "allow.auto.create.topics": allowed})
    consumer = ck.Consumer(settings)
    for _ in range(3):
        consumer.list_topics(unique, timeout=PATIENCE_S)
    assert (unique in client.topics()) is allowed
    consumer.close()


def _refusal(deed) -> int:
    with pytest.raises(Refused) as caught:
        deed()
    return caught.value.code
