"""Connections that do nothing: opened, greeted once (ApiVersions), and held while the broker's memory is read."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass

from bench import frames
from bench.load.admin import receive_frame
from bench.peers.process import raise_file_limit, rss_bytes_of

_SETTLE_S = 1.0  # a garbage collector or an allocator finishes its work


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleJob:
    port: int
    pid: int
    connections: int


def run(job: IdleJob) -> dict[str, float]:
    limit = raise_file_limit()
    if limit < job.connections + 100:
        raise RuntimeError(f"this machine allows {limit} open files, too few for {job.connections} connections")
    _greeted(job, 1)[0].close()  # the first connection loads what every later one shares
    before = rss_bytes_of(job.pid)
    began = time.perf_counter()
    held = _greeted(job, job.connections)
    seconds = time.perf_counter() - began
    time.sleep(_SETTLE_S)
    after = rss_bytes_of(job.pid)
    _is_alive(held[0])
    return {
        "kb_per_connection": max(0, after - before) / job.connections / 1000,
        "connections": len(held),
        "connect_s": seconds,
    }


def _greeted(job: IdleJob, count: int) -> list[socket.socket]:
    held = []
    for _ in range(count):
        connection = socket.create_connection(("127.0.0.1", job.port), 10.0)
        _is_alive(connection)
        held.append(connection)
    return held


def _is_alive(connection: socket.socket) -> None:
    connection.sendall(frames.api_versions())
    receive_frame(connection)
