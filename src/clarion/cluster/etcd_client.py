"""etcd over its JSON gateway: one POST for a call, one connection for a stream, and several endpoints to turn to.

HTTP and JSON instead of gRPC: as fast for the few calls of a cluster's decisions, nothing of grpcio and protobuf to
install beside Spark, and plain asyncio, so that the simulation can run it. A call that got no answer leaves its
endpoint: the next call goes to the next one. Whether it may be repeated only the caller knows.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import h11

_IDLE_CONNECTIONS_MAX: Final = 8  # kept for the next call; more calls at once open more, and close them afterwards
_READ_BYTES: Final = 64 * 1024
_ANSWER_BYTES_MAX: Final = 256 * 1024 * 1024  # one page of keys, or the events of one transaction, stays far below
_UNAUTHENTICATED: Final = 16  # gRPC's code: the token has expired, or etcd was restarted

Json = Mapping[str, Any]


class EtcdError(Exception):
    """etcd refused; nothing was done."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class NoAnswerError(Exception):
    """Nobody can say whether it was done."""


@dataclass(frozen=True, slots=True)
class EtcdAddress:
    endpoints: tuple[tuple[str, int], ...]
    tls: ssl.SSLContext | None = None
    user: str = ""
    password: str = field(default="", repr=False)


class EtcdClient:
    def __init__(self, address: EtcdAddress, *, attempt_seconds: float) -> None:
        """`attempt_seconds`: how long an endpoint may be silent before it counts as away."""
        self._address = address
        self._attempt_seconds = attempt_seconds
        self._current = 0
        self._idle: list[_Connection] = []
        self._token: str | None = None

    async def ask(self, path: str, body: Json) -> Json:
        """One attempt. NoAnswerError: it may have been done."""
        try:
            return await self._attempt(path, body)
        except EtcdError as error:
            if error.code != _UNAUTHENTICATED or not self._address.user:
                raise
        self._token = None
        return await self._attempt(path, body)

    async def ask_surely(self, path: str, body: Json) -> Json:
        """For what may be asked twice: every endpoint is tried, and the first one once more."""
        for _ in self._address.endpoints:
            try:
                return await self.ask(path, body)
            except NoAnswerError:
                pass
        return await self.ask(path, body)

    async def stream(self, path: str, body: Json) -> EtcdStream:
        """NoAnswerError if the endpoint is away; so may be `receive` of what this returns."""
        async with self._answered_in_time(self._current):
            connection = await self._connect()
            await connection.send("POST", path, await self._headers(), json.dumps(body).encode())
            return EtcdStream(connection)

    async def get(self, path: str) -> Json:
        """A plain GET, as of `/version`."""
        async with self._answered_in_time(self._current):
            connection = await self._connect()
            try:
                await connection.send("GET", path, [], b"")
                return _parsed(*await connection.receive_all())
            finally:
                connection.close()

    async def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    async def _attempt(self, path: str, body: Json) -> Json:
        async with self._answered_in_time(self._current):
            return await self._exchange(path, body, await self._headers())

    async def _exchange(self, path: str, body: Json, headers: list[tuple[str, str]]) -> Json:
        connection = await self._idle_connection() or await self._connect()
        try:
            await connection.send("POST", path, headers, json.dumps(body).encode())
            status, content = await connection.receive_all()
        except BaseException:
            connection.close()
            raise
        self._keep(connection)
        return _parsed(status, content)

    async def _headers(self) -> list[tuple[str, str]]:
        if not self._address.user:
            return []
        if self._token is None:
            who = {"name": self._address.user, "password": self._address.password}
            self._token = str((await self._exchange("/v3/auth/authenticate", who, []))["token"])
        return [("Authorization", self._token)]

    def _answered_in_time(self, endpoint: int) -> _Attempt:
        return _Attempt(self, endpoint, self._attempt_seconds)

    def _leave(self, endpoint: int) -> None:
        """Once, however many calls were under way there."""
        if endpoint == self._current:
            self._current = (endpoint + 1) % len(self._address.endpoints)
            while self._idle:
                self._idle.pop().close()

    async def _idle_connection(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
            connection.close()
        return None

    def _keep(self, connection: _Connection) -> None:
        if len(self._idle) < _IDLE_CONNECTIONS_MAX and connection.endpoint == self._current and connection.make_idle():
            self._idle.append(connection)
        else:
            connection.close()

    async def _connect(self) -> _Connection:
        endpoint = self._current
        host, port = self._address.endpoints[endpoint]
        reader, writer = await asyncio.open_connection(
            host, port, ssl=self._address.tls, server_hostname=host if self._address.tls else None
        )
        return _Connection(endpoint, f"{host}:{port}", reader, writer)


class _Attempt:
    """Whatever says that an endpoint does not answer becomes NoAnswerError, and the next call goes elsewhere."""

    def __init__(self, client: EtcdClient, endpoint: int, seconds: float) -> None:
        self._client = client
        self._endpoint = endpoint
        self._timeout = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError as silence:
            error = silence
        if isinstance(error, (OSError, TimeoutError, EOFError, h11.RemoteProtocolError)):
            self._client._leave(self._endpoint)
            raise NoAnswerError(str(error) or "no answer in time") from error


class EtcdStream:
    """Answers that come one by one, for ever."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self._rest = bytearray()

    async def receive(self) -> Json:
        """May be cancelled while it waits, and called again. NoAnswerError: the stream has ended."""
        try:
            while (end := self._rest.find(b"\n")) < 0:
                self._rest += await self._connection.receive_some()
                if len(self._rest) > _ANSWER_BYTES_MAX:
                    raise NoAnswerError("an answer without an end")
        except (OSError, EOFError, h11.RemoteProtocolError) as error:
            raise NoAnswerError(str(error)) from error
        line = bytes(self._rest[:end])
        del self._rest[: end + 1]
        answer = _parsed(self._connection.status, line)
        if "error" in answer:
            raise _error(answer["error"])
        result: Json = answer["result"]
        return result

    def close(self) -> None:
        self._connection.close()


class _Connection:
    def __init__(self, endpoint: int, host: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.endpoint = endpoint
        self.status = 0
        self._host = host
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT)

    @property
    def is_open(self) -> bool:
        return not (self._reader.at_eof() or self._writer.is_closing())

    async def send(self, method: str, path: str, headers: list[tuple[str, str]], body: bytes) -> None:
        sent = [("Host", self._host), ("Content-Length", str(len(body))), *headers]
        request = h11.Request(method=method, target=path, headers=sent)
        parts = (request, h11.Data(data=body), h11.EndOfMessage()) if body else (request, h11.EndOfMessage())
        self._writer.write(b"".join(self._http.send(part) or b"" for part in parts))
        await self._writer.drain()

    async def receive_all(self) -> tuple[int, bytes]:
        content = bytearray()
        try:
            while True:
                content += await self.receive_some()
                if len(content) > _ANSWER_BYTES_MAX:
                    raise EOFError("an answer without an end")
        except _EndOfAnswer:
            return self.status, bytes(content)

    async def receive_some(self) -> bytes:
        """The next piece of the answer's body. Loses nothing when it is cancelled."""
        while True:
            match self._http.next_event():
                case h11.Data(data=data):
                    return bytes(data)
                case h11.Response(status_code=status):
                    self.status = status
                case h11.EndOfMessage():
                    raise _EndOfAnswer
                case h11.NEED_DATA:
                    self._http.receive_data(await self._reader.read(_READ_BYTES))
                case h11.ConnectionClosed() | h11.PAUSED:
                    raise EOFError("the connection was closed")

    def make_idle(self) -> bool:
        """Whether it can serve another call."""
        try:
            self._http.start_next_cycle()
        except h11.LocalProtocolError:
            return False
        return True

    def close(self) -> None:
        self._writer.close()


class _EndOfAnswer(EOFError):
    """All of it was received."""


def _parsed(status: int, content: bytes) -> Json:
    try:
        answer = json.loads(content)
    except ValueError:
        raise NoAnswerError(f"no JSON but {content[:100]!r} with status {status}") from None
    if not isinstance(answer, dict):
        raise NoAnswerError(f"no object but {content[:100]!r} with status {status}")
    if status != 200:
        raise _error(answer)
    return answer


def _error(answer: Json) -> EtcdError | NoAnswerError:
    """14 and 4, unavailable and deadline exceeded: a leader is being elected, or the request was lost on its way."""
    code = int(answer.get("grpc_code", answer.get("code", 0)))
    message = str(answer.get("message") or answer.get("error") or "no reason given")
    return NoAnswerError(message) if code in (4, 14) else EtcdError(code, message)
