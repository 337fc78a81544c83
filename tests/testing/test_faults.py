"""Faults of requests, connections and the process, and what clients make of them."""

import asyncio
import socket
import threading
import time

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import KafkaError as ConfluentError
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import TopicAuthorizationFailedError

from clarion.testing import BrokerDownError, EmbeddedBroker, embedded
from tests.raw_client import RawClient
from tests.testing.clients import confluent_consumer, confluent_producer, read, send


@pytest.fixture
def broker():
    with embedded(topics=["t"]) as broker:
        yield broker


def values(broker: EmbeddedBroker, topic: str = "t") -> list[str]:
    return [message.value.decode() for message in broker.messages(topic)]


# Lost replies


def test_an_idempotent_producer_does_not_repeat_itself_when_a_reply_is_lost(broker: EmbeddedBroker) -> None:
    fault = broker.faults.drop_replies("Produce")
    delivery = send(confluent_producer(broker.bootstrap, enable_idempotence=True), "t", "once")
    assert (delivery.error, fault.hits) == (None, 1)
    assert values(broker) == ["once"]


def test_a_producer_without_idempotence_does(broker: EmbeddedBroker) -> None:
    fault = broker.faults.drop_replies("Produce", times=2)
    assert send(confluent_producer(broker.bootstrap), "t", "thrice").error is None
    assert (values(broker), fault.hits) == (["thrice"] * 3, 2)


async def test_aiokafka_without_a_reply_sends_again_and_is_recognised(broker: EmbeddedBroker) -> None:
    fault = broker.faults.drop_replies("Produce")
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap, enable_idempotence=True) as producer:
        await producer.send_and_wait("t", b"once")
    assert (values(broker), fault.hits) == (["once"], 1)


def test_a_lost_reply_of_a_request_that_waits_is_lost_when_it_is_ready() -> None:
    with embedded(topics=["t"], durability="fsync") as broker:
        fault = broker.faults.drop_replies("Produce")
        assert send(confluent_producer(broker.bootstrap, acks="all", enable_idempotence=True), "t", "x").error is None
        assert (values(broker), fault.hits) == (["x"], 1)


def test_a_topic_whose_creation_was_not_confirmed_exists(broker: EmbeddedBroker) -> None:
    broker.faults.drop_replies("CreateTopics", times=None)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0, "socket.timeout.ms": 500})
    future = admin.create_topics([NewTopic("made", 2)], request_timeout=1)["made"]
    assert future.exception(10) is not None
    assert broker.topics()["made"] == 2


# Errors


def test_an_error_that_passes_is_got_over_and_the_message_is_there_once(broker: EmbeddedBroker) -> None:
    fault = broker.faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)
    assert send(confluent_producer(broker.bootstrap), "t", "x").error is None
    assert (values(broker), fault.hits, fault.is_over) == (["x"], 2, True)


def test_an_error_that_does_not_pass_reaches_the_user(broker: EmbeddedBroker) -> None:
    broker.faults.fail("Produce", "MESSAGE_TOO_LARGE")
    error = send(confluent_producer(broker.bootstrap), "t", "x").error
    assert error is not None
    assert error.code() == ConfluentError.MSG_SIZE_TOO_LARGE
    assert values(broker) == []


def test_kafka_python_sees_the_error_of_its_topic(broker: EmbeddedBroker) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, retries=0)
    with broker.faults.fail("Produce", "TOPIC_AUTHORIZATION_FAILED"), pytest.raises(TopicAuthorizationFailedError):
        producer.send("t", b"x").get(10)
    assert producer.send("t", b"y").get(10).offset == 0
    producer.close()


@pytest.mark.parametrize("error", ["NOT_LEADER_OR_FOLLOWER", "UNKNOWN_LEADER_EPOCH", "FETCH_SESSION_ID_NOT_FOUND"])
def test_a_reader_finds_its_way_after_an_error_of_a_fetch(broker: EmbeddedBroker, error: str) -> None:
    broker.produce("t", "x")
    fault = broker.faults.fail("Fetch", error)
    with confluent_consumer(broker.bootstrap, "t") as consumer:
        assert read(consumer, 1) == ["x"]
    assert fault.hits == 1


