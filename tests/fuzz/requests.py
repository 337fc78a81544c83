"""Requests of every API and version, right ones and all the ways to spoil them."""

from __future__ import annotations

import io
import random
import struct
import time
from collections.abc import Callable, Iterator

from kio.index import load_request_schema
from kio.serial import entity_writer

from clarion.wire.apis import APIS, FETCH, PRODUCE, Api
from clarion.wire.bridge import encode
from clarion.wire.frames import request_frame
from clarion.wire.records import encode_batch
from tests.raw_client import build
from tests.traps.words import fetch_values, topic_data
from tests.wire.messages_at_random import random_message

VICTIM = "victim"  # the topic that attackers write to


def every_version() -> Iterator[tuple[Api, int]]:
    for api in APIS.values():
        for version in range(api.min_version, api.max_version + 1):
            yield api, version


def valid_body(api: Api, version: int, chance: random.Random) -> bytes:
    if api.key == PRODUCE:
        batch = bytes(encode_batch([(b"k", b"v" * 20, (("h", b"x"),), int(time.time() * 1000))]))
        values = {"transactional_id": None, "acks": -1, "timeout": 100, "topic_data": topic_data(VICTIM, batch)}
        return _kio_body(api, version, values)
    if api.key == FETCH:
        wanted = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 10_000}]
        return _kio_body(api, version, fetch_values(VICTIM, wanted, max_wait=10))
    return encode(random_message(api.request, api.key, version, "request", chance), api.key, version, "request")


def _kio_body(api: Api, version: int, values: dict) -> bytes:
    """Kafka's own idea of the request; a topic id is made up where a version has no name."""
    schema = load_request_schema(api.key, version)
    for topic in values.get("topic_data", values.get("topics", ())):
        topic["topic_id"] = __import__("uuid").UUID(int=7)
    out = io.BytesIO()
    entity_writer(schema)(out, build(schema, values))
    return out.getvalue()


def frame(api: Api, version: int, body: bytes) -> bytes:
    """With its length prefix."""
    return request_frame(api.key, version, 1, "fuzz", body)


def spoiled(body: bytes, chance: random.Random) -> bytes:
    return chance.choice(SPOILERS)(body, chance)


def _noise(body: bytes, chance: random.Random) -> bytes:
    return chance.randbytes(chance.choice((0, 1, 7, 40, 400, 5000)))


def _cut(body: bytes, chance: random.Random) -> bytes:
    return body[: chance.randrange(len(body) + 1)]


def _flip(body: bytes, chance: random.Random) -> bytes:
    out = bytearray(body or b"\0")
    for _ in range(chance.choice((1, 1, 2, 8))):
        out[chance.randrange(len(out))] ^= 1 << chance.randrange(8)
    return bytes(out)


def _huge(body: bytes, chance: random.Random) -> bytes:
    """A length or count somewhere becomes enormous or negative: int32, int16 or varint."""
    number = chance.choice(
        (
            struct.pack(">i", 2**31 - 1),
            struct.pack(">i", -(2**31)),
            struct.pack(">i", -2),
            struct.pack(">h", 2**15 - 1),
            struct.pack(">h", -2),
            b"\xff\xff\xff\xff\x0f",
            b"\xff\xff\xff\xff\x07",
            b"\xff" * 11,
        )
    )
    at = chance.randrange(len(body) + 1)
    return body[:at] + number + body[at + (len(number) if chance.random() < 0.5 else 0) :]


def _longer(body: bytes, chance: random.Random) -> bytes:
    return body + chance.randbytes(chance.choice((1, 3, 100)))


def _tagged(body: bytes, chance: random.Random) -> bytes:
    """The empty tagged fields at the end become many, huge, or repeated ones."""
    tags = chance.choice(
        (
            b"\x01\x05\xff\xff\xff\xff\x0f",
            b"\x02\x00\x01a\x00\x01b",
            b"\xff\xff\xff\xff\x07",
            b"\x7f" + b"\x63\x00" * 127,
            b"\x01\x00\x00",
            b"\x01\x01\x10" + bytes(16),
        )
    )
    return body[:-1] + tags


def _stuttering(body: bytes, chance: random.Random) -> bytes:
    a, b = sorted((chance.randrange(len(body) + 1), chance.randrange(len(body) + 1)))
    return body[:b] + body[a:b] * chance.choice((1, 10)) + body[b:]


SPOILERS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _noise,
    _cut,
    _flip,
    _flip,
    _huge,
    _huge,
    _longer,
    _tagged,
    _stuttering,
)
