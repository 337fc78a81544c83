"""A real etcd on loopback, from Debian's `etcd-server`; where that is missing, tests are skipped with the reason."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import urllib.request
from contextlib import suppress
from pathlib import Path

from tools.cluster import free_ports

from tests.waiting import wait_for

MISSING = "no etcd here: apt-get install etcd-server"


def is_installed() -> bool:
    return shutil.which("etcd") is not None


class EtcdProcess:
    """One member; `start` returns when it answers. More than one: see `etcd_cluster`."""

    def __init__(self, folder: Path, name: str, client_port: int, peer_port: int, members: str = "") -> None:
        self.endpoint = ("127.0.0.1", client_port)
        self._folder = folder
        client, peer = f"http://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
        self._command = ["etcd", "--name", name, "--data-dir", str(folder / name), "--log-level", "error"]
        self._command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        self._command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        self._command += ["--initial-cluster", members or f"{name}={peer}"]
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        with (self._folder / "etcd.log").open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, env=_environment())

    def start(self) -> None:
        self.launch()
        self.wait_until_healthy()

    def wait_until_healthy(self) -> None:
        wait_for(self._is_healthy, what="etcd answers", seconds=60)

    def _is_healthy(self) -> bool:
        host, port = self.endpoint
        with suppress(OSError), urllib.request.urlopen(f"http://{host}:{port}/health", timeout=2) as answer:
            return bool(json.load(answer)["health"] == "true")
        return False

    def freeze(self) -> None:
        """Returns when it stands still: on a busy machine it would still answer for a while."""
        assert self._process is not None
        self._signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)


def etcd_cluster(folder: Path, count: int) -> list[EtcdProcess]:
    """Started and healthy."""
    ports = free_ports(2 * count)
    members = ",".join(f"m{at}=http://127.0.0.1:{ports[count + at]}" for at in range(count))
    servers = [EtcdProcess(folder, f"m{at}", ports[at], ports[count + at], members) for at in range(count)]
    for server in servers:
        server.launch()
    for server in servers:
        server.wait_until_healthy()
    return servers


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
