"""A broker inside the test: how it comes, what it can be asked, and how it goes."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from clarion.model.errors import KafkaError
from clarion.testing import BrokerDownError, BrokerFailedError, EmbeddedBroker, Message, embedded
from clarion.testing.folder import PREFIX, TemporaryFolder
from tests.raw_client import RawClient
from tests.testing.clients import confluent_consumer, confluent_producer, read, send


def test_a_message_goes_in_and_out_without_any_client() -> None:
    with embedded(topics=["orders"]) as broker:
        assert broker.produce("orders", "one", key="k", headers={"trace": "7"}, timestamp=1_700_000_000_000) == 0
        assert broker.produce("orders", None) == 1
        first, second = broker.messages("orders")
    assert first == Message("orders", 0, 0, 1_700_000_000_000, b"k", b"one", (("trace", b"7"),))
    assert (second.key, second.value) == (None, None)


def test_a_real_client_and_the_helpers_see_the_same_log() -> None:
    with embedded() as broker:
        assert send(confluent_producer(broker.bootstrap), "events", "from outside").error is None
        broker.produce("events", "from inside")
        assert [message.value for message in broker.messages("events")] == [b"from outside", b"from inside"]
        with confluent_consumer(broker.bootstrap, "events") as consumer:
            assert read(consumer, 2) == ["from outside", "from inside"]
            consumer.commit(asynchronous=False)
        assert broker.committed("readers") == {("events", 0): 2}
        assert broker.committed("strangers") == {}


async def test_it_is_an_async_context_manager_too() -> None:
    async with embedded(topics=["t"]) as broker:
        asyncio.get_running_loop().call_later(0.02, broker.produce, "t", "later")
        (message,) = await broker.wait_for_messages_async("t", 1)
        assert message.value == b"later"
        assert await broker.wait_for_async(lambda: broker.topics()) == {"t": 1}


def test_topics_are_named_or_counted_and_can_be_made_and_deleted() -> None:
    with embedded(topics={"wide": 3}) as broker:
        broker.create_topic("short", retention_ms=1000, cleanup_policy="compact,delete")
        assert broker.topics() == {"wide": 3, "short": 1}
        broker.delete_topic("wide")
        assert broker.topics() == {"short": 1}
        with pytest.raises(KafkaError, match="already exists"):
            broker.create_topic("short")
        with pytest.raises(KafkaError, match="there is no topic 'wide'"):
            broker.messages("wide")
        with pytest.raises(KafkaError, match=r"Unknown topic config name: retention\.weeks"):
            broker.create_topic("long", retention_weeks=3)


def test_settings_are_the_defaults_of_every_topic() -> None:
    with embedded(settings={"max.message.bytes": 1000}) as broker, pytest.raises(KafkaError, match="at most 1000"):
        broker.produce("t", "x" * 2000)


def test_what_it_does_not_know_is_refused_with_what_it_knows() -> None:
    with pytest.raises(TypeError, match=r"does not know 'auto_create'.*auto_create_topics"):
        embedded(auto_create=False)
    with pytest.raises(ValueError, match="floppy"):
        embedded(durability="floppy")


def test_other_settings_of_the_broker_pass_through() -> None:
    with embedded(auto_create_topics=False) as broker, pytest.raises(KafkaError, match="there is no topic"):
        broker.produce("unknown", "x")


def test_several_brokers_run_side_by_side_and_know_nothing_of_each_other() -> None:
    with embedded(topics=["t"]) as one, embedded(topics=["t"]) as two:
        assert one.port != two.port
        one.produce("t", "only here")
        assert (len(one.messages("t")), len(two.messages("t"))) == (1, 0)
        assert {event.name for event in one.events} >= {"topic_created"}
        one.kill()
        assert two.produce("t", "still there") == 0


def test_a_start_takes_milliseconds() -> None:
    with embedded():
        pass  # imports
    times = []
    for _ in range(10):
        begin = time.process_time()
        with embedded(topics=["t"]):
            times.append(time.process_time() - begin)
    assert min(times) < 0.1  # of the processor: 15 ms


# Waiting


def test_waiting_ends_with_the_answer_or_says_what_was_waited_for() -> None:
    with embedded(topics=["t"]) as broker:
        threading.Timer(0.02, broker.produce, ("t", "x")).start()
        assert [message.value for message in broker.wait_for_messages("t", 1)] == [b"x"]
        with pytest.raises(TimeoutError, match=r"after 0.01 s 't' has 1 messages, not 2"):
            broker.wait_for_messages("t", 2, timeout=0.01)
        with pytest.raises(TimeoutError, match="still not true"):
            broker.wait_for(lambda: False, timeout=0.01)


async def test_a_blocking_wait_in_an_async_test_gets_a_hint() -> None:
    async with embedded(topics=["t"]) as broker:
        with pytest.raises(TimeoutError, match="wait_for_async"):
            broker.wait_for_messages("t", 1, timeout=0.01)


# Ending and beginning again


def test_a_restart_keeps_messages_offsets_and_port() -> None:
    with embedded(topics=["t"]) as broker:
        address = broker.bootstrap
        broker.produce("t", "before")
        with confluent_consumer(address, "t") as consumer:
            read(consumer, 1)
            consumer.commit(asynchronous=False)
        broker.restart()
        assert broker.bootstrap == address
        broker.wait_for(lambda: broker.committed("readers") == {("t", 0): 1})
        broker.produce("t", "after")
        with confluent_consumer(address, "t") as consumer:
            assert read(consumer, 1) == ["after"]


def test_what_was_acknowledged_is_there_after_a_kill() -> None:
    with embedded(topics=["t"], durability="fsync") as broker:
        producer = confluent_producer(broker.bootstrap, acks="all")
        assert all(send(producer, "t", str(number)).error is None for number in range(20))
        broker.kill()
        assert not broker.is_running
        broker.start()
        opened = next(event for event in reversed(broker.events) if event.name == "partitions_opened")
        assert opened.fields["clean"] is False
        assert [message.value for message in broker.messages("t")] == [b"%d" % number for number in range(20)]
        assert send(producer, "t", "the same producer goes on").error is None


def test_a_dead_broker_refuses_connections_and_helpers_say_so() -> None:
    with embedded(topics=["t"]) as broker:
        broker.kill()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((broker.host, broker.port), 60)
        for helper in (broker.topics, lambda: broker.produce("t", "x"), broker.faults.drop_connections):
            with pytest.raises(BrokerDownError, match="restart"):
                helper()
        broker.kill()  # a second time is no harm
        assert broker.restart().topics() == {"t": 1}


def test_a_clean_stop_is_a_clean_start() -> None:
    with embedded(topics=["t"]) as broker:
        broker.stop()
        broker.start()
        opened = [event.fields["clean"] for event in broker.events if event.name == "partitions_opened"]
        assert opened == [True, True], "nothing was ever unclean before the first"
        with pytest.raises(RuntimeError, match="runs already"):
            broker.start()


def test_a_stop_does_not_wait_for_clients_that_wait() -> None:
    with embedded(topics=["t"]) as broker, RawClient(broker.bootstrap) as client:
        partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
        patient = {"replica_id": -1, "max_wait": 60_000, "min_bytes": 1, "max_bytes": 1000}
        client.send("fetch", 4, **patient, topics=[{"topic": "t", "partitions": [partition]}])
        broker.wait_for(lambda: broker._call(lambda inside: next(iter(inside.partitions)).watchers))
        begin = time.monotonic()
        broker.stop()
        assert client.receive_frame() == b""
        assert time.monotonic() - begin < 30


def test_a_topic_that_the_test_deleted_stays_deleted() -> None:
    with embedded(topics=["t"]) as broker:
        broker.delete_topic("t")
        assert broker.restart().topics() == {}


def test_a_script_that_does_not_close_its_broker_ends_cleanly() -> None:
    program = """
