"""Headers and the length prefix: what stands before every body.

A request starts with key, version, correlation id and client id (header v1), and tagged fields when its version is
flexible (header v2; the client id keeps its old form). A response starts with the correlation id (header v0), and
tagged fields when flexible (v1); ApiVersions always answers with v0, because the client does not yet know better.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from clarion.model.errors import MalformedError
from clarion.wire.apis import API_VERSIONS, FIRST_FLEXIBLE, NEVER_FLEXIBLE
from clarion.wire.fields import NO_TAGS, UNREADABLE, nullable_string, skip_tags

LENGTH_BYTES: Final = 4

_LENGTH = Struct(">i")
_REQUEST = Struct(">hhih")
_CORRELATION = Struct(">i")
_PLAIN_REPLY = Struct(">ii")
_FLEXIBLE_REPLY = Struct(">iix")
_HEADER_BYTES_MIN: Final = _REQUEST.size
_make = tuple.__new__


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_at: int


def parse_request_header(frame: memoryview | bytes | bytearray) -> RequestHeader:
    """`frame` is without its length prefix. Of an API that we do not know, the header is read as v1."""
    try:
        key, version, correlation_id, length = _REQUEST.unpack_from(frame)
        body_at = _HEADER_BYTES_MIN
        client_id = None
        if length >= 0:
            body_at += length
            if body_at > len(frame):
                raise MalformedError("a client id is cut off")
            # As in Kafka, where a client id is a name for logs: what is not UTF-8 in it does not matter.
            client_id = str(frame[_HEADER_BYTES_MIN:body_at], "utf-8", "replace")
        elif length != -1:
            raise MalformedError(f"a client id of length {length}")
        if version >= FIRST_FLEXIBLE.get(key, NEVER_FLEXIBLE):
            body_at = body_at + 1 if frame[body_at] == 0 else skip_tags(frame, body_at)
    except UNREADABLE as unreadable:
        raise MalformedError(f"a request header cannot be read: {unreadable}") from unreadable
    return _make(RequestHeader, (key, version, correlation_id, client_id, body_at))


def reply_head(api_key: int, version: int, correlation_id: int, body_bytes: int) -> bytes:
    """Length prefix and response header of a body of `body_bytes`."""
    if has_flexible_reply(api_key, version):
        return _FLEXIBLE_REPLY.pack(body_bytes + 5, correlation_id)
    return _PLAIN_REPLY.pack(body_bytes + 4, correlation_id)


def has_flexible_reply(api_key: int, version: int) -> bool:
    return version >= FIRST_FLEXIBLE.get(api_key, NEVER_FLEXIBLE) and api_key != API_VERSIONS


def request_frame(api_key: int, version: int, correlation_id: int, client_id: str | None, body: bytes) -> bytes:
    """A whole request, length prefix included: what a client sends."""
    header = _REQUEST.pack(api_key, version, correlation_id, 0)[:-2] + nullable_string(client_id)
    if version >= FIRST_FLEXIBLE.get(api_key, NEVER_FLEXIBLE):
        header += NO_TAGS
    return _LENGTH.pack(len(header) + len(body)) + header + body


def parse_response_header(frame: memoryview | bytes | bytearray, api_key: int, version: int) -> tuple[int, int]:
    """Correlation id, and where the body starts; `frame` is without its length prefix."""
    try:
        (correlation_id,) = _CORRELATION.unpack_from(frame)
        return correlation_id, skip_tags(frame, 4) if has_flexible_reply(api_key, version) else 4
    except UNREADABLE as unreadable:
        raise MalformedError(f"a response header cannot be read: {unreadable}") from unreadable
