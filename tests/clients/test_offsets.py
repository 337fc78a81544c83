"""Finding a place in the log: by offset, by time, at its ends; and losing its beginning on purpose."""

import time

import pytest

from tests.clients.adapters.model import EARLIEST, LATEST, MAX_TIMESTAMP, Client, Outgoing

STEP_MS = 1000
COUNT = 50


@pytest.fixture
def timed(topic: str, admin: Client) -> int:
    """Fifty messages a second apart, the last of them an hour ago; answers the time of the first."""
    first = int(time.time() * 1000) - 3_600_000 - COUNT * STEP_MS
    admin.produce(topic, [Outgoing(b"%d" % n, timestamp_ms=first + n * STEP_MS) for n in range(COUNT)])
    return first


def test_a_time_finds_the_first_message_that_is_not_older(client: Client, topic: str, timed: int) -> None:
    assert client.offset_for(topic, 0, timed + 20 * STEP_MS) == 20
    assert client.offset_for(topic, 0, timed + 20 * STEP_MS + 1) == 21
    assert client.offset_for(topic, 0, 0) == 0
    found = client.read(topic, 0, client.offset_for(topic, 0, timed + 30 * STEP_MS), 20)
    assert (found[0].value, found[-1].value) == (b"30", b"49")


@pytest.mark.needs("acks")
def test_a_time_after_the_last_message_finds_nothing(client: Client, topic: str, timed: int) -> None:
    assert client.offset_for(topic, 0, timed + COUNT * STEP_MS) == -1


def test_the_ends_of_a_log_are_found(client: Client, topic: str, timed: int) -> None:
    assert client.offset_for(topic, 0, EARLIEST) == 0
    assert client.offset_for(topic, 0, LATEST) == COUNT


@pytest.mark.needs("max-timestamp")
def test_the_message_with_the_latest_time_need_not_be_the_last(client: Client, topic: str, timed: int) -> None:
    late = timed + 2 * COUNT * STEP_MS
    client.produce(topic, [Outgoing(b"late", timestamp_ms=late), Outgoing(b"early", timestamp_ms=timed)])
    client.produce(topic, [Outgoing(b"early too", timestamp_ms=timed)])
    assert client.offset_for(topic, 0, MAX_TIMESTAMP) == COUNT


@pytest.mark.needs("admin")
def test_deleted_records_are_gone_and_the_beginning_moves(client: Client, topic: str, timed: int) -> None:
    assert client.delete_records(topic, 0, 42) == 42
    assert client.offset_for(topic, 0, EARLIEST) == 42
    assert client.offset_for(topic, 0, 0) == 42, "a search by time does not find what was deleted"
    assert [m.offset for m in client.read(topic, 0, EARLIEST, 8)] == list(range(42, COUNT))
    assert client.delete_records(topic, 0, -1) == COUNT, "-1 means everything"
    assert client.offset_for(topic, 0, EARLIEST) == client.offset_for(topic, 0, LATEST) == COUNT
    client.produce(topic, [Outgoing(b"after")])
    assert client.read(topic, 0, COUNT, 1)[0].value == b"after"


@pytest.mark.needs("admin", "timestamps")
def test_a_topic_may_take_its_times_from_the_broker(client: Client, unique: str) -> None:
    client.create_topic(unique, config={"message.timestamp.type": "LogAppendTime"})
    began = int(time.time() * 1000)
    client.produce(unique, [Outgoing(b"v", timestamp_ms=1_000_000_000_000)])
    (found,) = client.read(unique, 0, EARLIEST, 1)
    assert began - 1000 <= found.timestamp_ms <= time.time() * 1000 + 1000
    assert client.offset_for(unique, 0, began - 5000) == 0
