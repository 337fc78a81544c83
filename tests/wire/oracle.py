"""kio as the second opinion for the hand-written codecs."""

from __future__ import annotations

import io
from importlib import import_module
from typing import Any

from kio.serial import entity_reader, entity_writer

from clarion.wire.current_leader import CurrentLeader


def schema(api: str, version: int, direction: str) -> Any:
    """kio's module, with the classes of that version."""
    return import_module(f"kio.schema.{api}.v{version}.{direction}")


def write(entity: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


def read(entity_type: type, body: bytes) -> Any:
    """All of it, to the last byte."""
    entity, size = entity_reader(entity_type)(body, 0)
    assert size == len(body)
    return entity


def pick(entity_type: type, **values: Any) -> Any:
    """An entity from those of the values that its version knows."""
    return entity_type(**{name: value for name, value in values.items() if name in entity_type.__dataclass_fields__})


def endpoints(schema_: Any, leaders: list[CurrentLeader]) -> tuple[Any, ...]:
    """Where the leaders are that a reply names, each once."""
    nodes = {one.node_id: one for one in leaders}
    return tuple(
        schema_.NodeEndpoint(node_id=one.node_id, host=one.host, port=one.port, rack=one.rack) for one in nodes.values()
    )