from clarion.testing import embedded
broker = embedded(topics=["t"]).start()
broker.produce("t", "x")
print(broker.data_dir)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert not Path(done.stdout.strip()).exists()


# Files


def test_the_data_goes_with_the_broker() -> None:
    with embedded(topics=["t"]) as broker:
        folder = broker.data_dir
        assert (folder / "t-0").is_dir()
    assert not folder.parent.exists()
    with pytest.raises(BrokerDownError, match="has not been started"):
        _ = broker.data_dir


def test_a_folder_of_ones_own_is_kept_and_locked(tmp_path: Path) -> None:
    with embedded(data_dir=tmp_path / "data", topics=["t"]) as broker:
        broker.produce("t", "kept")
        with pytest.raises(Exception, match="in use by another broker"), embedded(data_dir=tmp_path / "data"):
            pass
    with embedded(data_dir=tmp_path / "data") as broker:
        assert [message.value for message in broker.messages("t")] == [b"kept"]


def test_what_killed_tests_left_behind_is_removed_and_what_living_ones_use_is_not(tmp_path: Path) -> None:
    living = TemporaryFolder(tmp_path)
    dead = tmp_path / f"{PREFIX}dead"
    (dead / "data").mkdir(parents=True)
    (dead / "owner.lock").touch()
    new = tmp_path / f"{PREFIX}new"
    new.mkdir()
    for path in (dead, living.data.parent):
        os.utime(path, (1, 1))
    TemporaryFolder(tmp_path).remove()
    assert not dead.exists()
    assert new.exists()
    assert living.data.parent.exists()
    living.remove()


