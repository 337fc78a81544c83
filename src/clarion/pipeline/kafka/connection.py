"""One connection to one broker: blocking, with a limit on every wait. Requests may be sent ahead of their answers."""

from __future__ import annotations

import socket
import ssl
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple

from clarion.pipeline.kafka.errors import ConnectionLostError, CorruptDataError, TlsError
from clarion.pipeline.kafka.settings import ClientSettings, TlsSettings
from clarion.wire.cursor import FieldReader

Buffer = bytes | bytearray | memoryview

# An answer is at most what was asked for plus one batch; anything greater is not Kafka on the other side.
FRAME_BYTES_MAX: Final = 256 * 1024 * 1024
# Room for the next fetch to arrive while the last one is decoded (the kernel may grant less).
RECEIVE_BUFFER_BYTES: Final = 4 * 1024 * 1024


class ClientApi(NamedTuple):
    """An API at the version in which this room speaks it."""

    name: str
    key: int
    version: int
    is_flexible: bool


_SIZE = Struct(">i")
_HEADER = Struct(">ihhih")  # size, api key, version, correlation id, length of the client id


class BrokerConnection:
    def __init__(self, host: str, port: int, settings: ClientSettings) -> None:
        self.address = f"{host}:{port}"
        self._client_id = settings.client_id.encode()
        self._timeout_s = settings.request_timeout_ms / 1000
        self._last_id = 0
        self._unanswered: deque[tuple[int, ClientApi]] = deque()
        self._buffer = bytearray()
        self._socket = _connect(host, port, settings)

    @property
    def unanswered(self) -> int:
        return len(self._unanswered)

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def has_buffered(self) -> bool:
        """Whether TLS holds bytes that `select` cannot see."""
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def close(self) -> None:
        self._unanswered.clear()
        self._socket.close()

    def ask(self, api: ClientApi, body: Buffer, *, extra_ms: int = 0) -> FieldReader:
        """One question, one answer. `extra_ms` is time that the broker was allowed to wait by itself."""
        self.send(api, body)
        return self.receive(extra_ms=extra_ms)

    def send(self, api: ClientApi, *body: Buffer) -> None:
        """The body may come in pieces, so that megabytes of records need not be copied into one."""
        self._last_id = (self._last_id + 1) & 0x7FFFFFFF
        size = _HEADER.size - 4 + len(self._client_id) + api.is_flexible + sum(map(len, body))
        head = _HEADER.pack(size, api.key, api.version, self._last_id, len(self._client_id)) + self._client_id
        self._unanswered.append((self._last_id, api))
        try:
            self._socket.settimeout(self._timeout_s)
            for piece in _joined([head + b"\0" * api.is_flexible, *body]):
                self._socket.sendall(piece)
        except OSError as error:
            raise self._lost(api, error) from error

    def receive(self, *, extra_ms: int = 0, in_place: bool = False) -> FieldReader:
        """The answer to the oldest unanswered question, behind its header.

        With `in_place` it lies in the connection's own buffer, until the next answer is received so: memory that has
        been touched before is quicker to fill.
        """
        if not self._unanswered:
            raise ConnectionLostError(f"the connection to {self.address} was closed before an answer came")
        correlation_id, api = self._unanswered[0]
        try:
            self._socket.settimeout(self._timeout_s + extra_ms / 1000)
            (size,) = _SIZE.unpack(self._fill(memoryview(bytearray(4))))
            if not 4 <= size <= FRAME_BYTES_MAX:
                raise CorruptDataError(
                    f"{self.address} sent a frame of {size} bytes: it does not speak Kafka's protocol"
                )
            frame = self._fill(self._room(size) if in_place else memoryview(bytearray(size)))
        except OSError as error:
            raise self._lost(api, error) from error
        self._unanswered.popleft()
        reader = FieldReader(
            frame,
            flexible=api.is_flexible,
            what=f"the answer of {self.address} to {api.name}",
            error=CorruptDataError,
        )
        if (answered := reader.int32()) != correlation_id:
            raise CorruptDataError(f"{self.address} answered question {answered} where {correlation_id} was asked")
        reader.skip_tags()
        return reader

    def _room(self, size: int) -> memoryview:
        if len(self._buffer) < size:
            self._buffer = bytearray(size + size // 4)
        return memoryview(self._buffer)[:size]

    def _fill(self, room: memoryview) -> memoryview:
        at = 0
        while at < len(room):
            got = self._socket.recv_into(room[at:])
            if not got:
                raise ConnectionResetError("it closed the connection")
            at += got
        return room

    def _lost(self, api: ClientApi, error: OSError) -> ConnectionLostError | TlsError:
        return _failure(f"{self.address} was asked for {api.name}", error)


def _failure(what: str, error: OSError) -> ConnectionLostError | TlsError:
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return TlsError(f"{what}: {error}")
    return ConnectionLostError(f"{what}: {'no answer in time' if isinstance(error, TimeoutError) else error}")


_JOINED_BYTES_MAX: Final = 64 * 1024  # below this, one system call more costs more than one copy


def _joined(pieces: list[Buffer]) -> Iterator[Buffer]:
    """Small neighbours as one piece, large ones as they are."""
    small = bytearray()
    for piece in pieces:
        if len(piece) < _JOINED_BYTES_MAX:
            small += piece
            continue
        if small:
            yield small
            small = bytearray()
        yield piece
    if small:
        yield small


def _connect(host: str, port: int, settings: ClientSettings) -> socket.socket:
    plain: socket.socket | None = None
    try:
        plain = socket.create_connection((host, port), settings.connect_timeout_ms / 1000)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        if settings.tls is None:
            return plain
        return tls_context(settings.tls).wrap_socket(plain, server_hostname=host)
    except OSError as error:
        if plain is not None:
            plain.close()
        raise _failure(f"{host}:{port} cannot be reached", error) from error


@lru_cache(maxsize=16)
def tls_context(tls: TlsSettings) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.ca_file)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = tls.checks_host_name
    if tls.certificate_file is not None:
        context.load_cert_chain(tls.certificate_file, tls.key_file, tls.key_password)
    return context
