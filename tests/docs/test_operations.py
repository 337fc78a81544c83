"""The operations guide: its commands run, its log lines are real ones, its metrics, alerts and settings exist."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.servers import ClarionProcess

from clarion.broker.metrics import METRICS
from clarion.broker.settings import BROKER_SETTINGS
from clarion.model.errors import KafkaError
from clarion.testing import Event, embedded

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text()
BIN = Path(sys.executable).parent
LINE = re.compile(r"(ERROR|WARNING|INFO) (\w+) (\w+) (.*)")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


def test_every_command_works(tmp_path: Path) -> None:
    commands = [line[2:] for block in blocks("console") for line in block.splitlines() if line.startswith("$ ")]
    assert len(commands) > 8
    data = tmp_path / "clarion"
    with ClarionProcess(data) as server:
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "CLARION_BOOTSTRAP": server.bootstrap}
        prepare = ["echo one | clarion produce orders", "clarion consume orders --group billing"]
        for command in [*prepare, *commands]:
            here = command.replace("/var/lib/", f"{tmp_path}/").replace("/var/backups/", f"{tmp_path}/backups-")
            done = subprocess.run(here, shell=True, env=environment, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, f"{here}\n{done.stdout}{done.stderr}"
    with ClarionProcess(tmp_path / "clarion-restored") as restored:
        environment["CLARION_BOOTSTRAP"] = restored.bootstrap
        read = subprocess.run("clarion consume orders", shell=True, env=environment, capture_output=True, text=True)
        assert read.stdout == "one\n"


def said(events: list[Event], line: str) -> bool:
    """Whether an event has the level, the name and the fields of a line."""
    level, _, name, fields = LINE.fullmatch(line).groups()
    keys = set(re.findall(r"(\w+)=", re.sub(r'"[^"]*"', '""', fields)))
    return any(event.name == name and event.level == level and keys <= {*event.fields} for event in events)


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    """What a broker says in all these troubles."""
    folder = tmp_path_factory.mktemp("trouble")
    seen: list[Event] = []
    with embedded(topics=["t"], reserve_bytes=1 << 20) as broker:
        for fault, name in ((broker.faults.disk_full(free_bytes=1000), "disk_nearly_full"), (None, "disk_has_room")):
            broker.wait_for(lambda name=name: any(event.name == name for event in broker.events), timeout=60)
            if fault is not None:
                fault.end()
        seen += broker.events
    with embedded(topics=["t"]) as broker:
        with broker.faults.disk_error("write"), pytest.raises(KafkaError):
            broker.produce("t", "x")
        seen += broker.events
    with embedded(topics=["t"], max_connections=1) as broker:
        for first in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"):
            with socket.create_connection((broker.host, broker.port)) as client:
                client.sendall(first)
                assert client.recv(1) == b""
        with socket.create_connection((broker.host, broker.port)):
            broker.wait_for(lambda: broker._life.server.net.connections)
            with socket.create_connection((broker.host, broker.port)) as second:
                assert second.recv(1) == b""
        seen += broker.events
    with embedded(topics=["t"], data_dir=folder / "data") as broker:
        for _ in range(3):
            broker.produce("t", "x")
        broker.kill()
        log = folder / "data" / "t-0" / "00000000000000000000.log"
        log.write_bytes(log.read_bytes()[:-1] + b"\xff")
        broker.start()
        seen += broker.events
    return seen


ELSEWHERE = {"tls_handshake_failed"}  # tests/cli/test_link


@pytest.mark.parametrize("line", [line for block in blocks("text") for line in block.splitlines() if LINE.match(line)])
def test_every_log_line_is_a_real_one(line: str, events: list[Event]) -> None:
    name = LINE.fullmatch(line)[3]
    sources = "".join(path.read_text() for path in (ROOT / "src" / "clarion").rglob("*.py"))
    assert f'"{name}"' in sources
    assert name in ELSEWHERE or said(events, line), [event for event in events if event.name == name]


def test_a_broker_that_starts_on_a_full_disk_says_so() -> None:
    with embedded(reserve_bytes=1 << 60) as broker:
        assert "disk_nearly_full" in [event.name for event in broker.events]


def test_an_older_version_refuses_newer_data(tmp_path: Path) -> None:
    with ClarionProcess(tmp_path / "data"):
        pass
    identity = tmp_path / "data" / "meta.properties"
    identity.write_text(re.sub(r"clarion\.format=\d+", "clarion.format=99", identity.read_text()))
    words = [sys.executable, "-m", "clarion", "serve", "--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    shown = next(line for block in blocks("text") for line in block.splitlines() if "clarion.format=99" in line)
    assert done.returncode == 1
    assert done.stderr.startswith(shown.replace("/var/lib/clarion", str(tmp_path / "data")))


def test_every_metric_alert_and_setting_exists() -> None:
    (group,) = yaml.safe_load((ROOT / "packaging/prometheus/alerts.yaml").read_text())["groups"]
    alerts = {rule["alert"] for rule in group["rules"]}
    assert set(re.findall(r"`(Clarion\w+)`", PAGE)) <= alerts
    assert set(re.findall(r"`(clarion_\w+)`", PAGE)) <= {*METRICS}
    named = set(re.findall(r"`(clarion\.[a-z.]+)`", PAGE))
    assert named
    assert named <= {*BROKER_SETTINGS}, named - {*BROKER_SETTINGS}
