"""Is that a Kafka listener? One small question to an address, before the client library asks it for a minute.

The library retries whatever goes wrong; a person wants to know at once that nothing listens, that TLS is wanted or not
known there, or that a web server answers.
"""

from __future__ import annotations

import socket
from contextlib import closing
from struct import Struct
from typing import Final

_CONNECT_SECONDS_MAX: Final = 5.0
_ANSWER_SECONDS_MAX: Final = 2.0  # who is slower may be busy: the client library shall find out
_CORRELATION: Final = 0x636C6172
# ApiVersions, version 0: every broker answers it, before a log-in too.
_QUESTION: Final = Struct(">ihhih").pack(10, 18, 0, _CORRELATION, -1)
_ANSWER: Final = Struct(">ii")
_ANSWER_BYTES_MAX: Final = 64 * 1024


def trouble_with(host: str, port: int, *, with_tls: bool) -> str:
    """What keeps a client from this address, in one sentence; empty where nothing seems to."""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        found = _shake_hands(host, port) if with_tls else _ask(host, port)
        if found == "kafka":
            return ""
        other = "" if found else _ask(host, port) if with_tls else _shake_hands(host, port)
    except socket.gaierror:
        return f"there is no host called {host}"
    except TimeoutError:
        return ""
    except OSError:
        return f"nothing answers at {address}; is `clarion serve` running?"
    if with_tls and other == "kafka":
        return f"{address} does not speak TLS: leave security.protocol=ssl out"
    if not with_tls and other == "kafka":
        return f"{address} wants TLS: add -X security.protocol=ssl, and -X ssl.ca.location=FILE if its CA is your own"
    if "http" in (found, other):
        return f"{address} answers with HTTP; is it the address of the metrics? A Kafka listener is needed"
    return f"{address} takes connections but does not speak Kafka's protocol; is it the right port?"


def _ask(host: str, port: int) -> str:
    """`kafka`, `http`, or nothing for anything else."""
    with closing(_connected(host, port)) as sock:
        sock.sendall(_QUESTION)
        try:
            answer = _begin_of_answer(sock)
        except TimeoutError:
            sock.sendall(b"\r\n\r\n")  # a web server has been waiting for the end of its line
            answer = _begin_of_answer(sock)
    if len(answer) >= _ANSWER.size:
        size, correlation = _ANSWER.unpack_from(answer)
        if correlation == _CORRELATION and 0 < size <= _ANSWER_BYTES_MAX:
            return "kafka"
    return "http" if answer.startswith((b"HTTP/", b"<!DOCTYP")) else ""


def _begin_of_answer(sock: socket.socket) -> bytes:
    answer = b""
    try:
        while len(answer) < _ANSWER.size and (more := sock.recv(64)):
            answer += more
    except ConnectionError:
        pass  # it ended the connection: that is an answer too
    return answer


def _shake_hands(host: str, port: int) -> str:
    """`kafka` where TLS is spoken. Whom to trust is not asked here: the client library knows its settings."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with closing(_connected(host, port)) as sock:
        try:
            context.wrap_socket(sock, server_hostname=host).close()
        except ssl.SSLEOFError:
            return ""
        except ssl.SSLError as error:
            spoken = "ALERT" in (error.reason or "")  # it refuses us in TLS's own words
            return "kafka" if spoken else "http" if error.reason == "HTTP_REQUEST" else ""
        except ConnectionError:
            return ""
        return "kafka"


def _connected(host: str, port: int) -> socket.socket:
    sock = socket.create_connection((host, port), timeout=_CONNECT_SECONDS_MAX)
    sock.settimeout(_ANSWER_SECONDS_MAX)
    return sock
