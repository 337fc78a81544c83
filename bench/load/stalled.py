"""Two who take nothing: a reader that asks for megabytes and never reads, and an endpoint that never answers."""

from __future__ import annotations

import selectors
import socket
import time
from dataclasses import dataclass

from bench import frames
from bench.load.dialects import FETCH_BYTES
from bench.load.push import subscribe

_ASKED = 20  # fetches of a megabyte each, far more than sockets hold


@dataclass(frozen=True, slots=True, kw_only=True)
class StalledJob:
    port: int
    http_port: int
    topic: str
    seconds: float


def run(job: StalledJob) -> dict[str, float]:
    """Returns how many pushes the endpoint has kept waiting: none would mean that nobody was dead."""
    until = time.perf_counter() + job.seconds
    with (
        socket.create_connection(("127.0.0.1", job.port), 30.0) as reader,
        socket.create_server(("127.0.0.1", 0)) as listening,
    ):
        reader.sendall(bytes(frames.fetch(job.topic, 0, 0, bytes_max=FETCH_BYTES)) * _ASKED)
        subscribe(job.http_port, f"dead-{job.topic}", job.topic, listening.getsockname()[1], start="earliest")
        held = _hold(listening, until)
    for connection in held:
        connection.close()
    return {"kept_waiting": float(len(held))}


def _hold(listening: socket.socket, until: float) -> list[socket.socket]:
    held: list[socket.socket] = []
    with selectors.DefaultSelector() as selector:
        selector.register(listening, selectors.EVENT_READ)
        while (left := until - time.perf_counter()) > 0:
            if selector.select(left):
                held.append(listening.accept()[0])
    return held