def test_a_given_port_is_taken_or_refused() -> None:
    with embedded() as broker:
        with pytest.raises(OSError, match="in use"), embedded(listen_port=broker.port):
            pass
        port = broker.port
    with embedded(listen_port=port) as broker:
        assert broker.port == port


# Time


def test_a_week_passes_in_no_time() -> None:
    with embedded(topics=["t"], settings={"retention.ms": 7 * 24 * 3600 * 1000}) as broker:
        broker.produce("t", "old")
        broker.clock.advance(seconds=6 * 24 * 3600)
        broker.produce("t", "newer")
        broker.run_housekeeping()
        assert len(broker.messages("t")) == 2
        broker.clock.advance(seconds=24 * 3600 + 1)
        broker.run_housekeeping()
        assert [message.value for message in broker.messages("t")] == [b"newer"]


def test_expiry_happens_by_itself_too() -> None:
    with embedded(topics=["t"], settings={"retention.ms": 60_000}, retention_check_seconds=0.02) as broker:
        broker.produce("t", "old")
        broker.clock.advance(seconds=3600)
        broker.wait_for(lambda: broker.messages("t") == [])


def test_compaction_leaves_the_newest_of_each_key() -> None:
    with embedded(settings={"cleanup.policy": "compact"}) as broker:
        for number in range(5):
            broker.produce("t", f"a{number}", key="a")
            broker.produce("t", f"b{number}", key="b")
        broker.run_housekeeping()
        assert [(message.key, message.value) for message in broker.messages("t")] == [(b"a", b"a4"), (b"b", b"b4")]
        broker.produce("t", "a5", key="a")
        broker.run_housekeeping()
        assert [message.value for message in broker.messages("t")] == [b"b4", b"a5"]


def test_a_quiet_compacted_topic_is_compacted_by_lag_without_another_message() -> None:
    settings = {"cleanup.policy": "compact", "max.compaction.lag.ms": 1000}
    with embedded(settings=settings, compaction_check_seconds=0.02) as broker:
        for number in range(5):
            broker.produce("t", str(number), key="k")
        broker.clock.advance(seconds=3600)
        broker.wait_for(lambda: [message.value for message in broker.messages("t")] == [b"4"])


# Groups


def test_the_first_rebalance_does_not_wait_and_sessions_may_be_short() -> None:
    with embedded(topics=["t"]) as broker:
        broker.produce("t", "x")
        with confluent_consumer(broker.bootstrap, "t", session_timeout_ms=500, heartbeat_interval_ms=100) as consumer:
            assert read(consumer, 1) == ["x"]
        # Kafka waits for three seconds; how long all of it took would depend on what else the machine does.
        assert broker._call(lambda inside: inside.config.groups.initial_rebalance_delay_ms) == 0


# Failures


def _break(broker: EmbeddedBroker) -> None:
    broker._living().soon(lambda: 1 / 0)
    broker.wait_for(lambda: broker.failures)


def test_a_failure_inside_the_broker_fails_the_test() -> None:
    def story() -> None:
        with embedded() as broker:
            _break(broker)

    with pytest.raises(BrokerFailedError, match="ZeroDivisionError") as caught:
        story()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_failing_test_keeps_its_own_error_and_gets_a_note() -> None:
    def story() -> None:
        with embedded() as broker:
            _break(broker)
            raise KeyError("the test's own")

    with pytest.raises(KeyError) as caught:
        story()
    assert "ZeroDivisionError" in caught.value.__notes__[0]


