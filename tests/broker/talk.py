"""Produce and Fetch as a client says them, in any version: kio writes the requests and reads the answers.

Partitions are named `("t", 0)`, or by the topic's id where the version has no names: `(topic_id, 0)`.
"""

import io
import itertools
import struct
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from clarion.wire.apis import APIS, FETCH, PRODUCE
from clarion.wire.frames import request_frame
from clarion.wire.records import decode_batch, encode_batch
from tests.raw_client import build, decode

Place = tuple[str | UUID, int]
NO_SESSION = (0, -1)
NEW_SESSION = (0, 0)
LARGE = 10_000_000


def now_ms() -> int:
    return int(time.time() * 1000)


def batch(*values: bytes, at: int | None = None, keys: Iterable[bytes | None] | None = None, **how: Any) -> bytes:
    """One batch with these values; `how` as in `encode_batch`."""
    named = itertools.repeat(None) if keys is None else keys
    records = [(key, value, (), now_ms() if at is None else at) for key, value in zip(named, values, strict=False)]
    return bytes(encode_batch(records, **how))


def produce_frame(
    batches: Mapping[Place, bytes | None] | Iterable[tuple[Place, bytes | None]],
    *,
    version: int = 9,
    acks: int = -1,
    timeout: int = 10_000,
    transactional_id: str | None = None,
    correlation: int = 1,
) -> bytes:
    key, first = ("topic_id", 13) if version >= 13 else ("name", 0)
    assert first <= version
    data = [
        {key: topic, "partition_data": [{"index": index, "records": records}]}
        for (topic, index), records in (batches.items() if isinstance(batches, Mapping) else batches)
    ]
    values = {"transactional_id": transactional_id, "acks": acks, "timeout": timeout, "topic_data": data}
    return _frame(PRODUCE, version, values, correlation)


def fetch_frame(
    offsets: Mapping[Place, int],
    *,
    version: int = 12,
    session: tuple[int, int] = NO_SESSION,
    forgotten: Iterable[Place] = (),
    max_wait: int = 0,
    min_bytes: int = 1,
    max_bytes: int = LARGE,
    partition_max_bytes: int = LARGE,
    leader_epoch: int = -1,
    last_fetched_epoch: int = -1,
    replica_id: int = -1,
    rack: str = "",
    correlation: int = 1,
) -> bytes:
    key = "topic_id" if version >= 13 else "topic"
    topics = [
        {
            key: topic,
            "partitions": [
                {
                    "partition": index,
                    "current_leader_epoch": leader_epoch,
                    "fetch_offset": offset,
                    "last_fetched_epoch": last_fetched_epoch,
                    "log_start_offset": -1,
                    "partition_max_bytes": partition_max_bytes,
                }
            ],
        }
        for (topic, index), offset in offsets.items()
    ]
    values = {
        "max_wait": max_wait,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": 0,
        "session_id": session[0],
        "session_epoch": session[1],
        "topics": topics,
        "forgotten_topics_data": [{key: topic, "partitions": [index]} for topic, index in forgotten],
        "rack_id": rack,
    }
    if replica_id >= 0:
        values["replica_state"] = {"replica_id": replica_id, "replica_epoch": 0}
        values["replica_id"] = replica_id
    elif version < 15:
        values["replica_id"] = replica_id
    return _frame(FETCH, version, values, correlation)


class Fetched(NamedTuple):
    """An answer to a fetch: its error, its session, and per partition what kio found."""

    error: int
    session_id: int
    partitions: dict[Place, Any]

    def records(self, topic: str | UUID = "t", index: int = 0) -> bytes:
        return bytes(self.partitions[topic, index].records or b"")

    def values(self, topic: str | UUID = "t", index: int = 0) -> list[bytes | None]:
        return [record.value for one in split(self.records(topic, index)) for record in decode_batch(one)]

    def errors(self) -> dict[Place, int]:
        return {place: int(one.error_code) for place, one in self.partitions.items()}


def read_produced(frame: bytes, version: int) -> dict[Place, Any]:
    answer = read_answer(PRODUCE, version, frame)
    return {
        (topic.topic_id if version >= 13 else topic.name, one.index): one
        for topic in answer.responses
        for one in topic.partition_responses
    }


def read_fetched(frame: bytes, version: int) -> Fetched:
    answer = read_answer(FETCH, version, frame)
    partitions = {
        (topic.topic_id if version >= 13 else topic.topic, one.partition_index): one
        for topic in answer.responses
        for one in topic.partitions
    }
    return Fetched(int(getattr(answer, "error_code", 0)), getattr(answer, "session_id", 0), partitions)


def split(records: bytes) -> list[bytes]:
    """The whole batches; a cut one at the end is left out, as clients do."""
    found, at = [], 0
    while at + 12 <= len(records):
        (length,) = struct.unpack_from(">i", records, at + 8)
        if at + 12 + length <= len(records):
            found.append(records[at : at + 12 + length])
        at += 12 + length
    return found


def _frame(key: int, version: int, values: dict[str, Any], correlation: int) -> bytes:
    request = build(load_request_schema(key, version), values)
    body = io.BytesIO()
    entity_writer(type(request))(body, request)
    assert request.__flexible__ == APIS[key].is_flexible(version)
    return request_frame(key, version, correlation, "tests", body.getvalue())


def read_answer(key: int, version: int, frame: bytes) -> Any:
    schema = load_response_schema(key, version)
    _, at = entity_reader(schema.__header_schema__)(frame, 0)
    return decode(schema, frame[at:])