def test_kafka_python_asks_for_the_leader_again(broker: EmbeddedBroker) -> None:
    broker.produce("t", "x")
    fault = broker.faults.fail("Fetch", "NOT_LEADER_OR_FOLLOWER")
    consumer = KafkaConsumer("t", bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest", retry_backoff_ms=10)
    assert next(consumer).value == b"x"
    assert fault.hits == 1
    consumer.close()


@pytest.mark.parametrize(
    ("api", "error"),
    [
        ("FindCoordinator", "COORDINATOR_NOT_AVAILABLE"),
        ("JoinGroup", "COORDINATOR_LOAD_IN_PROGRESS"),
        ("SyncGroup", "REBALANCE_IN_PROGRESS"),
        ("OffsetFetch", "COORDINATOR_LOAD_IN_PROGRESS"),
        ("ListOffsets", "LEADER_NOT_AVAILABLE"),
        ("Metadata", "LEADER_NOT_AVAILABLE"),
    ],
)
async def test_aiokafka_joins_a_group_over_every_stone(broker: EmbeddedBroker, api: str, error: str) -> None:
    broker.produce("t", "x")
    fault = broker.faults.fail(api, error)
    options = {"group_id": "g", "auto_offset_reset": "earliest", "retry_backoff_ms": 10, "metadata_max_age_ms": 300}
    async with AIOKafkaConsumer("t", bootstrap_servers=broker.bootstrap, **options) as consumer:
        message = await asyncio.wait_for(consumer.getone(), 60)
    assert (message.value, fault.hits) == (b"x", 1)


def test_a_member_that_is_told_that_it_is_unknown_joins_again(broker: EmbeddedBroker) -> None:
    broker.produce("t", "x")
    with confluent_consumer(broker.bootstrap, "t", session_timeout_ms=1000, heartbeat_interval_ms=50) as consumer:
        read(consumer, 1)
        joins = broker.faults.delay("JoinGroup", 0, times=None)
        fault = broker.faults.fail("Heartbeat", "UNKNOWN_MEMBER_ID")
        broker.wait_for(lambda: consumer.poll(0.01) is None and joins.hits)
        broker.produce("t", "y")
        assert read(consumer, 1) in (["x"], ["y"])  # nothing was committed: from the start again
        assert fault.hits == 1


def test_a_producer_that_wants_no_reply_loses_its_connection(broker: EmbeddedBroker) -> None:
    producer = confluent_producer(broker.bootstrap, acks=0)
    send(producer, "t", "arrives")
    broker.wait_for_messages("t", 1)
    fault = broker.faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER")
    send(producer, "t", "is lost")
    broker.wait_for(lambda: fault.hits == 1)
    # On the old connection it would be lost as well, and nobody would be told.
    broker.wait_for(lambda: send(producer, "t", "arrives too") and "arrives too" in values(broker))
    assert "is lost" not in values(broker)


def test_a_fault_can_be_for_one_client_alone(broker: EmbeddedBroker) -> None:
    fault = broker.faults.fail("Produce", "MESSAGE_TOO_LARGE", client_id="unlucky")
    assert send(confluent_producer(broker.bootstrap, client_id="lucky"), "t", "x").error is None
    assert send(confluent_producer(broker.bootstrap, client_id="unlucky"), "t", "y").error is not None
    assert (values(broker), fault.hits) == (["x"], 1)


def test_faults_of_one_api_strike_one_after_the_other(broker: EmbeddedBroker) -> None:
    first = broker.faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER")
    second = broker.faults.drop_replies("Produce")
    assert send(confluent_producer(broker.bootstrap, enable_idempotence=True), "t", "x").error is None
    assert (first.hits, second.hits, values(broker)) == (1, 1, ["x"])


def test_what_cannot_be_ordered_is_refused_with_what_can(broker: EmbeddedBroker) -> None:
    with pytest.raises(
        ValueError, match=r"no API 'Producer' here; did you mean 'Produce'\? Produce \(0\), Fetch \(1\)"
    ):
        broker.faults.fail("Producer", "NOT_CONTROLLER")
    with pytest.raises(ValueError, match="no API 4 here"):
        broker.faults.delay(4, 1)
    with pytest.raises(ValueError, match=r"no Kafka error 'NOT_LEADER'; did you mean 'NOT_LEADER_OR_FOLLOWER'"):
        broker.faults.fail("Produce", "NOT_LEADER")
    with pytest.raises(ValueError, match="not an error"):
        broker.faults.fail("Produce", 0)
    with pytest.raises(ValueError, match="at least once"):
        broker.faults.fail("Produce", 6, times=0)
    assert broker.faults.active == []


# Delays


def test_a_slow_answer_is_still_an_answer(broker: EmbeddedBroker) -> None:
    producer = confluent_producer(broker.bootstrap)
    send(producer, "t", "warm")
    fault = broker.faults.delay("Produce", 0.2)
    begin = time.monotonic()
    assert send(producer, "t", "slow").error is None
    assert time.monotonic() - begin >= 0.19  # the loop's clock goes in milliseconds
    assert (values(broker), fault.hits) == (["warm", "slow"], 1)


def test_who_gives_up_waiting_does_not_stop_the_broker(broker: EmbeddedBroker) -> None:
    producer = confluent_producer(broker.bootstrap, message_timeout_ms=5000, socket_timeout_ms=1000, retries=0)
    with broker.faults.delay("Produce", 600) as fault:
        error = send(producer, "t", "given up").error
        assert error is not None
        assert error.code() in (ConfluentError._TIMED_OUT, ConfluentError._MSG_TIMED_OUT)
        assert (values(broker), fault.hits) == ([], 1)
    broker.wait_for_messages("t", 1)


def test_requests_behind_a_delayed_one_keep_their_order(broker: EmbeddedBroker) -> None:
    with RawClient(broker.bootstrap) as client:
        broker.faults.delay("ListGroups", 0.1)
        sent = [client.send("list_groups", 0), client.send("api_versions", 0), client.send("list_groups", 0)]
        with broker.faults.fail("ListGroups", "NOT_COORDINATOR"):
            pass
        assert [client.receive()[0] for _ in sent] == sent


@pytest.mark.parametrize("size", [20, 10_000], ids=["read at once", "read in a thread"])
def test_a_delayed_request_that_cannot_be_read_ends_its_connection(broker: EmbeddedBroker, size: int) -> None:
    broker.faults.delay("Metadata", 0.05)
    with RawClient(broker.bootstrap) as raw:
        raw.send_body(3, 9, b"\xff" * size, flexible=True)
        assert raw.receive_frame() == b""


def test_ending_a_delay_lets_go_whom_it_holds(broker: EmbeddedBroker) -> None:
    with RawClient(broker.bootstrap) as client:
        with broker.faults.delay("ListGroups", 600, times=2) as fault:
            client.send("list_groups", 0)
            client.send("list_groups", 0)
            client.send("api_versions", 0)
            broker.wait_for(lambda: fault.hits == 2)
        assert [client.receive()[0] for _ in range(3)] == [1, 2, 3]


# Connections


def test_a_cut_connection_is_made_again(broker: EmbeddedBroker) -> None:
    producer = confluent_producer(broker.bootstrap, client_id="mine")
    send(producer, "t", "x")
    with RawClient(broker.bootstrap) as other:
        other.ask("api_versions", 0)
        assert broker.faults.drop_connections(client_id="mine") >= 1
        assert broker.faults.drop_connections(client_id="nobody") == 0
        other.ask("api_versions", 0)
        assert broker.faults.drop_connections() >= 1
        assert other.receive_frame() == b""
    assert send(producer, "t", "y").error is None
    assert values(broker) == ["x", "y"]


def test_nobody_can_connect_while_connections_are_refused(broker: EmbeddedBroker) -> None:
    with RawClient(broker.bootstrap) as early:
        with broker.faults.refuse_connections():
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((broker.host, broker.port), 60)
            early.ask("api_versions", 0)
        with RawClient(broker.bootstrap) as late:
            assert late.ask("metadata", 1, topics=None).brokers[0].port == broker.port


def test_a_client_waits_for_a_broker_that_comes_back(broker: EmbeddedBroker) -> None:
    with broker.faults.refuse_connections() as refused:
        threading.Timer(0.2, refused.end).start()
        assert send(confluent_producer(broker.bootstrap), "t", "patience").error is None


# Freezing


def test_a_frozen_broker_answers_nobody_and_goes_on_where_it_was(broker: EmbeddedBroker) -> None:
    producer = confluent_producer(broker.bootstrap, message_timeout_ms=2000, socket_timeout_ms=500)
    assert send(producer, "t", "before").error is None
    with broker.faults.freeze():
        error = send(producer, "t", "during").error
        assert error is not None
        assert error.code() == ConfluentError._MSG_TIMED_OUT
        with socket.create_connection((broker.host, broker.port), 60):
            pass  # the kernel accepts; the broker will look at it later
        with pytest.raises(BrokerDownError, match="frozen"):
            broker.messages("t")
    assert send(producer, "t", "after").error is None
    assert values(broker)[0] == "before"
    assert values(broker)[-1] == "after"


def test_a_freeze_may_end_by_itself(broker: EmbeddedBroker) -> None:
    begin = time.monotonic()
    fault = broker.faults.freeze(0.2)
    assert broker.produce("t", "waits") == 0
    assert time.monotonic() - begin >= 0.19
    broker.wait_for(lambda: fault.is_over)
    assert fault.hits == 1


def test_a_member_of_a_group_outlives_a_freeze(broker: EmbeddedBroker) -> None:
    broker.produce("t", "x")
    with confluent_consumer(broker.bootstrap, "t", session_timeout_ms=500, heartbeat_interval_ms=100) as consumer:
        read(consumer, 1)
        consumer.commit(asynchronous=False)
        broker.faults.freeze(0.8)
        assert consumer.poll(0.9) is None
        broker.produce("t", "y")
        assert read(consumer, 1) == ["y"]


@pytest.mark.parametrize("how", ["stop", "kill", "restart", "close"])
def test_a_frozen_broker_can_be_ended(broker: EmbeddedBroker, how: str) -> None:
    fault = broker.faults.freeze()
    getattr(broker, how)()
    assert fault.is_over


def test_a_broker_that_is_killed_while_frozen_has_not_seen_what_came_meanwhile(broker: EmbeddedBroker) -> None:
    with RawClient(broker.bootstrap) as client:
        client.ask("api_versions", 0)
        broker.faults.freeze()
        topic = {"name": "late", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        client.send("create_topics", 2, topics=[topic], timeout=1000, validate_only=False)
        broker.kill()
        assert client.receive_frame() == b""
    assert broker.restart().topics() == {"t": 1}


# All of them


def test_clear_ends_everything(broker: EmbeddedBroker) -> None:
    faults = broker.faults
    made = [
        faults.fail("Produce", 6, times=None),
        faults.delay("Produce", 9),
        faults.drop_replies("Fetch"),
        faults.disk_full(),
        faults.slow_disk(9),
        faults.refuse_connections(),
        faults.freeze(),
    ]
    assert len(faults.active) == len(made)
    faults.clear()
    assert faults.active == []
    assert all(one.is_over for one in made)
    assert send(confluent_producer(broker.bootstrap), "t", "x").error is None


def test_a_fault_for_requests_outlives_a_restart(broker: EmbeddedBroker) -> None:
    fault = broker.faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER")
    broker.restart()
    assert send(confluent_producer(broker.bootstrap), "t", "x").error is None
    assert fault.hits == 1


def test_a_fault_says_what_it_is_and_what_it_did(broker: EmbeddedBroker) -> None:
    fault = broker.faults.fail("produce", 6)
    assert repr(fault) == "<Fault fail(Produce, NOT_LEADER_OR_FOLLOWER): active, 0 hits>"
    fault.end()
    fault.end()
    assert repr(fault) == "<Fault fail(Produce, NOT_LEADER_OR_FOLLOWER): over, 0 hits>"
