"""A tiny blocking client that speaks Kafka's protocol word by word: any API, any version, in any order, right or wrong.

    with RawClient(bootstrap) as client:
        answer = client.ask("list_offsets", 7, replica_id=-1, topics=[{"name": "t", "partitions": [...]}])

Requests are plain keyword arguments and dictionaries, encoded with kio's writers, answers are kio's objects: nothing
here shares code with the broker. Fields that a version does not have are dropped, so that one story can be told in
several versions.
"""

import io
import socket
import struct
from dataclasses import MISSING, fields
from datetime import timedelta
from typing import Any, get_args, get_type_hints

from kio.index import load_entity_schema, load_request_schema, load_response_schema
from kio.schema.index import api_key_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

PATIENCE_S = 60  # a bound, not a measure
API_KEYS = {name: key for key, name in api_key_map.items()}


class RawClient:
    """One connection. `send` and `receive` may be used apart, to have several requests under way."""

    def __init__(self, bootstrap: str, *, patience_s: float = PATIENCE_S) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), patience_s)
        self._next_id = 1
        self._waiting: dict[int, tuple[int, int]] = {}

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, api: str, version: int, **values: Any) -> Any:
        sent = self.send(api, version, **values)
        correlation_id, answer = self.receive()
        assert correlation_id == sent, "the answer belongs to another request"
        return answer

    def send(self, api: str, version: int, **values: Any) -> int:
        key = API_KEYS[api]
        request = build(load_request_schema(key, version), values)
        body = io.BytesIO()
        entity_writer(type(request))(body, request)
        return self.send_body(key, version, body.getvalue(), flexible=request.__flexible__)

    def send_body(self, key: int, version: int, body: bytes, *, flexible: bool, client_id: str = "raw") -> int:
        """A request whose body is ready made; its answer is read in the same version."""
        correlation_id, self._next_id = self._next_id, self._next_id + 1
        self._waiting[correlation_id] = (key, version)
        head = struct.pack(">hhih", key, version, correlation_id, len(client_id)) + client_id.encode()
        self.send_frame(head + (b"\0" if flexible else b"") + body)
        return correlation_id

    def send_frame(self, frame: bytes) -> None:
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive(self) -> tuple[int, Any]:
        """The next answer, whatever it belongs to."""
        frame = self.receive_frame()
        (correlation_id,) = struct.unpack_from(">i", frame)
        key, version = self._waiting.pop(correlation_id)
        schema = load_response_schema(key, version)
        header = schema.__header_schema__
        _, at = entity_reader(header)(frame, 0)
        return correlation_id, decode(schema, frame[at:])

    def receive_frame(self) -> bytes:
        """One frame; b"" when the other side has closed the connection."""
        size = self._exactly(4)
        return self._exactly(*struct.unpack(">i", size)) if size else b""

    def _exactly(self, size: int) -> bytes:
        parts = []
        while size:
            try:
                part = self.socket.recv(size)
            except ConnectionResetError:
                part = b""
            if not part:
                return b""
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def decode(schema: type, body: bytes) -> Any:
    """The whole of `body` as one object; bytes left over are a mistake of whoever wrote it."""
    answer, size = entity_reader(schema)(body, 0)
    assert size == len(body), f"{len(body) - size} bytes too many behind {schema.__name__} v{schema.__version__}"
    return answer


def data_bytes(name: str, version: int, **values: Any) -> bytes:
    """A structure that travels inside another one's bytes, as a consumer's subscription does."""
    entity = build(load_entity_schema(name, version, EntityType.data), values)
    body = io.BytesIO()
    entity_writer(type(entity))(body, entity)
    return body.getvalue()


def build(schema: type, values: dict[str, Any]) -> Any:
    """kio's object of this version out of plain values."""
    types = get_type_hints(schema)
    known = {field.name: field for field in fields(schema)}
    return schema(
        **{name: _value(known[name], types[name], value) for name, value in values.items() if name in known},
        **_zeros(known, values),
    )


def _value(field: Any, wanted: Any, value: Any) -> Any:
    if field.metadata.get("kafka_type", "").startswith("timedelta"):
        return timedelta(milliseconds=value)
    if isinstance(value, dict):
        return build(_nested(wanted), value)
    if isinstance(value, (list, tuple)):
        return tuple(build(_nested(wanted), each) if isinstance(each, dict) else each for each in value)
    return value


def _nested(wanted: Any) -> type:
    """The class inside `X`, `X | None`, `tuple[X, ...]` or `tuple[X, ...] | None`."""
    if hasattr(wanted, "__api_key__") or hasattr(wanted, "__version__"):
        return wanted
    for inner in get_args(wanted):
        if inner not in (type(None), Ellipsis):
            return _nested(inner)
    raise TypeError(f"no message inside {wanted}")


def _zeros(known: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """kio has no default where Kafka's schema has none; zero stands in for booleans and isolation levels."""
    zeros = {"bool": False, "int8": 0}
    return {
        name: zeros[field.metadata["kafka_type"]]
        for name, field in known.items()
        if name not in given and field.default is MISSING and field.metadata.get("kafka_type") in zeros
    }
