"""Push latency: one producer at a fixed rate, one webhook endpoint on loopback, on one clock.

A message's time runs from the moment its send begins to the moment the endpoint has the whole request with it: what a
user of webhooks waits for. The endpoint is a few lines over a socket, so that its own time does not count for much.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass

from bench.figures import percentile
from bench.load.dialects import dialect_named
from bench.load.latency import is_saturated
from bench.load.meter import Meter

_ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_OFFSET = re.compile(rb"\r\nce-offset: *(\d+)", re.IGNORECASE)
_WARM_SHARE = 0.1  # of the messages, left out of the figures
_FIRST_WITHIN_S = 30.0  # the broker loads what push needs when it first pushes
_LATE_BY_MAX_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PushJob:
    port: int
    http_port: int
    pids: Sequence[int]
    topic: str
    rate: int = 200
    seconds: float = 5.0
    value_bytes: int = 1024


def run(job: PushJob) -> dict[str, float]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        subscribe(job.http_port, f"push-{job.topic}", job.topic, listening.getsockname()[1])
        return asyncio.run(_run(job, listening))


def run_backlog(job: PushJob) -> dict[str, float]:
    """What a topic holds already is pushed as fast as broker and endpoint go."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        subscribe(job.http_port, f"push-{job.topic}", job.topic, listening.getsockname()[1], start="earliest")
        return asyncio.run(_run_backlog(job, listening))


def subscribe(http_port: int, name: str, topic: str, port: int, start: str = "latest") -> None:
    wanted = {
        "name": name,
        "topics": [topic],
        "start": start,
        "push": {"url": f"http://127.0.0.1:{port}/", "allow_private": True},
    }
    asked = urllib.request.Request(
        f"http://127.0.0.1:{http_port}/v1/subscriptions",
        data=json.dumps(wanted).encode(),
        headers={"content-type": "application/json"},
        method="POST",
    )
    with urllib.request.urlopen(asked, timeout=60) as answer:
        answer.read()


class _Endpoint(asyncio.Protocol):
    """Takes requests one after the other, and notes when each message was there."""

    def __init__(self, arrived: dict[int, float]) -> None:
        self._arrived = arrived
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            length, offset = _LENGTH.search(self._buffer[:end]), _OFFSET.search(self._buffer[:end])
            assert length is not None
            assert offset is not None
            whole = end + 4 + int(length[1])
            if len(self._buffer) < whole:
                return
            self._buffer = self._buffer[whole:]
            self._arrived.setdefault(int(offset[1]), time.perf_counter())
            self._transport.write(_ANSWER)


async def _run(job: PushJob, listening: socket.socket) -> dict[str, float]:
    arrived: dict[int, float] = {}
    server = await asyncio.get_running_loop().create_server(lambda: _Endpoint(arrived), sock=listening)
    frame = dialect_named("clarion").shots(job.topic, range(1), job.value_bytes, 1, 1, 0).frames[0]
    reader, writer = await asyncio.open_connection("127.0.0.1", job.port)
    draining = asyncio.create_task(_drain(reader))  # acknowledgements are not waited for, only taken away
    writer.write(frame)
    await _until(lambda: 0 in arrived, _FIRST_WITHIN_S)
    with Meter(*job.pids) as meter:
        sent, backlog = await _send(job, writer, frame, arrived)
        await _until(lambda: len(arrived) > len(sent), _LATE_BY_MAX_S)
    draining.cancel()
    writer.close()
    server.close()
    took = [(arrived[number + 1] - left) * 1000 for number, left in enumerate(sent)]
    took = sorted(took[int(len(took) * _WARM_SHARE) :])
    return meter.figures() | {
        "p50_ms": percentile(took, 50),
        "p99_ms": percentile(took, 99),
        "p999_ms": percentile(took, 99.9),
        "messages": len(took),
        "saturated": float(is_saturated(backlog, job.rate)),
    }


async def _run_backlog(job: PushJob, listening: socket.socket) -> dict[str, float]:
    arrived: dict[int, float] = {}
    server = await asyncio.get_running_loop().create_server(lambda: _Endpoint(arrived), sock=listening)
    await _until(lambda: arrived, _FIRST_WITHIN_S)
    before = len(arrived)
    with Meter(*job.pids) as meter:
        await asyncio.sleep(job.seconds)
        messages = len(arrived) - before
    server.close()
    return meter.figures() | {"messages": messages, "messages_per_s": messages / meter.seconds}


async def _send(
    job: PushJob, writer: asyncio.StreamWriter, frame: bytes, arrived: dict[int, float]
) -> tuple[list[float], int]:
    sent: list[float] = []
    began = time.perf_counter()
    for number in range(int(job.rate * job.seconds)):
        await asyncio.sleep(max(0.0, began + number / job.rate - time.perf_counter()))
        sent.append(time.perf_counter())
        writer.write(frame)
    return sent, len(sent) + 1 - len(arrived)


async def _drain(reader: asyncio.StreamReader) -> None:
    while await reader.read(65_536):
        pass


async def _until(condition: object, seconds: float) -> None:
    assert callable(condition)
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # of figures that callbacks write
            await asyncio.sleep(0.005)
