"""Faults of the disk: full, broken, slow."""

import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest
from confluent_kafka import KafkaError as ConfluentError
from confluent_kafka.admin import AdminClient, NewTopic

from clarion.cluster.coordination import StoreFailedError
from clarion.model.errors import ErrorCode, KafkaError
from clarion.testing import BrokerDownError, BrokerFailedError, EmbeddedBroker, embedded
from clarion.testing.errors import InjectedError
from clarion.testing.journal import Journal
from tests.testing.clients import confluent_consumer, confluent_producer, read, send
from tests.waiting import wait_for


@pytest.fixture
def broker():
    with embedded(topics=["t"]) as broker:
        broker.produce("t", "before")
        yield broker


def values(broker: EmbeddedBroker) -> list[str]:
    return [message.value.decode() for message in broker.messages("t")]


def test_a_full_disk_refuses_messages_lets_read_and_recovers(broker: EmbeddedBroker) -> None:
    producer = confluent_producer(broker.bootstrap, retries=0)
    with broker.faults.disk_full() as full:
        error = send(producer, "t", "no room").error
        assert error is not None
        assert error.code() == ConfluentError.KAFKA_STORAGE_ERROR
        assert full.hits >= 1
        with pytest.raises(KafkaError, match="the disk is full"):
            broker.produce("t", "no room either")
        assert values(broker) == ["before"]
    assert send(producer, "t", "after").error is None
    with confluent_consumer(broker.bootstrap, "t") as consumer:
        assert read(consumer, 2) == ["before", "after"]
    assert "no_room" in {event.name for event in broker.events}


def test_a_reader_reads_on_while_the_disk_is_full(broker: EmbeddedBroker) -> None:
    with confluent_consumer(broker.bootstrap, "t", enable_auto_commit=False) as consumer:
        read(consumer, 1)
        broker.produce("t", "last that fitted")
        with broker.faults.disk_full():
            assert read(consumer, 1) == ["last that fitted"]


def test_a_stop_on_a_full_disk_ends_without_an_exception_and_loses_nothing(broker: EmbeddedBroker) -> None:
    with broker.faults.disk_full():
        broker.stop()
    assert "stop_not_clean" in {event.name for event in broker.events}
    broker.start()
    assert values(broker) == ["before"]


def test_a_topic_cannot_be_made_on_a_full_disk(broker: EmbeddedBroker) -> None:
    with broker.faults.disk_full(), pytest.raises(OSError, match="No space left"):
        broker.create_topic("another")
    broker.create_topic("another")
    assert broker.topics() == {"t": 1, "another": 1}


def test_the_write_that_does_not_fit_is_torn_and_cut_off_again(broker: EmbeddedBroker) -> None:
    with broker.faults.disk_full(free_bytes=100), pytest.raises(KafkaError, match="the disk is full"):
        broker.produce("t", "x" * 1000)
    broker.produce("t", "after")
    broker.kill()
    broker.start()
    assert values(broker) == ["before", "after"]


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_a_broken_disk_takes_the_partition_offline_until_a_restart(kind: str) -> None:
    with embedded(topics=["t"], durability="fsync") as broker:
        broker.produce("t", "before")
        with broker.faults.disk_error(kind, times=1) as fault, pytest.raises(KafkaError):
            broker.produce("t", "fails")
        assert fault.hits == 1
        with pytest.raises(KafkaError):
            broker.produce("t", "the disk is well again, but the log is not to be trusted")
        assert values(broker)[0] == "before"
        broker.kill()
        broker.start()
        broker.produce("t", "after")
        assert (values(broker)[0], values(broker)[-1]) == ("before", "after")


def test_a_client_is_told_of_a_broken_disk(broker: EmbeddedBroker) -> None:
    broker.faults.disk_error("write")
    error = send(confluent_producer(broker.bootstrap, retries=0), "t", "x").error
    assert error is not None
    assert error.code() == ConfluentError.KAFKA_STORAGE_ERROR


