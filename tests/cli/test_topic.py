"""Topics from the command line, against a real broker."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Uuid

from clarion.cli.topic import _id_text


def test_a_topic_is_created_listed_described_altered_and_deleted(clarion, topic):
    listed = clarion("topic", "list", "--json")
    assert listed.status == 0, listed.err
    assert {"topic": topic, "partitions": 3, "messages": 0, "size_bytes": 0} in json.loads(listed.out)

    assert clarion("topic", "alter", topic, "-c", "retention.ms=60000", "--partitions", "5").status == 0
    described = json.loads(clarion("topic", "describe", topic, "--json").out)
    assert {"name": "retention.ms", "value": "60000", "is_default": False} in described["settings"]
    assert [each["partition"] for each in described["partitions"]] == [0, 1, 2, 3, 4]

    assert clarion("topic", "alter", topic, "--unset", "retention.ms").status == 0
    assert json.loads(clarion("topic", "describe", topic, "--json").out)["settings"] == []

    assert clarion("topic", "delete", topic, "--yes").out == f"deleted {topic}\n"
    assert "there is no topic" in clarion("topic", "describe", topic).one_line_error()


def test_a_topics_id_is_spelt_as_kafkas_tools_spell_it():
    class Described:
        topic_id = Uuid(-1, -1)  # in plain base64: /////////////////////w

    assert _id_text(Described()) == "_____________________w"


def test_a_topic_is_named_by_its_id_too(clarion, topic):
    topic_id = json.loads(clarion("topic", "describe", topic, "--json").out)["id"]
    assert json.loads(clarion("topic", "describe", topic_id, "--json").out)["topic"] == topic
    assert clarion("produce", topic_id, stdin=b"k:v\n").status == 0
    assert clarion("consume", topic_id).out == "k:v\n"
    assert topic in clarion("group", "reset", "new", "--topic", f"{topic_id}:0", "--to-earliest").out
    assert topic in clarion("cluster", "partitions", "--topic", topic_id).out
    assert clarion("topic", "alter", topic_id, "--partitions", "4").out == f"altered {topic}\n"
    assert clarion("topic", "delete", topic_id, "--yes").out == f"deleted {topic}\n"
    assert "there is no topic" in clarion("topic", "describe", topic_id).one_line_error(1)


def test_in_a_pipe_a_table_is_aligned_columns_and_nothing_else(clarion, topic):
    lines = clarion("topic", "describe", topic).out.splitlines()
    assert lines[0].startswith(f"{topic}: 3 partitions, 0 messages")
    assert lines[2].split() == ["PARTITION", "LEADER", "REPLICAS", "IN", "SYNC", "START", "END", "MESSAGES", "SIZE"]
    assert "\x1b" not in "".join(lines)


def test_describe_says_who_needs_how_much_and_since_when(clarion, topic):
    assert clarion("topic", "alter", topic, "-c", "clarion.retention.by=subscriptions").status == 0
    assert clarion("produce", topic, "--partition", "1", stdin=b"one\ntwo\nthree\n").status == 0
    assert clarion("consume", topic, "--group", f"{topic}-half", "--max", "2").status == 0
    (needed,) = json.loads(clarion("topic", "describe", topic, "--json").out)["needed_by"]
    assert (needed["name"], needed["kind"], needed["until"]) == (f"{topic}-half", "group", "acknowledged")
    assert needed["from_offsets"]["1"] == 2, "what it has read it needs no more"
    assert needed["size_bytes"] > 0
    assert needed["since_ms"] > 1_700_000_000_000
    lines = clarion("topic", "describe", topic).out.splitlines()
    assert lines[-2].split() == ["NEEDED", "BY", "KIND", "UNTIL", "SIZE", "SINCE"]
    assert lines[-1].split()[:3] == [f"{topic}-half", "group", "acknowledged"]


def test_creating_what_exists_fails_unless_that_is_fine(clarion, topic):
    assert "exist" in clarion("topic", "create", topic).one_line_error()
    again = clarion("topic", "create", topic, "--if-not-exists", "--json")
    assert json.loads(again.out) == [{"topic": topic, "created": False}]


def test_deleting_asks_first(clarion, topic):
    assert "--yes" in clarion("topic", "delete", topic).one_line_error()
    assert clarion("topic", "describe", topic).status == 0


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["create", "../x"], "only letters, digits"),
        (["create", "x", "--partitions", "0"], "--partitions 0"),
        (["create", "x", "--partitions", "many"], "--partitions"),
        (["create", "x", "--partitions", "99999999"], "from 1 to 100,000"),
        (["create", "x", "--replication-factor", "99999"], "from 1 to 10,000"),
        (["alter", "x", "--partitions", "99999999"], "from 1 to 100,000"),
        (["alter", "x", "--partitions", "0"], "from 1 to 100,000"),
        (["create", "x", "-c", "retention.ms"], "NAME=VALUE"),
        (["create", "x", "-c", "retention.ms=1x"], "write milliseconds, or for example 90s"),
        (["alter", "x", "-c", "segment.bytes=1QB"], "write bytes, or for example 64MiB"),
        (["create", "x", "-c", "retention.mss=1"], "retention.ms"),
        (["create"], "Missing argument"),
        (["alter", "no-such-topic", "-c", "retention.ms=1"], "there is no topic"),
        (["alter", "no-such-topic"], "nothing to change"),
        (["alter", "x", "-c", "a=1", "--unset", "a"], "both set and unset"),
        (["delete", "no-such-topic", "--yes"], "there is no topic"),
        (["list", "--bogus"], "there is no option"),
        (["frobnicate"], "there is no command"),
        ([], "a command is missing"),
    ],
)
def test_a_mistake_is_one_line(clarion, words, complaint):
    assert complaint in clarion("topic", *words).one_line_error()


def test_sizes_are_shown_and_grow_with_what_is_written(clarion, topic):
    def listed() -> int:
        topics = json.loads(clarion("topic", "list", "--json").out)
        return next(each["size_bytes"] for each in topics if each["topic"] == topic)

    before = listed()
    clarion("produce", topic, "--partition", "1", stdin=b"x" * 10_000 + b"\n")
    described = json.loads(clarion("topic", "describe", topic, "--json").out)
    sizes = [each["size_bytes"] for each in described["partitions"]]
    assert sizes[1] > 10_000
    assert listed() == sum(sizes) >= before + 10_000
    assert "10.1 KB on disk" in clarion("topic", "describe", topic).out
    assert "SIZE" in clarion("topic", "list").out
