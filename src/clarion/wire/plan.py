"""What a message of one version looks like: kio's dataclass metadata, read once into a plain tree.

kio 0.6.5 knows every field of every version, but its reader trusts lengths, so we use its schema and not its reader.
A `StructPlan` is the tree that `reader` and `writer` compile into functions. Types are brought down to their wire form:
durations, times and error codes are integers, a null UUID is the zero UUID.
"""

from __future__ import annotations

import sys
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from functools import cache
from importlib import import_module
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Final, Literal, get_args, get_origin
from uuid import UUID

from clarion.model.ids import NO_TOPIC_ID
from clarion.wire.apis import APIS

Direction = Literal["request", "response"]

STRUCT: Final = "struct"
FIXED: Final[dict[str, tuple[str, int]]] = {
    "int8": ("b", 1),
    "int16": ("h", 2),
    "int32": ("i", 4),
    "int64": ("q", 8),
    "uint8": ("B", 1),
    "uint16": ("H", 2),
    "uint32": ("I", 4),
    "uint64": ("Q", 8),
    "float64": ("d", 8),
    "bool": ("?", 1),
}
"""Kinds of one `struct` format character, with their size."""

_WIRE_FORM: Final = {
    "error_code": "int16",
    "timedelta_i32": "int32",
    "timedelta_i64": "int64",
    "datetime_i64": "int64",
    "records": "bytes",
}
_UUID_BYTES: Final = 16


@dataclass(frozen=True, slots=True, eq=False)
class FieldPlan:
    name: str
    kind: str
    """A key of FIXED, "string", "bytes", "uuid" or STRUCT; of the elements, if it is an array."""
    is_array: bool
    is_nullable: bool
    tag: int | None
    default: Any
    struct: StructPlan | None
    flexible: bool

    @property
    def is_fixed(self) -> bool:
        """One number that is always there, so that neighbours can share one `struct` call."""
        return self.kind in FIXED and not self.is_array and self.tag is None

    @property
    def element_bytes_min(self) -> int:
        if self.kind in FIXED:
            return FIXED[self.kind][1]
        if self.kind == "uuid":
            return _UUID_BYTES
        if self.struct is not None:
            return self.struct.bytes_min
        return self._length_bytes

    @property
    def bytes_min(self) -> int:
        if self.is_array:
            return 1 if self.flexible else 4
        if self.struct is not None and self.is_nullable:
            return 1
        return self.element_bytes_min

    @property
    def _length_bytes(self) -> int:
        if self.flexible:
            return 1
        return 2 if self.kind == "string" else 4


@dataclass(frozen=True, slots=True, eq=False)
class StructPlan:
    name: str
    flexible: bool
    fields: tuple[FieldPlan, ...]
    tagged: tuple[FieldPlan, ...]

    @property
    def bytes_min(self) -> int:
        return sum(field.bytes_min for field in self.fields) + (1 if self.flexible else 0)


@cache
def plan_of(api_key: int, version: int, direction: Direction) -> StructPlan:
    """The plan of a message. Imports kio's module for that version, so the first call takes a few milliseconds."""
    _import_kio_alone()
    module = import_module(f"kio.schema.{APIS[api_key].snake_name}.v{version}.{direction}")
    entity = getattr(module, APIS[api_key].name + direction.capitalize())
    return _plan_struct(entity)


@cache
def _import_kio_alone() -> None:
    """kio imports hypothesis where it is installed: a third of a second and 20 MB, for strategies that we never use."""
    if "hypothesis" in sys.modules:
        return
    sys.modules["hypothesis"] = None  # type: ignore[assignment]  # Python's way to say: not importable
    try:
        import_module("kio.static.primitive")
    finally:
        del sys.modules["hypothesis"]


@cache
def _plan_struct(entity: Any) -> StructPlan:
    planned = [_plan_field(field, entity.__flexible__) for field in fields(entity)]
    return StructPlan(
        name=entity.__name__,
        flexible=entity.__flexible__,
        fields=tuple(field for field in planned if field.tag is None),
        tagged=tuple(sorted((field for field in planned if field.tag is not None), key=_tag_of)),
    )


def _tag_of(field: FieldPlan) -> int:
    assert field.tag is not None
    return field.tag


def _plan_field(field: Field[Any], flexible: bool) -> FieldPlan:
    inner, is_nullable = strip_optional(field.type)
    is_array = get_origin(inner) is tuple
    if is_array:
        inner, _ = strip_optional(get_args(inner)[0])
    is_struct = is_dataclass(inner)
    struct = _plan_struct(inner) if is_struct else None
    kafka_type = field.metadata.get("kafka_type", STRUCT)
    kind = _WIRE_FORM.get(kafka_type, kafka_type)
    # A null UUID is the zero UUID and a null time is -1: their plain forms need no null.
    is_nullable = is_nullable and (is_array or kind in ("string", "bytes", STRUCT))
    return FieldPlan(
        name=field.name,
        kind=kind,
        is_array=is_array,
        is_nullable=is_nullable,
        tag=field.metadata.get("tag"),
        default=_default_of(field, kind, kafka_type, is_array, is_nullable, struct),
        struct=struct,
        flexible=flexible,
    )


def strip_optional(hint: Any) -> tuple[Any, bool]:
    """`X | None` → (X, True); anything else → (itself, False)."""
    if get_origin(hint) is UnionType and NoneType in get_args(hint):
        return next(arg for arg in get_args(hint) if arg is not NoneType), True
    return hint, False


def _default_of(
    field: Field[Any], kind: str, kafka_type: str, is_array: bool, is_nullable: bool, struct: StructPlan | None
) -> Any:
    if field.default is not MISSING:
        return _plain(field.default, kafka_type)
    if is_array:
        return ()
    if is_nullable:
        return None
    if struct is not None:
        return SimpleNamespace(**{inner.name: inner.default for inner in (*struct.fields, *struct.tagged)})
    return {"string": "", "bytes": b"", "uuid": NO_TOPIC_ID, "bool": False}.get(kind, 0)


def _plain(value: Any, kafka_type: str) -> Any:
    """kio's value in plain form."""
    if value is None:
        return {"uuid": NO_TOPIC_ID, "datetime_i64": -1}.get(kafka_type)
    if isinstance(value, timedelta):
        return round(value.total_seconds() * 1000)
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return SimpleNamespace(
            **{f.name: _plain(getattr(value, f.name), f.metadata.get("kafka_type", STRUCT)) for f in fields(value)}
        )
    if isinstance(value, UUID | tuple | bool):
        return value
    return _bare(value)


_PLAIN_TYPES: Final[tuple[Any, ...]] = (int, str, float, bytes)


def _bare(value: Any) -> Any:
    """kio's own subclasses of int and str, as what they are."""
    for plain in _PLAIN_TYPES:
        if isinstance(value, plain):
            return plain(value)
    raise TypeError(f"kio default of unknown type: {value!r}")
