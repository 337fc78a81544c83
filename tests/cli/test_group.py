"""Groups from the command line, against a real broker."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import AcknowledgeType, Message, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.raw_client import RawClient
from tests.waiting import wait_for


@pytest.fixture
def group(clarion, topic) -> str:
    """A group that has read two of four messages in partition 0, the first three of them hours old."""
    lines = [json.dumps({"value": str(n), "partition": 0, "timestamp": hours_ago(8 - n)}) for n in range(3)]
    clarion("produce", topic, "-J", stdin="\n".join(lines).encode())
    clarion("produce", topic, "-p", "0", stdin=b"3")
    name = f"g-{topic}"
    assert clarion("consume", topic, "--group", name, "--max", "2").out == "0\n1\n"
    return name


def hours_ago(hours: int) -> int:
    return time.time_ns() // 1_000_000 - hours * 3_600_000


def committed(clarion, group: str) -> int:
    described = json.loads(clarion("group", "describe", group, "--json").out)
    return next(each["committed"] for each in described["partitions"] if each["partition"] == 0)


def test_a_group_is_listed_and_described_with_its_lag(clarion, group):
    rows = {each["group"]: each for each in json.loads(clarion("group", "list", "--json").out)}
    assert rows[group]["state"] == "empty"
    assert rows[group]["lag"] == 2
    text = clarion("group", "describe", group).out
    assert text.startswith(f"{group}: empty, 0 members, 2 messages behind\n")


GOALS = (
    (["--to-earliest"], 0),
    (["--to-latest"], 4),
    (["--to-offset", "1"], 1),
    (["--to-offset", "99"], 4),
    (["--shift", "-1"], 1),
    (["--shift", "-99"], 0),
    (["--shift", "1"], 3),
    (["--to-time", "-7h30m"], 1),
    (["--by-duration", "1h"], 3),
    (["--to-time", "-1h"], 3),
)


def test_reset_shows_first_and_moves_only_when_told(clarion, group, topic):
    for goal, offset in GOALS:
        words = ["group", "reset", group, "--topic", f"{topic}:0", *goal]
        shown = clarion(*words, "--json")
        assert [each["to"] for each in json.loads(shown.out)["partitions"]] == [offset], goal
        assert committed(clarion, group) == 2
        assert clarion(*words, "--execute").out.splitlines()[-1] == f"{group} was moved"
        assert committed(clarion, group) == offset
        clarion("group", "reset", group, "--to-offset", "2", "--execute")


def test_a_group_is_deleted(clarion, group):
    assert "--yes" in clarion("group", "delete", group).one_line_error()
    assert clarion("group", "delete", group, "--yes").out == f"deleted {group}\n"
    assert "there is no group" in clarion("group", "describe", group).one_line_error()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["describe", "no-such-group"], "there is no group no-such-group"),
        (["delete", "no-such-group", "--yes"], "there is no group no-such-group"),
        (["reset", "g"], "exactly one of"),
        (["reset", "g", "--to-earliest", "--to-latest"], "exactly one of"),
        (["reset", "no-such-group", "--to-earliest"], "--topic TOPIC"),
        (["reset", "g", "-t", "no-such-topic", "--to-latest"], "there is no topic"),
        (["reset", "g", "-t", "TOPIC:9", "--to-latest"], "has no partition 9"),
        (["reset", "g", "-t", "TOPIC:x", "--to-latest"], "TOPIC:0,1,2"),
        (["reset", "g", "--to-offset", "-1"], "at least 0"),
        (["reset", "g", "--to-time", "noon"], "is not a time"),
        (["reset", "g", "--by-duration", "soon"], "is not a duration"),
        ([], "a command is missing"),
    ],
)
def test_a_mistake_is_one_line(clarion, empty_topic, words, complaint):
    words = [each.replace("TOPIC", empty_topic) for each in words]
    assert complaint in clarion("group", *words).one_line_error()


STEERING = "\x1b]0;owned\x07\x9b2J"


def test_what_a_hostile_member_says_about_itself_does_not_steer_the_terminal(clarion, broker, topic):
    """Its protocol type comes back in an error, its ids in tables and in JSON."""
    with RawClient(broker.address) as raw:
        _bring_member(raw, f"strange-{topic}", f"strange{STEERING}", topic)
        _bring_member(raw, f"usual-{topic}", "consumer", topic)
        refused = clarion("group", "describe", f"strange-{topic}")
        assert "x1b]0;owned" in refused.one_line_error()
        shown = clarion("group", "describe", f"usual-{topic}")
        assert "x1b]0;owned" in shown.out
        as_json = clarion("group", "describe", f"usual-{topic}", "--json")
        assert json.loads(as_json.out)["members"][0]["instance"] == f"i{STEERING}"
    for result in (refused, shown, as_json):
        assert not any(steer in result.out + result.err for steer in STEERING if not steer.isprintable())


def _bring_member(raw: RawClient, group: str, protocol_type: str, topic: str) -> None:
    subscription = b"\0\0\0\0\0\1" + len(topic).to_bytes(2, "big") + topic.encode() + b"\xff\xff\xff\xff"
    joined = raw.ask(
        "join_group", 5, group_id=group, member_id="", group_instance_id=f"i{STEERING}", session_timeout=10_000,
        rebalance_timeout=10_000, protocol_type=protocol_type, protocols=[{"name": "p", "metadata": subscription}],
    )  # fmt: skip
    assert joined.error_code == 0
    synced = raw.ask(
        "sync_group", 3, group_id=group, generation_id=joined.generation_id, member_id=joined.member_id,
        group_instance_id=f"i{STEERING}", assignments=[],
    )  # fmt: skip
    assert synced.error_code == 0


@pytest.fixture
def sharing(clarion, broker, topic) -> Iterator[tuple[str, ShareConsumer]]:
    """One with a member, which has done the first of three messages."""
    name = f"share-{topic}"
    admin = AdminClient({"bootstrap.servers": broker.address})
    earliest = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, name, incremental_configs=[earliest])
    admin.incremental_alter_configs([resource])[resource].result()
    clarion("produce", topic, "-p", "0", stdin=b"0\n1\n2")
    settings = {"bootstrap.servers": broker.address, "group.id": name, "log_level": 0}
    consumer = ShareConsumer({**settings, "share.acknowledgement.mode": "explicit"})
    consumer.subscribe([topic])
    got: list[Message] = []

    def has_three() -> bool:
        got.extend(consumer.poll(timeout=0.2))
        return len(got) >= 3

    try:
        wait_for(has_three)
        for message in got:
            consumer.acknowledge(message, AcknowledgeType.RELEASE if message.offset() else AcknowledgeType.ACCEPT)
        consumer.commit_sync(timeout=60)
        yield name, consumer
    finally:
        consumer.close()


def test_a_share_group_is_listed_described_reset_and_deleted(clarion, sharing, topic):
    share_group, consumer = sharing
    rows = {each["group"]: each for each in json.loads(clarion("group", "list", "--json").out)}
    assert rows[share_group] == {"group": share_group, "state": "stable", "type": "share", "members": 1, "lag": 2}
    described = json.loads(clarion("group", "describe", share_group, "--json").out)
    (place,) = [one for one in described["partitions"] if one["partition"] == 0]
    assert (described["type"], place["start"], place["end_offset"], place["lag"]) == ("share", 1, 3, 2)
    text = clarion("group", "describe", share_group).out
    assert text.startswith(f"{share_group}: share group, stable, 1 member, 2 messages not done\n")
    top = json.loads(clarion("top", "--json", "--count", "1", "--interval", "100ms").out)
    assert share_group in [one["group"] for one in top["groups"]]
    refused = clarion("group", "reset", share_group, "--to-earliest", "--execute").one_line_error(1)
    assert refused == f"{share_group} has 1 member: stop them, then reset"
    consumer.close()
    wait_for(lambda: json.loads(clarion("group", "describe", share_group, "--json").out)["state"] == "empty")
    moved = clarion("group", "reset", share_group, "--topic", f"{topic}:0", "--to-earliest", "--execute")
    assert moved.out.endswith(f"{share_group} was moved\n")
    described = json.loads(clarion("group", "describe", share_group, "--json").out)
    assert [one["lag"] for one in described["partitions"] if one["partition"] == 0] == [3]
    assert clarion("group", "delete", share_group, "--yes").out == f"deleted {share_group}\n"
    assert share_group not in clarion("group", "list").out
