"""SIGHUP reads settings and certificates anew; systemd hears of it; log levels change while a broker runs."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clarion.cli import service_manager
from clarion.world.log_levels import COMPONENTS, complaint_about, levels_by_component, merged
from tests.waiting import wait_for

from .conftest import Broker, Shell, clean_environment

SOURCES = Path(__file__).parents[2] / "src" / "clarion"


class Watched:
    """A broker whose log is read while it runs."""

    def __init__(self, folder: Path, toml: str, env: dict[str, str] | None = None) -> None:
        self.file = folder / "clarion.toml"
        self.file.write_text(toml)
        self._log = folder / "log"
        words = ["serve", "--config", str(self.file), "--data-dir", str(folder / "data"), "--log-format", "json"]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "clarion", *words],
                stdout=subprocess.PIPE,
                stderr=log,
                env={**clean_environment(), **(env or {})},
                text=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"listens on (\S+:\d+)", line)
        assert found, self._log.read_text()
        self.address = found[1]

    def events(self, name: str) -> list[dict[str, object]]:
        lines = [json.loads(line) for line in self._log.read_text().splitlines() if line.endswith("}")]
        return [line for line in lines if line["event"] == name]

    def hear(self, name: str, count: int = 1) -> dict[str, object]:
        wait_for(lambda: len(self.events(name)) >= count)
        return self.events(name)[count - 1]

    def reload(self, toml: str | None = None) -> None:
        if toml is not None:
            self.file.write_text(toml)
        self.process.send_signal(signal.SIGHUP)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Callable[..., Watched]]:
    brokers: list[Watched] = []

    def start(toml: str, env: dict[str, str] | None = None) -> Watched:
        brokers.append(Watched(tmp_path, toml, env))
        return brokers[-1]

    yield start
    for broker in brokers:
        if broker.process.poll() is None:
            broker.stop()


def setting(address: str, topic: str, name: str) -> str:
    told = json.loads(Shell(address)("topic", "describe", topic, "--all", "--json").out)
    return next(each["value"] for each in told["settings"] if each["name"] == name)


LISTENER = '[[listeners]]\nlisten = "127.0.0.1:0"\n'


def test_what_can_change_changes_and_the_rest_is_named_in_one_line(watched: Callable[..., Watched]) -> None:
    broker = watched(f'"log.retention.ms" = "7d"\nnum.partitions = 1\n{LISTENER}')
    assert Shell(broker.address)("topic", "create", "orders").status == 0
    broker.reload(f'"log.retention.ms" = "1d"\nnum.partitions = 5\nmax.connections = 99\n{LISTENER}')
    assert broker.hear("reloaded")["changed"] == "max.connections,log.retention.ms"
    assert broker.hear("restart_needed")["settings"] == "num.partitions"
    assert setting(broker.address, "orders", "retention.ms") == "86400000"
    assert Shell(broker.address)("topic", "create", "others").status == 0
    assert len(json.loads(Shell(broker.address)("topic", "describe", "others", "--json").out)["partitions"]) == 1


def test_settings_that_make_no_sense_change_nothing(watched: Callable[..., Watched]) -> None:
    broker = watched(f'"log.retention.ms" = "7d"\n{LISTENER}')
    assert Shell(broker.address)("topic", "create", "orders").status == 0
    broker.reload(f'"log.retention.ms" = "1d"\nnum.partition = 5\n{LISTENER}')
    refused = broker.hear("reload_refused")
    assert "unknown setting num.partition (did you mean num.partitions?)" in str(refused["reason"])
    assert setting(broker.address, "orders", "retention.ms") == str(7 * 86400000)
    broker.reload(f'"log.retention.ms" = "2d"\n{LISTENER}')
    assert broker.hear("reloaded")["changed"] == "log.retention.ms"


def test_what_was_changed_at_run_time_still_wins_over_the_file(watched: Callable[..., Watched]) -> None:
    broker = watched(f"{LISTENER}")
    Shell(broker.address)("topic", "create", "orders", "--config", "retention.ms=5h")
    broker.reload(f'"log.retention.ms" = "2d"\n{LISTENER}')
    broker.hear("reloaded")
    assert setting(broker.address, "orders", "retention.ms") == str(5 * 3_600_000)


def make_certificate(folder: Path, name: str) -> None:
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", f"/CN={name}", "-keyout", "broker.key", "-out", "broker.pem"]
    subprocess.run(["openssl", *words, *names], cwd=folder, check=True, capture_output=True)


def shown_certificate(address: str) -> str:
    host, _, port = address.rpartition(":")
    return ssl.get_server_certificate((host, int(port)))


def test_a_renewed_certificate_is_shown_to_new_clients_and_the_old_ones_stay(
    tmp_path: Path, watched: Callable[..., Watched]
) -> None:
    make_certificate(tmp_path, "first")
    tls = f'tls_certificate = "{tmp_path}/broker.pem"\ntls_key = "{tmp_path}/broker.key"\n'
    broker = watched(f"{LISTENER}{tls}")
    before = shown_certificate(broker.address)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, _, port = broker.address.rpartition(":")
    with context.wrap_socket(socket.create_connection((host, int(port)))) as old:
        make_certificate(tmp_path, "second")
        broker.reload()
        assert broker.hear("reloaded")["certificates"] == 1
        assert shown_certificate(broker.address) == (tmp_path / "broker.pem").read_text() != before
        old.sendall(bytes.fromhex("0000000a 0012 0000 00000007 ffff"))  # ApiVersions
        assert old.recv(8)[4:] == bytes.fromhex("00000007")
    (tmp_path / "broker.pem").write_text("no certificate any more")
    broker.reload()
    assert f"{tmp_path}/broker.pem is not a certificate" in str(broker.hear("reload_refused")["reason"])
    assert shown_certificate(broker.address) != before


class Manager:
    """systemd's side of the socket."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        self._socket.settimeout(60)

    def next(self) -> dict[str, str]:
        lines = self._socket.recv(4096).decode().splitlines()
        return dict(line.partition("=")[::2] for line in lines)

    def next_but_watchdog(self) -> dict[str, str]:
        while "WATCHDOG" in (told := self.next()):
            pass
        return told

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    running = Manager(tmp_path_factory.mktemp("s"))  # such a path has room for a hundred characters
    yield running
    running.close()


