"""`log dump`, `bench` and `doctor`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from unittest.mock import Mock

import pytest
from confluent_kafka import Producer

from clarion.cli import doctor
from clarion.cli.bench import _sender, percentile
from clarion.cli.doctor import _requirement
from tests.waiting import wait_for

from .conftest import Shell, clean_environment


@pytest.fixture
def segment(clarion, broker, topic, tmp_path):
    """A copy of a segment with two batches of known content."""
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 60_000})  # a batch ends with flush() alone
    producer.produce(topic, key="k", value="v", partition=0)
    producer.produce(topic, key="k2", value="v2", partition=0)
    producer.flush()
    producer.produce(topic, value=b"\xff", headers={"h": "1"}, partition=0)
    producer.flush()
    source = broker.data_dir / f"{topic}-0" / "00000000000000000000.log"
    copy = tmp_path / "00000000000000000000.log"
    copy.write_bytes(source.read_bytes())
    return copy


def test_a_segment_is_shown_batch_by_batch(clarion, segment):
    shown = clarion("log", "dump", str(segment), "--records")
    assert shown.status == 0
    lines = shown.out.splitlines()
    assert lines[-1] == "2 batches, 3 records, no damage"
    assert "k = v" in shown.out
    assert "null = \\xff h:1" in shown.out


def test_a_segment_as_json(clarion, segment):
    shown = clarion("log", "dump", str(segment.parent), "--records", "--json")
    batches = [json.loads(line) for line in shown.out.splitlines()]
    assert [each["base_offset"] for each in batches] == [0, 2]
    assert [record["key"] for record in batches[0]["records"]] == ["k", "k2"]
    assert len(clarion("log", "dump", str(segment), "--max", "1", "--json").out.splitlines()) == 1


def test_damage_is_shown_with_its_place(clarion, segment):
    data = bytearray(segment.read_bytes())
    data[70] ^= 1
    segment.write_bytes(data + b"torn")
    shown = clarion("log", "dump", str(segment))
    assert "2 damaged places; the first: 00000000000000000000.log at byte 0" in shown.one_line_error()
    assert f"{len(data):>12}  DAMAGED" in shown.out


def test_any_flipped_byte_is_survived(clarion, segment):
    good = segment.read_bytes()
    for at in range(0, len(good), 11):
        data = bytearray(good)
        data[at] ^= 0xFF
        segment.write_bytes(data)
        assert clarion("log", "dump", str(segment), "--records").status in (0, 1)
        assert clarion("log", "dump", str(segment), "--records", "--json").status in (0, 1)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["dump", "/no/such/file.log"], "there is no file"),
        (["dump", "/etc/passwd"], "ends with .log"),
        (["dump", "/proc/self/fdinfo"], "there is no .log file"),
        (["dump", "x.log", "--max", "0"], "at least 1"),
        (["dump"], "Missing argument"),
        ([], "a command is missing"),
    ],
)
def test_a_mistake_in_log_is_one_line(words, complaint):
    assert complaint in Shell(None)("log", *words).one_line_error()


def test_bench_measures_and_cleans_up_behind_itself(clarion):
    done = clarion("bench", "-n", "500", "--size", "100", "--latency-rate", "200", "--latency-seconds", "0.2", "--json")
    assert done.status == 0, done.err
    produce, consume, latency = json.loads(done.out)
    assert (produce["messages"], consume["messages"], latency["messages"]) == (500, 500, 40)
    assert latency["p50_ms"] <= latency["p99_ms"] <= latency["p999_ms"]
    assert not [each for each in json.loads(clarion("topic", "list", "--json").out) if "bench" in each["topic"]]


def _bench_topics(clarion: Shell) -> list[str]:
    listed = json.loads(clarion("topic", "list", "--json").out)
    return [each["topic"] for each in listed if "bench" in each["topic"] and each["messages"]]


def test_a_bench_that_is_interrupted_leaves_nothing_behind_and_says_nothing(clarion):
    words = [sys.executable, "-m", "clarion.cli.main", "-b", clarion.bootstrap, "bench", "-n", "20000000"]
    running = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment())
    try:
        wait_for(lambda: _bench_topics(clarion), seconds=60)
        running.send_signal(signal.SIGINT)
        assert running.communicate(timeout=60) == (b"", b"")
    finally:
        running.kill()
    assert running.returncode == 130
    assert _bench_topics(clarion) == []


def test_what_the_client_library_makes_of_ctrl_c_in_a_callback_is_ctrl_c():
    link = Mock()
    with pytest.raises(KeyboardInterrupt), _sender(link, {}):
        raise SystemError("<method 'poll'> returned NULL without setting an exception")
    link.producer.return_value.purge.assert_called_once_with(in_flight=False)


def test_percentiles_of_few_and_of_none():
    assert percentile([], 0.5) is None
    assert percentile([7.0], 0.999) == 7.0
    assert percentile([float(n) for n in range(100)], 0.99) == 99.0


@pytest.mark.parametrize(
    "words",
    [["-n", "0"], ["--size", "1"], ["--partitions", "0"], ["--acks", "3"], ["--latency-rate", "0"], ["-z", "rar"]],
)
def test_a_mistake_in_bench_is_one_line(clarion, words):
    clarion("bench", *words).one_line_error()


def test_doctor_finds_this_machine_fit(tmp_path):
    found = Shell(None)("doctor", "--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--json")
    checks = {each["name"]: each for each in json.loads(found.out)}
    assert {"python", "uvloop", "open files", "data dir", "free space", "file system", "fsync", "clock", "port"} <= {
        *checks
    }
    assert found.status == 0, found.err
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("prefix", "arguments", "slow"),
    [("/usr", "", False), ("/opt/py", "'--enable-shared'", True), ("/opt/py", "'--enable-optimizations'", False)],
)
def test_doctor_knows_a_python_that_was_compiled_the_quick_way(monkeypatch, prefix, arguments, slow):
    monkeypatch.setattr(sys, "base_prefix", prefix)
    monkeypatch.setattr(doctor, "get_config_var", {"CONFIG_ARGS": arguments}.get)
    assert doctor.is_slow_build() == slow


def test_doctor_says_what_is_not_fit(tmp_path):
    found = Shell(None)("doctor", "--data-dir", os.devnull, "--listen", "192.0.2.1:1")
    assert "data dir, port" in found.one_line_error()
    assert "choose another --listen" in found.out


def test_doctor_warns_of_memory_and_of_a_taken_port(broker):
    found = Shell(None)("doctor", "--data-dir", "/dev/shm", "--listen", broker.address, "--json")
    checks = {each["name"]: each["status"] for each in json.loads(found.out)}
    assert checks["port"] == "warn"
    if os.path.ismount("/dev/shm"):
        assert checks["file system"] == "warn"
    assert "HOST:PORT" in Shell(None)("doctor", "--listen", "x").one_line_error()


def test_doctor_does_not_miss_what_only_developers_need(monkeypatch):
    monkeypatch.setattr(doctor, "_is_installed", lambda name: name in ("uvloop", "rich"))
    names = [each.name for each in doctor._packages()]
    assert names[0] == "packages"
    assert "extra spark" in names
    assert not {"extra bench", "extra dev"} & {*names}


def test_requirements_are_read():
    assert _requirement("rich>=14") == ("rich", "")
    assert _requirement('nats-py>=2.11; extra == "bench"') == ("nats-py", "bench")
