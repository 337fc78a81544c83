"""Topics are made, written, read and deleted; what cannot be done says what to do."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, ResourceType

import clarion
from clarion.client.bus import Bus
from clarion.model.errors import ErrorCode
from clarion.model.key_hash import partition_of_key
from clarion.testing import EmbeddedBroker

from .words import take


def test_a_topic_has_a_name_and_an_id_and_is_found_by_both(bus: Bus, broker: EmbeddedBroker) -> None:
    made = bus.create("by-name-and-id", partitions=2, settings={"retention.ms": 86_400_000})
    assert (made.name, made.partitions, made.replication) == ("by-name-and-id", 2, 1)
    bus.write(made.id, 1, b"by its id")
    assert [message.value for message in take(bus.read(made.id), 1)] == [b"by its id"]
    bus.delete_topic(made.id)
    assert made.name not in broker.topics()


def test_a_write_is_acknowledged_with_its_place(bus: Bus, topic: str) -> None:
    moment = datetime.now(UTC).replace(microsecond=5_000) - timedelta(hours=1)
    written = bus.write(topic, b"value", key=b"42", headers={"trace": "1", "none": None}, timestamp=moment)
    assert written == (topic, partition_of_key(b"42", 3), 0, round(moment.timestamp() * 1000))
    (message,) = take(bus.read(topic), 1)
    assert (message.topic, message.partition, message.offset) == written[:3]
    assert (message.key, message.value, message.deliveries) == (b"42", b"value", 1)
    assert message.headers == (("trace", b"1"), ("none", None))
    assert message.time == moment


def test_a_partition_can_be_named(bus: Bus, topic: str) -> None:
    assert bus.write(topic, 2, b"a").partition == 2
    assert bus.write(topic, "b", partition=1).partition == 1
    with pytest.raises(clarion.UnknownTopic, match="no partition 3: it has 0 to 2"):
        bus.write(topic, 3, b"c")
    with pytest.raises(clarion.InvalidRequest, match="given twice"):
        bus.write(topic, 0, b"d", partition=0)  # type: ignore[call-overload]


def test_a_partition_that_the_topic_has_got_meanwhile_is_found(bus: Bus, broker: EmbeddedBroker, topic: str) -> None:
    bus.write(topic, 2, b"known")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result()
    assert bus.write(topic, 3, b"new").partition == 3


def test_many_messages_are_written_at_once(bus: Bus, topic: str) -> None:
    written = bus.write_many(topic, [b"one", ("k", "two"), {"value": "three", "partition": 2}])
    assert len(written) == 3
    assert written[2].partition == 2
    assert {message.text for message in take(bus.read(topic), 3)} == {"one", "two", "three"}
    assert bus.write_many(topic, []) == []


def test_writes_need_not_wait_for_each_other(bus: Bus, topic: str) -> None:
    futures = [bus.write_soon(topic, f"{number}", key="same") for number in range(500)]
    bus.flush()
    assert all(future.done() for future in futures)
    assert [future.result().offset for future in futures] == list(range(500))


def test_flush_tells_of_a_message_that_did_not_arrive(bus: Bus) -> None:
    bus.create("small-messages", settings={"max.message.bytes": 1_000})
    bus.write_soon("small-messages", b"x" * 2_000)
    with pytest.raises(
        clarion.MessageTooLarge, match=r"2,000 bytes is more than 'small-messages' takes.*max.message.bytes"
    ):
        bus.flush()
    bus.flush()
    with pytest.raises(clarion.MessageTooLarge) as caught:
        bus.write("small-messages", b"x" * 2_000)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    with pytest.raises(clarion.MessageTooLarge) as caught:
        bus.write_many("small-messages", [b"fits", b"x" * 2_000])
    assert isinstance(caught.value, ValueError)


def test_what_cannot_be_done_says_what_to_do(bus: Bus, topic: str) -> None:
    with pytest.raises(clarion.TopicExists, match="use it as it is, or delete it first") as caught:
        bus.create(topic)
    assert caught.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
    with pytest.raises(clarion.UnknownTopic, match=f"did you mean '{topic}'"):
        bus.write(topic[:-1], b"typed wrongly")
    with pytest.raises(clarion.UnknownTopic, match=r"bus.create\('zzz'\) makes one"):
        bus.read("zzz")
    with pytest.raises(clarion.UnknownTopic):
        bus.delete_topic("zzz")
    with pytest.raises(clarion.InvalidRequest):
        bus.create("no spaces in names")
    with pytest.raises(clarion.InvalidRequest):
        bus.create("fine", settings={"retention.mz": 1})
    with pytest.raises(clarion.InvalidRequest, match="a topic's id is given by the broker"):
        bus.create("my-id", "my-name")
    with pytest.raises(TypeError, match="write bytes or str"):
        bus.write(topic, 42.0)  # type: ignore[call-overload]
    with pytest.raises(clarion.InvalidRequest, match="say which, with partition="):
        bus.read(topic, offset=5)
    with pytest.raises(clarion.InvalidRequest, match="write earliest, latest"):
        bus.read(topic, start="yesterday")


def test_a_topic_that_is_not_there_is_not_made_by_writing_to_it(bus: Bus, broker: EmbeddedBroker) -> None:
    with pytest.raises(clarion.UnknownTopic):
        bus.write("never-made", b"x")
    assert "never-made" not in broker.topics()


def test_times_and_sizes_of_a_topic_are_said_as_people_write_them(bus: Bus, broker: EmbeddedBroker) -> None:
    said = {"retention.ms": "1d", "delete.retention.ms": timedelta(hours=1), "segment.bytes": "64MiB"}
    bus.create("as-people-write", settings={**said, "cleanup.policy": ["delete", "compact"]})
    resource = ConfigResource(ResourceType.TOPIC, "as-people-write")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    found = admin.describe_configs([resource])[resource].result()
    assert {name: found[name].value for name in said} == {
        "retention.ms": "86400000",
        "delete.retention.ms": "3600000",
        "segment.bytes": "67108864",
    }
    with pytest.raises(clarion.InvalidRequest, match=r"retention\.ms"):
        bus.create("never-so", settings={"retention.ms": "a day"})


def test_nobody_listens_is_told_at_once() -> None:
    with pytest.raises(clarion.NotConnected, match="Is `clarion serve` running there"):
        clarion.connect("127.0.0.1:1")
    with pytest.raises(clarion.InvalidRequest, match="write host:port"):
        clarion.connect("127.0.0.1:port")


def test_a_stream_is_read_from_any_place(bus: Bus, topic: str) -> None:
    now = datetime.now(UTC)
    for age in (3, 2, 1):
        bus.write(topic, 0, f"{age} hours old", timestamp=now - timedelta(hours=age))
    bus.write(topic, 1, "elsewhere", timestamp=now - timedelta(hours=4))
    assert sorted(one.text[0] for one in take(bus.read(topic), 4)) == ["1", "2", "3", "e"]
    assert [one.text[0] for one in take(bus.read(topic, partition=0), 3)] == ["3", "2", "1"]
    assert [one.text[0] for one in take(bus.read(topic, partition=0, offset=1), 2)] == ["2", "1"]
    assert [one.text[0] for one in take(bus.read(topic, start="90m"), 1)] == ["1"]
    assert [one.text[0] for one in take(bus.read(topic, start=now - timedelta(hours=2)), 2)] == ["2", "1"]


def test_an_iteration_ends_when_nothing_comes_and_can_go_on(bus: Bus, topic: str) -> None:
    reading = bus.read(topic, start="latest", timeout=0.2)
    assert list(reading) == []
    assert reading.next() is None
    bus.write(topic, "late")
    assert [one.text for one in take(reading, 1)] == ["late"]


def test_readers_of_a_stream_subscription_go_on_where_it_was_left(bus: Bus, topic: str) -> None:
    bus.write_many(topic, [{"value": f"{number}", "partition": 0} for number in range(10)])
    with bus.read(topic, subscription=f"{topic}-group", mode="stream") as first:
        seen = take(first, 4)
        seen[-1].ack()
        first.flush()
    with bus.read(topic, subscription=f"{topic}-group", timeout=30) as second:  # known by now as a group
        assert next(second).text == "4"
        with pytest.raises(clarion.NotAQueue, match="mode='queue'"):
            next(second).release()


def test_a_message_that_is_being_worked_on_comes_again_when_its_reader_ends(bus: Bus, topic: str) -> None:
    bus.write_many(topic, [{"value": f"{number}", "partition": 0} for number in range(3)])
    with bus.read(topic, subscription=topic, mode="stream") as first:
        take(first, 1)
        take(first, 1)  # asking for it says that the one before is done
    with bus.read(topic, subscription=topic, mode="stream") as second:
        assert [one.text for one in take(second, 2)] == ["1", "2"]


def test_an_unknown_subscription_is_not_read_as_something_empty(bus: Bus, topic: str) -> None:
    with pytest.raises(clarion.UnknownSubscription, match="makes one"):
        bus.read(topic, subscription="nobody-made-it")


def test_closing_ends_a_reading_that_waits(bus: Bus, topic: str) -> None:
    reading = bus.read(topic)
    found: list[object] = []
    waiting = threading.Thread(target=lambda: found.extend(reading))
    waiting.start()
    reading.close()
    waiting.join(60)
    assert not waiting.is_alive()
    assert found == []


def test_a_closed_bus_says_so(broker: EmbeddedBroker) -> None:
    bus = clarion.connect(broker.bootstrap)
    bus.close()
    bus.close()
    for use in (lambda: bus.write("t", b""), lambda: bus.read("t"), lambda: bus.create("t")):
        with pytest.raises(clarion.ClosedError, match="connect again"):
            use()


def test_threads_may_share_a_bus(bus: Bus, topic: str) -> None:
    def write(number: int) -> None:
        for count in range(20):
            bus.write(topic, f"{number}-{count}", key=f"{number}")

    writers = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for one in writers:
        one.start()
    for one in writers:
        one.join()
    found = [message.text for message in take(bus.read(topic), 160)]
    assert len(set(found)) == 160
    for number in range(8):
        own = [text for text in found if text.startswith(f"{number}-")]
        assert own == [f"{number}-{count}" for count in range(20)]


def test_the_client_loads_when_it_is_first_used() -> None:
    script = (
        "import sys\n"
        "before = {*sys.modules}\n"  # an editable installation's finder has loaded this and that
        "import clarion\n"
        "heavy = {'confluent_kafka', 'asyncio', 'typing', 'clarion.client', 'clarion.net'}\n"
        "loaded = {*sys.modules} - before\n"
        "assert not heavy & loaded, heavy & loaded\n"
        "assert 'connect' in dir(clarion)\n"
        "clarion.connect\n"
        "assert 'clarion.client.bus' in sys.modules\n"
        "forbidden = [name for name in sys.modules if name.startswith(('clarion.broker', 'sqlalchemy', 'fastapi'))]\n"
        "assert not forbidden, forbidden\n"
    )
    as_installed = {name: value for name, value in os.environ.items() if name != "CLARION_COMPILED"}
    subprocess.run([sys.executable, "-c", script], check=True, env=as_installed)
    with pytest.raises(AttributeError, match="has no attribute 'conect'"):
        _ = clarion.conect


def test_arguments_of_the_wrong_type_are_named(bus: Bus, topic: str) -> None:
    wrong: Any = bus
    for ask, says in (
        (lambda: wrong.create(3), "a topic's name is a str, not int"),
        (lambda: wrong.create("t", partitions="three"), "partitions is an int, not str"),
        (lambda: wrong.create("t", replication=1.5), "replication is an int, not float"),
        (lambda: wrong.delete_topic(7), "a topic's name is a str, not int"),
        (lambda: wrong.write(topic, b"x", headers=["trace"]), "headers are a dict, or pairs"),
        (lambda: clarion.connect(9092), "an address is a text"),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError, match=says):
            ask()


def test_an_offset_behind_the_end_is_refused_and_the_end_itself_is_waited_at(bus: Bus, topic: str) -> None:
    bus.write(topic, 0, "one")
    with pytest.raises(clarion.InvalidRequest, match="ends at offset 1; read from there"):
        bus.read(topic, partition=0, offset=2)
    with bus.read(topic, partition=0, offset=1) as reading:
        bus.write(topic, 0, "two")
        assert [one.text for one in take(reading, 1)] == ["two"]