def test_systemd_hears_when_it_is_ready_reloads_lives_and_stops(
    manager: Manager, watched: Callable[..., Watched]
) -> None:
    broker = watched(LISTENER, {"NOTIFY_SOCKET": manager.path, "WATCHDOG_USEC": "200000"})
    ready = manager.next()
    assert ready["READY"] == "1"
    assert broker.address in ready["STATUS"]
    for _ in range(3):
        assert manager.next() == {"WATCHDOG": "1"}
    broker.reload()
    reloading = manager.next_but_watchdog()
    assert reloading["RELOADING"] == "1"
    assert int(reloading["MONOTONIC_USEC"]) > 0
    assert manager.next_but_watchdog()["READY"] == "1"
    broker.stop()
    assert manager.next_but_watchdog()["STOPPING"] == "1"


def test_a_broker_that_is_not_the_one_to_be_watched_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "1000000")
    assert service_manager.watchdog_seconds() == 1.0
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid() + 1))
    assert service_manager.watchdog_seconds() is None
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    assert service_manager.watchdog_seconds() == 1.0
    monkeypatch.setenv("WATCHDOG_USEC", "nonsense")
    assert service_manager.watchdog_seconds() is None


def test_a_manager_that_is_gone_keeps_nobody_from_stopping(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for address in (str(tmp_path / "nobody"), "@nobody-listens-here", "vsock:2:9999"):
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        service_manager.stopping()


def test_abstract_sockets_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"clarion-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name}")
        listening.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        service_manager.stopping()
        assert listening.recv(100).startswith(b"STOPPING=1")


# Started, stopping, stopped; levels


def test_a_life_is_told_from_its_start_to_its_end(watched: Callable[..., Watched]) -> None:
    broker = watched(LISTENER)
    broker.stop()
    started, stopping, stopped = (broker.hear(name) for name in ("started", "stopping", "stopped"))
    assert started["broker"] == 1
    assert stopping["reason"] == "SIGTERM"
    assert stopped["seconds"] >= 0
    assert all(str(line["time"]).endswith("Z") for line in (started, stopping, stopped))


def test_the_level_of_one_component_changes_while_the_broker_runs(watched: Callable[..., Watched]) -> None:
    broker = watched(f'clarion.log.level = "error,cli=info"\n{LISTENER}')
    shell = Shell(broker.address)
    assert shell("topic", "create", "quiet").status == 0
    shown = json.loads(shell("log-level", "broker=info", "--json").out)
    assert {each["component"]: each["level"] for each in shown}["broker"] == "info"
    assert {each["component"]: each["level"] for each in shown}["net"] == "error"
    assert shell("topic", "create", "loud").status == 0
    assert broker.hear("topic_created")["topic"] == "loud"
    assert shell("log-level", "--reset").status == 0
    assert shell("topic", "create", "quiet-again").status == 0
    broker.reload(f'clarion.log.level = "error,broker=info,cli=info"\n{LISTENER}')
    assert broker.hear("reloaded")["changed"] == "clarion.log.level"
    assert shell("topic", "create", "loud-again").status == 0
    assert broker.hear("topic_created", 2)["topic"] == "loud-again"


def test_levels_that_make_no_sense_are_refused_before_anybody_is_asked() -> None:
    assert "there is no component nett" in Shell("127.0.0.1:1")("log-level", "nett=debug").one_line_error(2)
    assert "chatty is no level" in Shell("127.0.0.1:1")("log-level", "net=chatty").one_line_error(2)
    assert "not both" in Shell("127.0.0.1:1")("log-level", "debug", "--reset").one_line_error(2)


def test_a_broker_that_does_not_exist_is_named(broker: Broker) -> None:
    assert "there is no broker 7" in Shell(broker.address)("log-level", "--broker", "7").one_line_error(1)


@pytest.mark.parametrize("text", ["", "chatty", "net=", "nett=debug", "info,debug", "net=debug,net=info", "info,"])
def test_what_is_no_list_of_levels(text: str) -> None:
    assert complaint_about(text)


def test_levels_are_put_together() -> None:
    assert complaint_about("info, net=debug ,log=error") is None
    assert merged("info,net=debug", ["log=error"]) == "info,log=error,net=debug"
    assert merged("net=debug", ["warning", "net=info"]) == "warning,net=info"
    assert levels_by_component("warning,net=debug")["net"] == "debug"
    assert levels_by_component("warning,net=debug")["log"] == "warning"


def test_every_component_that_writes_lines_can_be_named() -> None:
    found = {name for path in SOURCES.rglob("*.py") for name in re.findall(r'event_log\("(\w+)"\)', path.read_text())}
    assert found == {*COMPONENTS}
