"""`clarion serve` as a process: its line, its signals, its refusals, and what it must not import."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from datetime import UTC, datetime, timedelta

import pytest

from .conftest import Broker, Shell, clean_environment


def refused(*flags: str) -> str:
    command = [sys.executable, "-m", "clarion.cli.main", "serve", "--log-level", "error", *flags]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), timeout=30, check=False)
    assert done.returncode in (1, 2), done
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    return line


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--node-id", "5"], "--node-id does not go with --brokers: they are numbered from 1 to 3"),
        (["--listen", "127.0.0.1:65534"], "127.0.0.1:65534: 3 brokers need the ports from there on"),
    ],
)
def test_what_does_not_go_with_several_brokers_is_refused_once_and_before_any_starts(tmp_path, flags, words):
    assert words in refused("--brokers", "3", "--data-dir", str(tmp_path / "data"), *flags)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_in_one_line_and_stops_cleanly_on_a_signal(tmp_path, number):
    broker = Broker(tmp_path / "data", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0")
    assert broker.line.startswith(f"clarion listens on {broker.address}, data in {tmp_path}/data, metrics at http://")
    metrics = broker.line.split("metrics at ")[1].partition(",")[0]
    assert broker.line.endswith(f", HTTP API at {metrics.removesuffix('/metrics')}/docs\n")
    with urllib.request.urlopen(metrics) as answer:
        assert answer.status == 200
    assert broker.stop(number) == 0
    assert broker.rest_of_output == ""


def test_what_was_acknowledged_is_there_after_a_restart(tmp_path):
    broker = Broker(tmp_path / "data", "--listen", "127.0.0.1:0")
    shell = Shell(broker.address)
    assert shell("produce", "t", "--create", stdin=b"kept\n").status == 0
    assert broker.stop() == 0
    again = Broker(tmp_path / "data", "--listen", "127.0.0.1:0")
    assert Shell(again.address)("consume", "t").out == "kept\n"
    assert again.stop() == 0


def test_two_listeners_lead_to_the_same_broker(tmp_path):
    broker = Broker(tmp_path / "data", "--listen", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--log-format", "json")
    first, second = broker.line.split("listens on ")[1].split(", data")[0].split(" and ")
    assert first != second
    assert Shell(first)("produce", "t", "--create", stdin=b"x\n").status == 0
    assert Shell(second)("consume", "t").out == "x\n"
    broker.process.send_signal(signal.SIGTERM)
    _, errors = broker.process.communicate(timeout=20)
    assert all(json.loads(line)["event"] for line in errors.splitlines())


def test_the_time_of_a_json_line_does_not_depend_on_the_time_zone(tmp_path, monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    broker = Broker(tmp_path / "data", "--listen", "127.0.0.1:0", "--log-format", "json")
    broker.process.send_signal(signal.SIGTERM)
    _, errors = broker.process.communicate(timeout=20)
    told = datetime.fromisoformat(json.loads(errors.splitlines()[0])["time"])
    assert abs(told - datetime.now(UTC)) < timedelta(hours=1)


def test_the_log_says_what_an_old_name_is_called_now(tmp_path):
    broker = Broker(tmp_path / "data", "--listen", "127.0.0.1:0", "--set", "offsets_partitions=2")
    broker.process.send_signal(signal.SIGTERM)
    _, errors = broker.process.communicate(timeout=20)
    line = next(line for line in errors.splitlines() if "setting_renamed" in line)
    assert "WARNING" in line
    assert "old=offsets_partitions" in line
    assert "new=offsets.topic.num.partitions" in line


def test_a_second_broker_cannot_have_the_same_folder(broker):
    line = refused("--data-dir", str(broker.data_dir), "--listen", "127.0.0.1:0")
    assert "in use by another broker" in line
    assert "--data-dir" in line


def test_a_taken_port_is_named(broker, tmp_path):
    line = refused("--data-dir", str(tmp_path / "data"), "--listen", broker.address)
    assert line == f"clarion: {broker.address} is taken; stop what listens there, or choose another --listen"


def test_a_taken_port_of_the_metrics_is_not_blamed_on_the_listener(broker, tmp_path):
    line = refused("--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--metrics", broker.address)
    assert line == f"clarion: {broker.address} is taken; stop what listens there, or choose another --http"


def test_a_host_that_nobody_knows_is_not_blamed_on_the_data_directory(tmp_path):
    line = refused("--data-dir", str(tmp_path / "data"), "--listen", "no-such-host.invalid:0", "--insecure")
    assert line.startswith("clarion: cannot listen on no-such-host.invalid:0: ")


def test_an_address_of_another_machine_is_named(tmp_path):
    line = refused("--data-dir", str(tmp_path), "--listen", "192.0.2.1:9092", "--insecure")
    assert "192.0.2.1:9092" in line


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in refused("--data-dir", str(tmp_path / "file" / "data"), "--listen", "127.0.0.1:0")


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    for data_dir, part in ((tmp_path / "file", ""), (tmp_path / "file" / "data", ": a part of that path")):
        line = refused("--data-dir", str(data_dir), "--listen", "127.0.0.1:0")
        assert line == f"clarion: --data-dir {data_dir}{part} is a file, not a directory"


@pytest.mark.parametrize(
    ("flag", "complaint"),
    [
        ("--tls-certificate", "--tls-certificate also needs --tls-key"),
        ("--tls-key", "--tls-key also needs --tls-certificate"),
        ("--tls-client-ca", "--tls-client-ca also needs --tls-certificate"),
    ],
)
def test_half_of_what_tls_needs_is_refused(tmp_path, flag, complaint):
    assert complaint in refused("--data-dir", str(tmp_path / "data"), flag, __file__)


def test_a_certificate_that_is_none_is_refused(tmp_path):
    (tmp_path / "x.pem").write_text("not a certificate")
    pem = str(tmp_path / "x.pem")
    flags = ["--data-dir", str(tmp_path / "d"), "--listen", "127.0.0.1:0", "--tls-certificate", pem, "--tls-key", pem]
    assert f"TLS: {pem} is not a certificate" in refused(*flags)


def test_an_unknown_setting_is_refused_at_start():
    assert "did you mean log.dirs" in Shell(None)("serve", "--set", "log.dir=x").one_line_error()


def test_the_way_to_a_ready_broker_imports_nothing_heavy(tmp_path):
    """Rich, the client library, kio and Typer are for other commands, or for the first request that needs them.

    Of Python's own modules, those are refused that take milliseconds and come in by a side door.
    """
    script = (
        "import os, signal, sys, threading\n"
        "import clarion.cli.main as program, clarion.cli.serve as serve\n"
        "ready = serve._ready_line\n"
        "def line(server):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return ready(server)\n"
        "serve._ready_line = line\n"
        "try:\n"
        f"    program.main(['serve', '--data-dir', {str(tmp_path / 'data')!r}, '--listen', '127.0.0.1:0'])\n"
        "finally:\n"
        "    print(sorted({name.partition('.')[0] for name in sys.modules}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=clean_environment(), check=True
    )
    imported = set(eval(done.stdout.splitlines()[-1]))  # noqa: S307 (our own output)
    heavy = {"rich", "confluent_kafka", "kio", "hypothesis", "typer", "click", "pydantic", "kafka", "tomllib"}
    heavy |= {"argparse", "csv", "difflib", "email", "ipaddress", "pathlib", "re2", "shutil", "zipfile"}
    assert imported & heavy == set()


def test_it_is_ready_well_within_a_second(tmp_path):
    """Measured in processor time, which a busy neighbour does not stretch; and a generous clock for the rest."""
    begin = time.monotonic()
    before = os.times()
    broker = Broker(tmp_path / "data", "--listen", "127.0.0.1:0")
    took = time.monotonic() - begin
    assert broker.stop() == 0
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    assert used < 1.0
    assert took < 30.0


def test_help_names_every_flag():
    shown = Shell(None)("serve", "--help")
    assert shown.status == 0
    assert "--durability" in shown.out


def test_nothing_listens_and_the_line_says_what_to_do():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    for words in (["topic", "list"], ["produce", "t"], ["consume", "t"], ["group", "list"], ["bench"]):
        error = Shell(address)(*words).one_line_error()
        assert error == f"nothing answers at {address}; is `clarion serve` running?"


@pytest.mark.parametrize("address", ["foo", "host:", ":9092", "host:port", "127.0.0.1:0", "127.0.0.1:70000"])
def test_a_bootstrap_address_that_is_none_is_refused(address):
    assert "HOST:PORT" in Shell(address)("topic", "list").one_line_error()


def test_the_bootstrap_address_comes_from_the_option_or_the_environment(broker, monkeypatch):
    assert Shell(None)("topic", "list", "--bootstrap", broker.address, "--json").status == 0
    monkeypatch.setenv("CLARION_BOOTSTRAP", broker.address)
    assert Shell(None)("topic", "list", "--json").status == 0
    assert Shell(None)("-X", "nonsense=1", "topic", "list").one_line_error()
    assert "NAME=VALUE" in Shell(None)("-X", "nonsense", "topic", "list").one_line_error()