def test_a_slow_disk_makes_durable_messages_slow() -> None:
    with embedded(topics=["t"], durability="fsync") as broker:
        with broker.faults.slow_disk(0.05) as slow:
            begin = time.monotonic()
            broker.produce("t", "slow")
            assert time.monotonic() - begin > 0.09  # the write and the flush
            assert slow.hits >= 2
        struck = slow.hits
        broker.produce("t", "quick")
        assert slow.hits == struck


def test_the_end_of_a_slow_disk_is_the_end_of_waiting_for_it(broker: EmbeddedBroker) -> None:
    slow = broker.faults.slow_disk(600)
    threading.Timer(0.1, slow.end).start()
    assert broker.produce("t", "x") == 1


def test_a_broker_can_be_killed_while_it_waits_for_its_disk(broker: EmbeddedBroker) -> None:
    with broker.faults.slow_disk(600) as slow:
        writer = threading.Thread(target=lambda: _ignore(lambda: broker.produce("t", "x"), BrokerDownError, KafkaError))
        writer.start()
        broker.wait_for(lambda: slow.hits)
        begin = time.monotonic()
        broker.kill()
        assert time.monotonic() - begin < 60
    writer.join(60)
    assert broker.restart().messages("t")[0].value == b"before"


def _ignore(work: Callable[[], object], *kinds: type[Exception]) -> None:
    with suppress(*kinds):
        work()


def test_an_unknown_kind_of_error_is_refused(broker: EmbeddedBroker) -> None:
    with pytest.raises(ValueError, match="'read', 'write' or 'sync', not 'seek'"):
        broker.faults.disk_error("seek")


def test_ordered_errors_do_not_count_as_failures_of_the_broker(broker: EmbeddedBroker) -> None:
    with broker.faults.disk_error("write") as fault:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        assert admin.create_topics([NewTopic("another", 1)])["another"].exception(10) is not None
        _ignore(lambda: broker.produce("t", "x"), KafkaError)
    assert fault.hits >= 2
    assert broker.failures == []


def test_what_comes_of_an_ordered_error_counts_as_ordered() -> None:
    journal = Journal("of a broker")
    for error in (InjectedError(5, "ordered"), KafkaError(ErrorCode.NOT_CONTROLLER), _caused_by(InjectedError(5, ""))):
        journal.note_failure(error)
    assert journal.failures == []
    journal.note_failure(_caused_by(OSError(5, "not ordered")))
    assert len(journal.failures) == 1


def _caused_by(error: Exception) -> Exception:
    outer = RuntimeError("of the broker's own")
    outer.__cause__ = error
    return outer


def test_a_registry_that_cannot_be_written_ends_the_broker_and_the_test_hears_why(tmp_path) -> None:
    """Going on would be guessing what the failed change has left. The next start finds out."""
    broker = embedded(data_dir=tmp_path / "data").start()
    broker.create_topic("kept")
    broker._call(lambda inside: _break_registry(broker))
    with pytest.raises((StoreFailedError, BrokerDownError)):
        broker.create_topic("lost")
    wait_for(lambda: not broker.is_running)
    with pytest.raises(BrokerFailedError, match="disk I/O error"):
        broker.__exit__(None, None, None)
    with embedded(data_dir=tmp_path / "data") as broker:
        assert broker.topics() == {"kept": 1}


def _break_registry(broker: EmbeddedBroker) -> None:
    """From now on no change of it can be committed."""
    store = broker._life.server.store
    real = store._database._connection

    class Broken:
        def execute(self, statement: str, *values: object) -> object:
            if statement == "COMMIT":
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorcode = sqlite3.SQLITE_IOERR
                raise error
            return real.execute(statement, *values)

        def __getattr__(self, name: str) -> object:
            return getattr(real, name)

    store._database._connection = Broken()
