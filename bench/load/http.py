"""The HTTP API under load: writes, one message or a hundred to a request, and pulls from a queue that are settled.

Connections are kept open, and each sends its next request when it has the answer to the last one.
"""

from __future__ import annotations

import json
import re
import socket
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass

from bench import frames
from bench.load.meter import Meter
from bench.load.pump import DRAIN_WITHIN_S, Line, pump

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_RECEIPT = re.compile(rb'"receipt": ?"([^"]+)"')
_FIRST_WITHIN_S = 60.0  # the broker loads the API when it is first asked
_PULLED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpJob:
    http_port: int
    pids: Sequence[int]
    topic: str
    messages: int  # of pulls: how many are there
    seconds: float
    connections: int = 8
    value_bytes: int = 1024
    per_request: int = 1
    goes_on_when_refused: bool = False  # 429: HTTP has its share, and this load wants more


def run_write(job: HttpJob) -> dict[str, float]:
    value = frames.value(job.value_bytes).hex()[: job.value_bytes]
    path = f"/v1/topics/{job.topic}/messages"
    if job.per_request == 1:
        request = _request(path, value.encode(), "application/octet-stream")
    else:
        request = _request(
            path, (json.dumps({"value": value}) + "\n").encode() * job.per_request, "application/x-ndjson"
        )
    _ask(job, "/v1/topics")
    until = time.perf_counter() + job.seconds
    writers = [_Writer(job, request, until) for _ in range(job.connections)]
    return _run(job, writers)


def run_pull(job: HttpJob) -> dict[str, float]:
    name = f"pull-{job.topic}"
    wanted = {"name": name, "topics": [job.topic], "start": "earliest"}
    _ask(job, "/v1/subscriptions", json.dumps(wanted).encode())
    until = time.perf_counter() + job.seconds
    pullers = [_Puller(job, name, until) for _ in range(job.connections)]
    return _run(job, pullers)


def _run(job: HttpJob, callers: Sequence[_Caller]) -> dict[str, float]:
    with Meter(*job.pids) as meter:
        for caller in callers:
            caller.begin()
        pump(callers, time.perf_counter() + job.seconds + DRAIN_WITHIN_S)
    for caller in callers:
        caller.connection.close()
    messages = sum(caller.messages for caller in callers)
    return meter.figures() | {
        "messages": messages,
        "messages_per_s": messages / meter.seconds,
        "requests": sum(caller.requests for caller in callers),
        "requests_per_s": sum(caller.requests for caller in callers) / meter.seconds,
        "refused": sum(caller.refused for caller in callers),
    }


class _Caller(Line):
    """One request, its answer, the next request."""

    def __init__(self, job: HttpJob, until: float) -> None:
        connection = socket.create_connection(("127.0.0.1", job.http_port), 30.0)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().__init__(connection)
        self._until = until
        self._goes_on = job.goes_on_when_refused
        self._received = b""
        self._is_waiting = False
        self.messages = 0
        self.requests = 0
        self.refused = 0

    def begin(self) -> None:
        self._say(self.next_request(b""))

    def next_request(self, body: bytes) -> bytes | None:
        """What follows the answer with this body; None ends it."""
        raise NotImplementedError

    def on_data(self, data: memoryview) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n") + 4
        if end < 4:
            return
        length = _LENGTH.search(self._received[:end])
        if length is None:
            raise RuntimeError(f"an answer without a length: {self._received[:200]!r}")
        if len(self._received) < end + int(length[1]):
            return
        head, body, self._received = self._received[:end], self._received[end:], b""
        self._is_waiting = False
        self.requests += 1
        if head[8:14].startswith(b" 2"):
            self._say(self.next_request(body))
        elif self._goes_on and head[8:14].startswith(b" 429"):
            self.refused += 1
            self._say(self.next_request(b""))
        else:
            raise RuntimeError(f"an answer under load: {head[:40]!r} {body[:300]!r}")

    def is_done(self) -> bool:
        return not self._is_waiting

    def _say(self, request: bytes | None) -> None:
        if request is not None and time.perf_counter() < self._until:
            self._is_waiting = True
            self.send(request)


class _Writer(_Caller):
    def __init__(self, job: HttpJob, request: bytes, until: float) -> None:
        super().__init__(job, until)
        self._request = request
        self._per_request = job.per_request

    def next_request(self, body: bytes) -> bytes:
        if body:
            self.messages += self._per_request
        return self._request


class _Puller(_Caller):
    """Pulls, settles what came, and pulls again."""

    def __init__(self, job: HttpJob, name: str, until: float) -> None:
        super().__init__(job, until)
        self._name = name
        self._settling = 0
        asked = json.dumps({"max_messages": _PULLED, "wait_ms": 100}).encode()
        self._pull = _request(f"/v1/subscriptions/{name}:pull", asked, "application/json")

    def next_request(self, body: bytes) -> bytes | None:
        if not body or self._settling:
            self.messages += self._settling
            self._settling = 0
            return self._pull
        receipts = _RECEIPT.findall(body)
        if not receipts:
            return None  # all are gone
        self._settling = len(receipts)
        done = b",".join([b'{"receipt":"%s","action":"ack"}' % receipt for receipt in receipts])
        return _request(f"/v1/subscriptions/{self._name}:settle", b'{"settlements":[%s]}' % done, "application/json")


def _request(path: str, body: bytes, kind: str) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _ask(job: HttpJob, path: str, body: bytes | None = None) -> None:
    asked = urllib.request.Request(
        f"http://127.0.0.1:{job.http_port}{path}", data=body, headers={"content-type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=_FIRST_WITHIN_S) as answer:
        answer.read()
