"""Admin calls that make sense in a cluster: on one node they are answered, and nothing has to be done."""

from collections.abc import Iterator

import confluent_kafka as ck
import pytest
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import InvalidReplicationAssignmentError, LogDirNotFoundError, NoError

from tests.clients.adapters import Confluent
from tests.clients.adapters.model import PATIENCE_S

ELECTION_NOT_NEEDED = 84


@pytest.fixture
def python(bootstrap: str) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    yield client
    client.close()


def test_kafka_python_hears_that_no_election_is_needed(python: KafkaAdminClient, topic: str) -> None:
    (told,) = python.elect_leaders(0, {topic: [0]}, raise_errors=False).replica_election_results
    assert [(one.partition_id, one.error_code) for one in told.partition_result] == [(0, ELECTION_NOT_NEEDED)]


def test_librdkafka_hears_that_no_election_is_needed(admin: Confluent, topic: str) -> None:
    place = ck.TopicPartition(topic, 0)
    answers = admin.admin.elect_leaders(ck.ElectionType.PREFERRED, [place]).result(PATIENCE_S)
    assert {one.topic: error.code() for one, error in answers.items()} == {topic: ELECTION_NOT_NEEDED}


def test_a_partition_is_reassigned_to_where_it_is(python: KafkaAdminClient, topic: str) -> None:
    place, node = TopicPartition(topic, 0), _node(python)
    assert python.alter_partition_reassignments({place: [node]}) == {place: None}
    refused = python.alter_partition_reassignments({place: [node, node + 1]})
    assert refused == {place: InvalidReplicationAssignmentError}
    assert python.list_partition_reassignments() == {}


def test_a_partition_moves_into_the_directory_where_it_is(python: KafkaAdminClient, topic: str) -> None:
    (told,) = python.describe_log_dirs()
    here = told["log_dirs"][0]["log_dir"]
    answers = python.alter_replica_log_dirs({(topic, 0, _node(python)): here})
    assert list(answers.values()) == [NoError]
    answers = python.alter_replica_log_dirs({(topic, 0, _node(python)): f"{here}/elsewhere"})
    assert list(answers.values()) == [LogDirNotFoundError]


def test_the_quorum_is_the_one_node(python: KafkaAdminClient) -> None:
    (quorum,) = python.describe_metadata_quorum()["topics"][0]["partitions"]
    assert (quorum["error"], quorum["leader_id"]) == (None, _node(python))
    assert [voter["replica_id"] for voter in quorum["current_voters"]] == [_node(python)]


def test_an_idempotent_producer_is_described(python: KafkaAdminClient, topic: str, bootstrap: str) -> None:
    producer = ck.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for _ in range(3):
        producer.produce(topic, b"v", partition=0)
    assert producer.flush(PATIENCE_S) == 0
    (told,) = python.describe_producers([TopicPartition(topic, 0)]).values()
    assert [(one.producer_epoch, one.last_sequence) for one in told.active_producers] == [(0, 2)]


def _node(python: KafkaAdminClient) -> int:
    (broker,) = python.describe_cluster()["brokers"]
    return broker["broker_id"]
