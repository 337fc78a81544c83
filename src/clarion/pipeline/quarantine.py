"""Where bad records go, from the executor that found them: stdlib, pyarrow and our own client only.

The copy has the original's key and value, byte for byte, and says in its headers why it is here and where it was:
`clarion.reason`, `clarion.topic`, `clarion.partition`, `clarion.offset`, `clarion.timestamp` (milliseconds) and
`clarion.pipeline`. What is too large for the quarantine is cut off, and `clarion.truncated` says how many bytes key and
value had: a record that cannot be kept whole must not stop the pipeline, and its origin says where the whole one is.
A task that is tried again sends its bad records again; topic, partition and offset tell them apart.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from clarion.model.ids import TopicPartition
from clarion.pipeline.connector_options import connection_settings
from clarion.pipeline.kafka.client import Client
from clarion.pipeline.kafka.encode import Messages, messages
from clarion.pipeline.kafka.errors import RefusedRowError
from clarion.pipeline.kafka.headers import HEADERS_TYPE
from clarion.pipeline.kafka.producer import ProducerSettings
from clarion.pipeline.workers import kept_client, kept_producer

_REASON_LENGTH_MAX = 300  # a header, not a copy of the value
_KINDS = {list: "a list", str: "a text", bool: "a truth value", int: "a number", float: "a number", type(None): "null"}

# The most bytes of a key and a value together: what a topic takes by default, as the quarantine that a pipeline makes
# does with room for the headers; then less and less, for a quarantine that somebody made himself.
SIZES_MAX = (1_048_588, 524_288, 65_536, 4_096, 256, 0)

Copy = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes], ...]]


def keeper(
    connection: Mapping[str, str], topic: str, pipeline: str, types: Mapping[str, str], required: Sequence[str]
) -> Callable[[pa.Array], pa.Array]:
    """A vectorised function: sends the rows that are not null to the quarantine and keeps those that are."""
    settings, fields, needed = dict(connection), dict(types), list(required)

    def keep(bad: pa.Array) -> pa.Array:
        from clarion.pipeline import quarantine

        if bad.null_count < len(bad):
            rows = quarantine.rows_of(bad.drop_null())
            quarantine.send(settings, topic, [quarantine.copy_of(each, pipeline, fields, needed) for each in rows])
        return bad.is_null()

    return keep


def rows_of(bad: pa.StructArray) -> list[dict[str, Any]]:
    """The timestamp as milliseconds: Python has no word for those after the year 9999."""
    found = pa.RecordBatch.from_struct_array(bad)
    at = found.schema.get_field_index("timestamp")
    micros = found.column(at).cast(pa.timestamp("us", found.schema.field(at).type.tz)).view(pa.int64())
    rows: list[dict[str, Any]] = found.set_column(at, "timestamp", micros).to_pylist()
    for each in rows:
        each["timestamp"] = None if each["timestamp"] is None else each["timestamp"] // 1000
    return rows


def send(connection: Mapping[str, str], topic: str, copies: Sequence[Copy]) -> None:
    """Write the copies and wait until the broker has them: the bad rows must not be gone before they are kept."""
    client = kept_client(connection_settings(connection))
    count = len(client.topics([topic], may_create=True)[topic].partitions)
    for bytes_max in SIZES_MAX:
        try:
            _write(client, topic, count, [cut_to(each, bytes_max) for each in copies])
            return
        except RefusedRowError:
            if bytes_max == SIZES_MAX[-1]:
                raise


def cut_to(copy: Copy, bytes_max: int) -> Copy:
    """The copy with at most so many bytes in key and value; the key may have half of them."""
    key, value, headers = copy
    if len(key or b"") + len(value or b"") <= bytes_max:
        return copy
    short_key = None if key is None else key[: bytes_max // 2]
    short_value = None if value is None else value[: bytes_max - len(short_key or b"")]
    said = f"key {len(key or b'')}, value {len(value or b'')} bytes"
    return short_key, short_value, (*headers, ("clarion.truncated", said.encode()))


def _write(client: Client, topic: str, count: int, copies: Sequence[Copy]) -> None:
    places = np.array([int(_header(each, "clarion.partition")) % count for each in copies], np.int64)
    order = np.argsort(places, kind="stable")  # records of one partition stay in their order
    starts = np.flatnonzero(np.diff(places[order], prepend=-1))
    groups = [(TopicPartition(topic, int(places[order][start])), int(start)) for start in starts]
    with kept_producer(client.settings, ProducerSettings()) as producer:
        producer.write(_as_messages([copies[each] for each in order]), groups, order)


def copy_of(row: Mapping[str, Any], pipeline: str, types: Mapping[str, str], required: Sequence[str]) -> Copy:
    """The message for the quarantine of one bad row."""
    headers = {
        "clarion.reason": reason(row["value"], row["fields"], types, required),
        "clarion.topic": row["topic"],
        "clarion.partition": str(row["partition"]),
        "clarion.offset": str(row["offset"]),
        "clarion.timestamp": str(-1 if row["timestamp"] is None else row["timestamp"]),
        "clarion.pipeline": pipeline,
    }
    return row["key"], row["value"], tuple((name, text.encode()) for name, text in headers.items())


def reason(value: bytes | None, empty: Sequence[str], types: Mapping[str, str], required: Sequence[str]) -> str:
    """Why a value did not fit; `empty` are the fields that came out empty."""
    if value is None:
        return "no value"
    try:
        return _reason(value, empty, types, required)
    except RecursionError:  # a few thousand brackets are enough, and no record may stop the pipeline
        return "nested too deeply"


def _reason(value: bytes, empty: Sequence[str], types: Mapping[str, str], required: Sequence[str]) -> str:
    try:
        document = json.loads(value)
    except UnicodeDecodeError as error:
        return f"not UTF-8: {error.reason} at byte {error.start}"
    except ValueError as error:
        return _short(f"not JSON: {error}")
    if not isinstance(document, dict):
        return f"not a JSON object but {_KINDS[type(document)]}"
    for name in empty:
        if document.get(name) is not None:
            return _short(f"field {name}: {json.dumps(document[name])} is no {types.get(name, '')}")
    missing = [name for name in empty if name in required]
    return f"field {missing[0]} is missing" if missing else "does not fit the declared JSON"


def _as_messages(copies: Sequence[Copy]) -> Messages:
    keys, values, headers = zip(*copies, strict=True)
    entries = [[{"key": name, "value": text} for name, text in each] for each in headers]
    # Now, not the original's time: else the quarantine's retention might take it before anybody has seen it.
    moments = np.full(len(copies), time.time_ns() // 1_000_000, np.int64)
    return messages(
        pa.array(keys, pa.binary()), pa.array(values, pa.binary()), moments, pa.array(entries, HEADERS_TYPE)
    )


def _header(copy: Copy, name: str) -> bytes:
    return dict(copy[2])[name]


def _short(text: str) -> str:
    return text if len(text) <= _REASON_LENGTH_MAX else text[: _REASON_LENGTH_MAX - 1] + "…"
