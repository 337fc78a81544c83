"""Headers against kio, and against broken frames."""

from __future__ import annotations

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.request_header.v1.header import RequestHeader as HeaderV1
from kio.schema.request_header.v2.header import RequestHeader as HeaderV2

from clarion.model.errors import MalformedError
from clarion.wire.apis import API_VERSIONS, APIS, FETCH, PRODUCE
from clarion.wire.frames import (
    RequestHeader,
    parse_request_header,
    parse_response_header,
    reply_head,
    request_frame,
)
from tests.wire import oracle

EVERY_VERSION = [(api, version) for api in APIS.values() for version in range(api.min_version, api.max_version + 1)]


@pytest.mark.parametrize("client_id", [None, "", "café"])
@pytest.mark.parametrize("in_memory", [bytes, bytearray, memoryview])
def test_request_headers_of_every_version_are_read_as_kio_writes_them(client_id, in_memory):
    for api, version in EVERY_VERSION:
        schema = oracle.schema(api.snake_name, version, "request")
        header_class = getattr(schema, f"{api.name}Request").__header_schema__
        assert header_class is (HeaderV2 if api.is_flexible(version) else HeaderV1)
        header = header_class(
            request_api_key=api.key, request_api_version=version, correlation_id=-5, client_id=client_id
        )
        written = oracle.write(header)
        read = parse_request_header(in_memory(written + b"body"))
        assert read == RequestHeader(api.key, version, -5, client_id, len(written))
        frame = request_frame(api.key, version, -5, client_id, b"body")
        assert frame == pack(">i", len(written) + 4) + written + b"body"


def test_response_headers_of_every_version_are_what_kio_writes():
    for api, version in EVERY_VERSION:
        schema = oracle.schema(api.snake_name, version, "response")
        header_class = getattr(schema, f"{api.name}Response").__header_schema__
        written = oracle.write(header_class(correlation_id=7))
        assert reply_head(api.key, version, 7, 100) == pack(">i", len(written) + 100) + written
        assert parse_response_header(written + b"body", api.key, version) == (7, len(written))


def test_the_response_header_of_api_versions_is_never_flexible():
    assert reply_head(API_VERSIONS, 3, 1, 0) == reply_head(API_VERSIONS, 99, 1, 0) == pack(">ii", 4, 1)


def test_tagged_fields_of_a_request_header_are_skipped():
    frame = pack(">hhih", PRODUCE, 9, 1, -1) + b"\x01\x05\x02ab" + b"body"
    assert frame[parse_request_header(frame).body_at :] == b"body"


def test_an_unknown_api_has_a_plain_header():
    assert parse_request_header(pack(">hhih2s", 999, 3, 1, 2, b"me")) == RequestHeader(999, 3, 1, "me", 12)
    assert parse_request_header(pack(">hhih", -1, -1, 1, -1)) == RequestHeader(-1, -1, 1, None, 10)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        pack(">hhi", FETCH, 4, 1),
        pack(">hhih", FETCH, 4, 1, 5) + b"four",
        pack(">hhih", FETCH, 4, 1, -2),
        pack(">hhih", FETCH, 12, 1, -1),
        pack(">hhih", FETCH, 12, 1, -1) + b"\x01\x00\x05ab",
        pack(">hhih", FETCH, 12, 1, -1) + b"\xff\xff\xff\xff\x0f",
    ],
)
def test_a_broken_header_is_malformed(frame):
    with pytest.raises(MalformedError):
        parse_request_header(frame)


@given(st.binary(max_size=40))
def test_random_bytes_are_a_header_or_malformed_and_nothing_else(frame):
    try:
        assert parse_request_header(frame).body_at <= len(frame)
    except MalformedError:
        pass
