"""The operations guide: its commands run, its log lines are real ones, its metrics, alerts and settings exist."""

from __future__ import annotations

import os
import re
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml
from tests.servers import ClarionProcess, clean_environment
from tests.waiting import wait_for

from clarion.broker.metrics import METRICS
from clarion.broker.settings import BROKER_SETTINGS
from clarion.model.errors import KafkaError
from clarion.testing import Event, embedded

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text()
BIN = Path(sys.executable).parent
LINE = re.compile(r"(ERROR|WARNING|INFO) (\w+) (\w+) (.*)")


def blocks(kind: str, page: str = PAGE) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL)


def section(title: str) -> str:
    """One part of the page."""
    (found,) = re.findall(rf"\n## {title}\n(.*?)(?=\n## |\Z)", PAGE, re.DOTALL)
    return str(found)


def commands(page: str) -> list[str]:
    return [line[2:] for block in blocks("console", page) for line in block.splitlines() if line.startswith("$ ")]


def run(command: str, folder: Path, bootstrap: str, pid: int = 0, *, status: int = 0) -> str:
    """As an operator's machine would, in a folder of the test's own; systemd is this test."""
    for here, there in (
        ("/var/lib/", f"{folder}/"),
        ("/var/backups/", f"{folder}/backups-"),
        ("/etc/", f"{folder}/etc/"),
    ):
        command = command.replace(here, there)
    command = command.replace("sudo systemctl reload clarion", f"kill -HUP {pid}")
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    environment = {**clean_environment(), "PATH": path, "CLARION_BOOTSTRAP": bootstrap}
    done = subprocess.run(command, shell=True, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == status, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


SECTIONS_APART = ("Renew certificates", "Upgrade and downgrade", "The disk is full")  # have stories of their own


INVOICES = "clarion subscription create invoices --topic orders"


def test_every_command_works(tmp_path: Path) -> None:
    apart = [command for title in SECTIONS_APART for command in commands(section(title))]
    left = [command for command in commands(PAGE) if command not in apart or command in EVERYWHERE]
    assert len(left) > 10
    (tmp_path / "etc/clarion").mkdir(parents=True)
    settings = tmp_path / "etc/clarion/clarion.toml"
    settings.write_text((ROOT / "packaging/systemd/clarion.toml").read_text())
    with ClarionProcess(tmp_path / "clarion") as server:
        before = ("echo one | clarion produce orders", "clarion consume orders --group billing", INVOICES)
        for command in (*before, *left):
            run(command, tmp_path, server.bootstrap, server.pid)
    with ClarionProcess(tmp_path / "clarion-restored") as restored:
        assert run("clarion consume orders", tmp_path, restored.bootstrap) == "one\n"
        assert "invoices" in run("clarion subscription list", tmp_path, restored.bootstrap)
        assert "billing" in run("clarion group list", tmp_path, restored.bootstrap)


EVERYWHERE = {
    "clarion topic list",
    "clarion subscription list",
    "clarion config check /etc/clarion/clarion.toml",
    "sudo systemctl reload clarion",
}


def test_the_recipe_for_a_full_disk(tmp_path: Path) -> None:
    data = tmp_path / "clarion"
    with ClarionProcess(data) as server:
        run("echo one | clarion produce orders", tmp_path, server.bootstrap)
    full = ["--set", f"clarion.disk.reserve.bytes={1 << 60}", "--metrics", "127.0.0.1:0"]
    with ClarionProcess(data, args=full) as server:
        wait_for(lambda: "disk_nearly_full" in server.stderr)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(server.metrics_url.replace("/metrics", "/readyz"), timeout=60)
        assert refused.value.code == 503
        for command in commands(section("The disk is full")):
            run(command, tmp_path, server.bootstrap)
        assert run("clarion consume orders", tmp_path, server.bootstrap) == "one\n"
        server.terminate()
    with ClarionProcess(data) as server:
        run("echo two | clarion produce orders", tmp_path, server.bootstrap)
        assert run("clarion consume orders", tmp_path, server.bootstrap) == "one\ntwo\n"


def test_the_recipe_for_new_certificates(tmp_path: Path) -> None:
    recipe = commands(section("Renew certificates"))
    folder = tmp_path / "etc/clarion"
    folder.mkdir(parents=True)
    run(recipe[0].replace("new.", "broker."), tmp_path, "")
    settings = f'clarion.tls.certificate = "{folder}/broker.pem"\nclarion.tls.key = "{folder}/broker.key"\n'
    (folder / "clarion.toml").write_text(settings)
    with ClarionProcess(tmp_path / "clarion", args=["--config", str(folder / "clarion.toml")]) as server:
        host, _, port = server.bootstrap.rpartition(":")
        before = ssl.get_server_certificate((host, int(port)))
        assert before == (folder / "broker.pem").read_text()
        for command in recipe:
            run(command, tmp_path, server.bootstrap, server.pid)
        wait_for(lambda: ssl.get_server_certificate((host, int(port))) != before)
        assert ssl.get_server_certificate((host, int(port))) == (folder / "broker.pem").read_text()
        assert "certificates=1" in server.stderr


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
    with embedded(catalog="postgresql://nobody@127.0.0.1:1/listens") as broker:
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


# tests/cli: test_link, test_reload; tests/broker: test_subscriptions
ELSEWHERE = {"tls_handshake_failed", "started", "stopping", "stopped", "reloaded", "restart_needed", "reload_refused"}
ELSEWHERE |= {"catalog_back"}


@pytest.mark.parametrize("line", [line for block in blocks("text") for line in block.splitlines() if LINE.match(line)])
def test_every_log_line_is_a_real_one(line: str, events: list[Event]) -> None:
    name = LINE.fullmatch(line)[3]
    sources = "".join(path.read_text() for path in (ROOT / "src" / "clarion").rglob("*.py"))
    assert f'"{name}"' in sources
    assert name in ELSEWHERE or said(events, line), [event for event in events if event.name == name]


def test_a_broker_that_starts_on_a_full_disk_says_so() -> None:
    with embedded(reserve_bytes=1 << 60) as broker:
        assert "disk_nearly_full" in [event.name for event in broker.events]


def test_an_older_version_refuses_newer_data_and_the_backup_from_before_is_taken(tmp_path: Path) -> None:
    data = tmp_path / "clarion"
    with ClarionProcess(data) as server:
        run("echo one | clarion produce orders", tmp_path, server.bootstrap)
        run("clarion backup /var/backups/clarion-before --data-dir /var/lib/clarion", tmp_path, server.bootstrap)
        server.terminate()
    identity = data / "meta.properties"
    identity.write_text(re.sub(r"clarion\.format=\d+", "clarion.format=99", identity.read_text()))
    before = contents(data)
    (shown,) = [line for line in section("Upgrade and downgrade").splitlines() if "clarion.format=99" in line]
    refusal = run("clarion serve --data-dir /var/lib/clarion --listen 127.0.0.1:0", tmp_path, "", status=1)
    assert refusal.startswith(shown.replace("/var/lib/", f"{tmp_path}/"))
    assert contents(data) == before, "nothing is changed"
    restore, serve = commands(section("Upgrade and downgrade"))
    run(restore, tmp_path, "")
    assert serve == "clarion serve --data-dir /var/lib/clarion-before"
    with ClarionProcess(tmp_path / "clarion-before") as server:
        assert run("clarion consume orders", tmp_path, server.bootstrap) == "one\n"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def test_every_metric_alert_and_setting_exists() -> None:
    (group,) = yaml.safe_load((ROOT / "packaging/prometheus/alerts.yaml").read_text())["groups"]
    alerts = {rule["alert"] for rule in group["rules"]}
    assert set(re.findall(r"`(Clarion\w+)`", PAGE)) <= alerts
    assert set(re.findall(r"`(clarion_\w+)`", PAGE)) <= {*METRICS}
    named = set(re.findall(r"`(clarion\.[a-z.]+)`", PAGE))
    assert named
    assert named <= {*BROKER_SETTINGS}, named - {*BROKER_SETTINGS}
