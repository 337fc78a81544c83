"""Messages in and out through the command line, against a real broker."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest

from clarion.cli import produce
from clarion.cli.interrupt import interrupts_outside
from clarion.model.key_hash import partition_of_key
from clarion.testing import cluster, embedded
from tests.waiting import wait_for

from .conftest import Shell, clean_environment


def test_lines_go_in_and_come_out(clarion, topic):
    sent = clarion("produce", topic, "--partition", "1", stdin=b"one\ntwo\nthree")
    assert sent.status == 0
    assert sent.err.startswith("sent 3 messages")
    assert clarion("consume", topic).out == "one\ntwo\nthree\n"


def test_a_key_goes_to_the_partition_that_every_other_writer_chooses_for_it(clarion, topic):
    keys = [f"key-{number}" for number in range(40)]
    clarion("produce", topic, "-K", ":", stdin="\n".join(f"{key}:v" for key in keys).encode())
    found = [json.loads(line) for line in clarion("consume", topic, "--json").out.splitlines()]
    assert {message["key"]: message["partition"] for message in found} == {
        key: partition_of_key(key.encode(), 3) for key in keys
    }


def test_keys_headers_and_times_are_kept(clarion, topic):
    moment = datetime.now(UTC).replace(microsecond=5_000) - timedelta(hours=1)
    clarion("produce", topic, "-K", ":", "-H", "a=1", "--timestamp", moment.isoformat(), stdin=b"k:v:w\n")
    [message] = [json.loads(line) for line in clarion("consume", topic, "--json").out.splitlines()]
    assert message["key"] == "k"
    assert message["value"] == "v:w"
    assert message["headers"] == [["a", "1"]]
    assert datetime.fromisoformat(message["time"]) == moment


def test_a_line_whose_answer_was_lost_is_sent_again_and_written_once():
    with embedded(topics={"orders": 1}) as broker, broker.faults.drop_replies("Produce", times=2) as lost:
        sent = Shell(broker.bootstrap)("produce", "orders", stdin=b"one\ntwo")
        assert sent.status == 0, sent.err
        assert lost.hits == 2
        assert [message.value for message in broker.messages("orders")] == [b"one", b"two"]


@pytest.mark.parametrize("setting", ["acks=1", "retries=0", "max.in.flight=10", "enable.idempotence=false"])
def test_settings_that_do_not_go_together_with_idempotence_are_taken_as_they_are(clarion, topic, setting):
    sent = clarion("-X", setting, "produce", topic, stdin=b"one")
    assert sent.status == 0, sent.err


def test_a_topic_is_copied_byte_for_byte_through_json(clarion, topic, tmp_path):
    source = [
        {
            "key": "a",
            "value": "täxt",
            "headers": [["h", None]],
            "partition": 2,
            "timestamp": time.time_ns() // 1_000_000 - 9,
        },
        {"key_base64": "/wA=", "value_base64": "gIE=", "headers": [["b", {"base64": "/w=="}]], "partition": 2},
        {"key": "gone", "value": None, "partition": 2},
    ]
    clarion("produce", topic, "--json-lines", stdin="\n".join(map(json.dumps, source)).encode())
    exported = clarion("consume", topic, "--json").raw
    copied = clarion("produce", topic + "-copy", "--json-lines", "--create", "--partition", "0", stdin=exported)
    assert copied.status == 0, copied.err
    before = [json.loads(line) for line in exported.splitlines()]
    after = [json.loads(line) for line in clarion("consume", topic + "-copy", "--json").raw.splitlines()]
    ignored = {"topic", "partition"}
    assert [{k: v for k, v in m.items() if k not in ignored} for m in after] == [
        {k: v for k, v in m.items() if k not in ignored} for m in before
    ]
    assert before[1]["value_base64"] == "gIE="


def test_bytes_that_are_not_text_stay_what_they_are_in_a_pipe(clarion, topic, tmp_path):
    noise = bytes(each for each in os.urandom(512) if each != 10)
    clarion("produce", topic, stdin=noise)
    assert clarion("consume", topic).raw == noise + b"\n"
    out = tmp_path / "out"
    assert clarion("consume", topic, "--output", str(out)).err == f"wrote 1 message to {out}\n"
    assert out.read_bytes() == noise + b"\n"


def test_files_are_read_and_compressed(clarion, topic, tmp_path):
    file = tmp_path / "lines"
    file.write_text("".join(f"{number}\n" for number in range(5_000)))
    report = clarion("produce", topic, str(file), "-z", "zstd", "--acks", "1", "--json")
    assert json.loads(report.out) == {"topic": topic, "sent": 5_000, "arrived": 5_000, "failed": 0}
    assert sorted(map(int, clarion("consume", topic).out.split())) == list(range(5_000))


def test_reading_starts_where_it_is_told(clarion, topic):
    hour_ms, now_ms = 3_600_000, time.time_ns() // 1_000_000
    for hours, value in ((2, "old"), (1, "new")):
        line = json.dumps({"value": value, "partition": 0, "timestamp": now_ms - hours * hour_ms})
        clarion("produce", topic, "-J", stdin=line.encode())
    clarion("produce", topic, "-p", "0", stdin=b"now")

    def read(*words: str) -> list[str]:
        return clarion("consume", topic, *words).out.split()

    assert read("--from", "start") == ["old", "new", "now"]
    assert read("--from", "end") == []
    assert read("--from", "1") == ["new", "now"]
    assert read("--from", str(now_ms - 3 * hour_ms // 2)) == ["new", "now"]
    assert read("--from", "-5m") == ["now"]
    assert read("--max", "2") == ["old", "new"]
    assert read("--partition", "1") == []
    assert read("--format", "{partition}/{offset}\\t{value}", "-n", "1") == ["0/0", "old"]


def test_a_group_goes_on_where_it_stopped(clarion, topic):
    clarion("produce", topic, "-p", "0", stdin=b"1\n2\n3\n")
    group = f"g-{topic}"
    assert clarion("consume", topic, "--group", group, "--max", "2").out == "1\n2\n"
    assert clarion("consume", topic, "--group", group).out == "3\n"
    assert clarion("consume", topic, "--group", group).out == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_following_ends_well_on_a_signal(clarion, topic, number):
    group = f"g-{topic}"
    follower = subprocess.Popen(
        [sys.executable, "-m", "clarion.cli.main", "-b", clarion.bootstrap, "consume", topic, "-f", "-g", group],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(),
    )
    clarion("produce", topic, stdin=b"hello\n")
    assert follower.stdout.readline() == b"hello\n"
    follower.send_signal(number)
    _, errors = follower.communicate(timeout=20)
    assert (follower.returncode, errors) == (0, b"")
    described = json.loads(clarion("group", "describe", group, "--json").out)
    assert described["members"] == []
    assert sum(each["lag"] for each in described["partitions"]) == 0


def test_an_interrupt_waits_for_what_counts():
    told = []

    def counts() -> None:
        signal.raise_signal(signal.SIGINT)
        told.append("counted")

    with interrupts_outside(counts) as check:
        check()
        counts()
        assert told == ["counted"]
        with pytest.raises(KeyboardInterrupt):
            check()
    with interrupts_outside(counts), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_producer_that_is_interrupted_says_how_much_arrived(clarion, topic):
    words = [sys.executable, "-m", "clarion.cli.main", "-b", clarion.bootstrap, "produce", topic]
    with subprocess.Popen(["yes", "message"], stdout=subprocess.PIPE) as endless:
        sender = subprocess.Popen(words, stdin=endless.stdout, stderr=subprocess.PIPE, env=clean_environment())
        try:
            wait_for(lambda: clarion("consume", topic, "--max", "1").out)
            sender.send_signal(signal.SIGINT)
            _, errors = sender.communicate(timeout=60)
        finally:
            sender.kill()
            endless.kill()
    first, last = errors.decode().splitlines()
    assert (sender.returncode, first) == (0, "interrupted; waiting for what was sent")
    listed = json.loads(clarion("topic", "list", "--json").out)
    (arrived,) = [one["messages"] for one in listed if one["topic"] == topic]
    assert last.startswith(f"sent {arrived:,} message")


def test_a_reader_that_closes_the_pipe_ends_us_in_silence(clarion, topic):
    clarion("produce", topic, stdin=b"x" * 99 + b"\n" + b"y\n" * 50_000)
    words = [sys.executable, "-m", "clarion.cli.main", "-b", clarion.bootstrap, "consume", topic]
    reader = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment())
    reader.stdout.readline()
    reader.stdout.close()
    assert reader.stderr.read() == b""
    assert reader.wait(20) == 141
    reader.stderr.close()


def test_a_rate_is_kept(clarion, topic):
    begin = time.monotonic()
    clarion("produce", topic, "--rate", "50", stdin=b"x\n" * 20)
    assert time.monotonic() - begin >= 20 / 50 * 0.9


@pytest.mark.parametrize(
    ("words", "stdin", "complaint"),
    [
        (["TOPIC", "--partition", "9"], b"x", "has no partition 9"),
        (["TOPIC", "--compression", "rar"], b"x", "--compression rar"),
        (["TOPIC", "--acks", "2"], b"x", "--acks 2"),
        (["TOPIC", "--rate", "0"], b"x", "--rate 0"),
        (["TOPIC", "-K", ":"], b"no separator\n", "line 1: there is no ':'"),
        (["TOPIC", "-K", ":", "-k", "x"], b"", "not both"),
        (["TOPIC", "-J"], b"{", "line 1: not JSON"),
        (["TOPIC", "-J"], b"[]", "not a JSON object"),
        (["TOPIC", "-J"], b'{"valu": 1}', "unknown field 'valu'"),
        (["TOPIC", "-J"], b'{"partition": -1}', "partition must be"),
        (["TOPIC", "-J"], b'{"value_base64": "???"}', "not base64"),
        (["TOPIC", "-J"], b'{"headers": 3}', "headers must look like"),
        (["TOPIC", "-H", "x"], b"", "NAME=VALUE"),
        (["TOPIC", "--timestamp", "noon"], b"", "is not a time"),
        (["TOPIC", "/no/such/file"], b"", "cannot read /no/such/file"),
        (["TOPIC"], b"x" * 2_000_000, "1 of 1 message did not arrive"),
        ([], b"", "Missing argument"),
    ],
)
def test_a_mistake_in_produce_is_one_line(clarion, empty_topic, words, stdin, complaint):
    words = [empty_topic if each == "TOPIC" else each for each in words]
    assert complaint in clarion("produce", *words, stdin=stdin).one_line_error()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["no-such-topic"], "there is no topic no-such-topic"),
        (["TOPIC", "--from", "yesterday"], "is not a time"),
        (["TOPIC", "--from", "99"], "no partition is that long"),
        (["TOPIC", "--from", "99999999999999999"], "after the year 9999"),
        (["TOPIC", "--partition", "9"], "has no partition 9"),
        (["TOPIC", "--format", "{nope}"], "unknown field {nope}"),
        (["TOPIC", "--max", "0"], "--max 0"),
        (["TOPIC", "--group", "g", "--from", "-5m"], "clarion group reset g"),
        (["TOPIC", "--group", "g", "--partition", "0"], "a group decides itself"),
        (["TOPIC", "--output", "/no/such/folder/x"], "cannot write"),
    ],
)
def test_a_mistake_in_consume_is_one_line(clarion, empty_topic, words, complaint):
    words = [empty_topic if each == "TOPIC" else each for each in words]
    assert complaint in clarion("consume", *words).one_line_error()


def test_produce_says_what_it_waits_for_when_the_disk_is_full(monkeypatch):
    monkeypatch.setattr(produce, "_SILENCE_SECONDS_MAX", 0.3)
    with embedded(topics=["t"], reserve_bytes=1 << 60) as full:
        result = Shell(full.bootstrap)("-X", "message.timeout.ms=2000", "produce", "t", stdin=b"hello\n")
    assert result.status == 1
    waiting, failed = result.err.splitlines()
    assert "has taken no message" in waiting
    assert "Is its disk full?" in waiting
    assert "did not arrive" in failed


def test_produce_says_that_replicas_are_missing_when_too_few_are_in_sync(monkeypatch):
    monkeypatch.setattr(produce, "_SILENCE_SECONDS_MAX", 0.3)
    with cluster(brokers=2) as brokers:
        brokers.create_topic("t", min_insync_replicas="2")
        brokers.wait_until_in_sync("t")
        brokers.kill(2)
        brokers.wait_for(lambda: brokers.in_sync("t") == [1])
        result = Shell(brokers[1].bootstrap)("-X", "message.timeout.ms=2000", "produce", "t", stdin=b"hello\n")
    waiting, failed = result.err.splitlines()
    assert "Replicas of t are missing" in waiting
    assert "did not arrive" in failed


def test_a_topic_that_is_not_there_is_made_where_the_broker_allows_it():
    with embedded() as willing:
        clarion = Shell(willing.bootstrap)
        assert clarion("produce", "greetings", stdin=b"hello\n").err.startswith(
            "there is no topic greetings; created it\n"
        )
        assert "(did you mean greetings?); created it" in clarion("produce", "greetigns", stdin=b"hello\n").err
        assert clarion("consume", "greetings").out == "hello\n"


def test_a_topic_that_is_deleted_under_its_writer_is_not_made_anew():
    with embedded(topics=["orders"]) as willing:
        clarion = Shell(willing.bootstrap)
        words = [
            sys.executable,
            "-m",
            "clarion",
            "-b",
            willing.bootstrap,
            "-X",
            "topic.metadata.propagation.max.ms=100",
        ]
        with subprocess.Popen(
            [*words, "produce", "orders"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment()
        ) as writer:
            writer.stdin.write(b"in time\n")
            writer.stdin.flush()
            assert clarion("consume", "orders", "--follow", "--from", "start", "--max", "1").out == "in time\n"
            willing.delete_topic("orders")
            _, errors = writer.communicate(b"too late\n", timeout=60)
        assert writer.returncode == 1
        assert b"1 of 2 messages did not arrive" in errors
        assert "orders" not in willing.topics()


def test_a_topic_that_is_not_there_is_refused_where_the_broker_does_not_make_it():
    with embedded(auto_create_topics=False) as strict:
        clarion = Shell(strict.bootstrap)
        refused = clarion("produce", "greetings", stdin=b"hello\n").one_line_error(1)
        assert refused == "there is no topic greetings; create it with: clarion topic create greetings"
        assert clarion("produce", "greetings", "--create", stdin=b"hello\n").status == 0
        assert clarion("consume", "greetings").out == "hello\n"


def test_a_bad_line_says_what_was_sent_before_it(clarion, topic):
    refused = clarion("produce", topic, "-K", ":", stdin=b"a:1\nb:2\nno separator\nc:3\n").one_line_error(1)
    assert refused.startswith("line 3: there is no ':'")
    assert refused.endswith("; 2 messages before it were sent")
    assert sorted(clarion("consume", topic).out.split()) == ["1", "2"]
    refused = clarion("produce", topic, "-K", ":", stdin=b"no separator\n").one_line_error(1)
    assert refused.endswith("; nothing was sent before it")


def test_a_time_that_the_library_would_change_is_refused(clarion, topic):
    for words, line in ((["--json-lines"], b'{"value": "v", "timestamp": 0}'), (["--timestamp", "0"], b"v")):
        refused = clarion("produce", topic, *words, stdin=line).one_line_error(1)
        assert "timestamp 0, the first moment of 1970, means now" in refused
    assert clarion("produce", topic, "--timestamp", "1", stdin=b"v").status == 0


def test_following_says_in_a_terminal_that_it_waits(clarion, topic):
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "clarion", "-b", clarion.bootstrap, "consume", topic, "-f"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=theirs, env=clean_environment()) as follower:
        os.close(theirs)
        assert os.read(ours, 1000).decode().strip() == f"waiting for messages in {topic}; Ctrl-C ends"
        follower.send_signal(signal.SIGINT)
        assert follower.wait(20) == 0
    os.close(ours)


def test_who_follows_a_topic_that_is_deleted_is_told(clarion, topic):
    words = [sys.executable, "-m", "clarion", "-b", clarion.bootstrap, "consume", topic, "-f", "--from", "start"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment()) as follower:
        clarion("produce", topic, stdin=b"hello\n")
        assert follower.stdout.readline() == b"hello\n"
        assert clarion("topic", "delete", topic, "--yes").status == 0
        _, errors = follower.communicate(timeout=60)
        assert follower.returncode == 1
        assert topic in errors.decode()
