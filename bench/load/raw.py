"""The raw limits of this machine, in the same run: copy loops, socket to file and back, and a server that only answers.

The server is a thread-free child process with blocking sockets; the load is the very code that loads the brokers. What
the load reaches here it could have reached there, so where a broker is slower, it is the broker that was measured.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench import frames
from bench.load.dialects import EqualReplies, KafkaDialect
from bench.load.meter import Meter
from bench.load.pump import DRAIN_WITHIN_S, RECEIVE_BYTES, Writer, pump

_REPLY = bytes(60)  # about as long as a Produce v9 reply


@dataclass(frozen=True, slots=True, kw_only=True)
class RawJob:
    """Each loop reads what concerns it; a chunk below 64 KB asks `run_ping` for tiny requests."""

    folder: str
    chunk_bytes: int = 65536
    use_sendfile: bool = False
    connections: int = 1
    total_bytes: int = 500_000_000
    seconds: float = 1.0


def run_in(job: RawJob) -> dict[str, float]:
    """Socket to file: the 64 KB Produce frames of the produce rows, received in chunks and written as they come."""
    batch = frames.batch_of(1024, 65536, 0)
    frame = frames.produce("raw", 0, batch.data, 1)
    count = job.total_bytes // len(frame)
    pid, port = _serve(lambda listener: _socket_to_file(listener, job))
    connection = socket.create_connection(("127.0.0.1", port), 30.0)
    with Meter(pid) as meter:
        for _ in range(count):
            connection.sendall(frame)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)  # the last byte is in the file
    os.waitpid(pid, 0)
    return meter.figures() | {
        "mb_per_s": count * batch.messages * 1024 / meter.seconds / 1e6,
        "gb": job.total_bytes / 1e9,
    }


def run_out(job: RawJob) -> dict[str, float]:
    """File to socket: one file sent in chunks, round and round, to the reader of the consume rows."""
    path = Path(job.folder) / "raw-out"
    _write_file(path, min(job.total_bytes, 256_000_000))
    pid, port = _serve(lambda listener: _file_to_socket(listener, path, job))
    connection = socket.create_connection(("127.0.0.1", port), 30.0)
    view, got = memoryview(bytearray(RECEIVE_BYTES)), 0
    with Meter(pid) as meter:
        while received := connection.recv_into(view):
            got += received
    os.waitpid(pid, 0)
    path.unlink()
    return meter.figures() | {"mb_per_s": got / meter.seconds / 1e6, "gb": got / 1e9}


def run_ping(job: RawJob) -> dict[str, float]:
    """Requests against a server that only answers: the ceiling of the load generator on this machine."""
    is_tiny = job.chunk_bytes < 65536
    value_bytes, batch_bytes, window = (100, 1, 1) if is_tiny else (1024, 65536, 5)
    shots = KafkaDialect().shots("raw", range(1), value_bytes, batch_bytes, 1, 0)
    pid, port = _serve(lambda listener: _answer(listener, job, len(shots.frames[0])))
    connections = [socket.create_connection(("127.0.0.1", port), 30.0) for _ in range(job.connections)]
    deadline = time.perf_counter() + job.seconds
    writers = [
        Writer(one, shots, EqualReplies(len(_REPLY)), window=window, frames_max=1 << 62, deadline=deadline)
        for one in connections
    ]
    with Meter(pid) as meter:
        for writer in writers:
            writer.fill()
        pump(writers, deadline + DRAIN_WITHIN_S)
    for one in connections:
        one.close()
    os.waitpid(pid, 0)
    done = sum(writer.acked for writer in writers)
    return meter.figures() | {
        "requests_per_s": done / meter.seconds,
        "mb_per_s": done * shots.value_bytes_per_frame / meter.seconds / 1e6,
    }


def _serve(loop: Callable[[socket.socket], None]) -> tuple[int, int]:
    """Forks a server that runs this loop on one listener and ends with it."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    listener.settimeout(30.0)
    pid = os.fork()
    if pid:
        port = listener.getsockname()[1]
        listener.close()
        return pid, port
    status = 1
    try:
        loop(listener)
        status = 0
    finally:
        os._exit(status)


def _socket_to_file(listener: socket.socket, job: RawJob) -> None:
    connection, _ = listener.accept()
    view = memoryview(bytearray(job.chunk_bytes))
    path = Path(job.folder) / "raw-in"
    with path.open("wb", buffering=0) as file:
        while got := connection.recv_into(view):
            file.write(view[:got])
    connection.sendall(b"\x00")
    path.unlink()


def _file_to_socket(listener: socket.socket, path: Path, job: RawJob) -> None:
    connection, _ = listener.accept()
    view = memoryview(bytearray(job.chunk_bytes))
    deadline = time.perf_counter() + job.seconds
    with path.open("rb", buffering=0) as file:
        size, at = path.stat().st_size, 0
        while time.perf_counter() < deadline:
            if job.use_sendfile:
                at += os.sendfile(connection.fileno(), file.fileno(), at, job.chunk_bytes)
            else:
                got = os.preadv(file.fileno(), [view], at)
                connection.sendall(view[:got])
                at += got
            at = 0 if at >= size else at
    connection.shutdown(socket.SHUT_WR)


def _answer(listener: socket.socket, job: RawJob, request_bytes: int) -> None:
    """An epoll loop that skips requests of one length and answers each: as little as a broker can possibly do."""
    view = memoryview(bytearray(max(job.chunk_bytes, 65536)))
    with select.epoll() as epoll:
        lines = dict(_accepted(listener, epoll) for _ in range(job.connections))
        pending = dict.fromkeys(lines, 0)
        while lines:
            for fd, _ in epoll.poll(10.0):
                got = lines[fd].recv_into(view)
                if not got:
                    epoll.unregister(fd)
                    del lines[fd]
                    continue
                done, pending[fd] = divmod(pending[fd] + got, request_bytes)
                if done:
                    lines[fd].send(_REPLY * done)


def _accepted(listener: socket.socket, epoll: select.epoll) -> tuple[int, socket.socket]:
    connection, _ = listener.accept()
    epoll.register(connection.fileno(), select.EPOLLIN)
    return connection.fileno(), connection


def _write_file(path: Path, size: int) -> None:
    chunk = os.urandom(1_000_000)
    with path.open("wb", buffering=0) as file:
        for _ in range(size // len(chunk)):
            file.write(chunk)