def test_a_start_that_cannot_be_says_why_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("clarion.testing.folder._place", lambda: tmp_path)
    with pytest.raises(KafkaError, match="topic name"), embedded(topics=["not a name"]):
        pass
    with pytest.raises(KafkaError, match="Unknown topic config name"), embedded(settings={"no.such": 1}):
        pass
    assert list(tmp_path.iterdir()) == []
    assert not [one for one in threading.enumerate() if one.name.startswith("clarion-embedded")]


def test_a_broker_can_be_used_again_after_its_block() -> None:
    broker: EmbeddedBroker = embedded(topics=["t"])
    for _ in range(2):
        with broker:
            assert broker.produce("t", "x") == 0


def test_the_failures_of_one_block_are_not_those_of_the_next() -> None:
    broker = embedded()
    with pytest.raises(BrokerFailedError), broker:
        _break(broker)
    with broker:
        assert broker.failures == []


def test_it_says_who_it_is() -> None:
    with embedded() as broker:
        assert repr(broker) == f"<EmbeddedBroker on {broker.bootstrap}>"
    assert repr(broker) == "<EmbeddedBroker down>"


# Logging


def test_events_are_kept_but_the_tests_own_log_stays_quiet(caplog: pytest.LogCaptureFixture) -> None:
    with embedded() as broker:
        broker.create_topic("t")
        (event,) = [one for one in broker.events if one.name == "topic_created"]
        assert (event.level, event.component, event.fields["topic"]) == ("INFO", "broker", "t")
        assert "topic_created topic=t" in str(event)
    assert caplog.records == []


def test_who_asks_for_the_brokers_log_gets_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "clarion"), embedded() as broker:
        broker.create_topic("t")
    assert "topic_created" in {record.getMessage() for record in caplog.records}


def test_json_and_text_go_in_and_come_out() -> None:
    with embedded() as broker:
        broker.produce_json("t", {"täg": [1, None]}, key="k", partition=0)
        broker.produce("t", "plain")
        broker.produce("t", None)
        first, second, third = broker.messages("t")
    assert (first.key, first.value, first.json()) == (b"k", '{"täg":[1,null]}'.encode(), {"täg": [1, None]})
    assert second.text == "plain"
    assert (third.text, third.json()) == (None, None)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"value": {"a": 1}}, r"value must be bytes, str or None, not dict; produce_json\(\) takes it"),
        ({"value": 3}, "value must be bytes, str or None, not int"),
        ({"value": "x", "key": 7}, "key must be bytes, str or None, not int"),
        ({"value": "x", "headers": {"h": 1}}, "the header 'h' must be bytes, str or None, not int"),
        ({"value": "x", "headers": ["h"]}, "headers must look like"),
        ({"value": "x", "headers": {1: "x"}}, "headers must look like"),
        ({"value": "x", "partition": "0"}, "partition must be int, not str: '0'"),
        ({"value": "x", "timestamp": 1.5}, "timestamp must be int, not float"),
        ({"value": "x", "topic": b"t"}, "topic must be str, not bytes"),
    ],
)
def test_what_is_passed_by_mistake_is_named(arguments: dict[str, object], complaint: str) -> None:
    with embedded() as broker, pytest.raises(TypeError, match=complaint):
        broker.produce(**{"topic": "t", **arguments})


def test_a_topic_of_the_wrong_kind_is_named() -> None:
    with embedded() as broker:
        with pytest.raises(TypeError, match="partitions must be int, not str: '3'"):
            broker.create_topic("t", "3")
        with pytest.raises(TypeError, match="the name of a topic must be str, not int"):
            broker.create_topic(7)


def test_the_clock_is_moved_in_units_people_think_in() -> None:
    with embedded() as broker:
        before = broker.clock.now_ms()
        broker.clock.advance(1.5, minutes=2, hours=3, days=4)
        moved = broker.clock.now_ms() - before - (1_500 + 2 * 60_000 + 3 * 3_600_000 + 4 * 86_400_000)
        assert 0 <= moved < 60_000
