"""What a message of one version looks like: a tree, read from the tables of `wire.tables`.

    ListOffsetsRequest 1-11 flexible 6+
      replica_id int32
      isolation_level int8 2+
      topics [struct]
        name string
        …

A message has its versions and those that are flexible; a field its type (`[…]`: an array), then, where it is not
simply there in all of them, its versions, its `tag`, whether it may be `null` (and in which versions), and `=` its
default where that is not zero or empty. A `StructPlan` is what `reader` and `writer` compile into functions. Types are
those of the wire: durations, times and error codes are integers, a null UUID is the zero UUID.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import takewhile
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Final, Literal, get_args, get_origin

from clarion.model.ids import NO_TOPIC_ID
from clarion.wire.apis import APIS
from clarion.wire.own_fields import with_own_fields

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

_UUID_BYTES: Final = 16
_AREAS: Final = ("data", "groups", "shares", "admin")  # modules of `wire.tables`; the first serves every client


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
    flexible: bool
    fields: tuple[FieldPlan, ...]
    tagged: tuple[FieldPlan, ...]

    @property
    def bytes_min(self) -> int:
        return sum(field.bytes_min for field in self.fields) + (1 if self.flexible else 0)


@cache
def plan_of(api_key: int, version: int, direction: Direction) -> StructPlan:
    return read_plan(_table(APIS[api_key].name + direction.capitalize()), version)


def _table(message: str) -> str:
    for area in _AREAS:
        tables: dict[str, str] = import_module(f"clarion.wire.tables.{area}").TABLES
        if message in tables:
            return with_own_fields(message, tables[message])
    raise LookupError(f"no table of {message}")


def read_plan(table: str, version: int) -> StructPlan:
    """The plan of one version of the message that `table` describes."""
    head, *lines = table.strip().splitlines()
    versions, *flexible = head.split(" flexible ")
    assert _holds(versions, version), f"{version} is not among {versions}"
    return _struct(lines, version, is_flexible=bool(flexible) and _holds(flexible[0], version))


def _holds(versions: str, version: int) -> bool:
    """Whether `version` is within `3`, `3-5` or `3+`."""
    low, dash, high = versions.rstrip("+").partition("-")
    if versions.endswith("+"):
        return version >= int(low)
    return int(low) <= version <= int(high if dash else low)


def _struct(lines: list[str], version: int, is_flexible: bool) -> StructPlan:
    planned = [field for field in _fields(lines, version, is_flexible) if field is not None]
    return StructPlan(
        flexible=is_flexible,
        fields=tuple(field for field in planned if field.tag is None),
        tagged=tuple(sorted((field for field in planned if field.tag is not None), key=_tag_of)),
    )


def _tag_of(field: FieldPlan) -> int:
    assert field.tag is not None
    return field.tag


def _fields(lines: list[str], version: int, is_flexible: bool) -> Iterator[FieldPlan | None]:
    """One for every line of the first level; what stands deeper below it is its struct."""
    for number, line in enumerate(lines):
        if not line.startswith("  "):
            inner = [deeper[2:] for deeper in takewhile(lambda one: one.startswith("  "), lines[number + 1 :])]
            yield _field(line, inner, version, is_flexible)


def _field(line: str, inner: list[str], version: int, is_flexible: bool) -> FieldPlan | None:
    """None where this version does not have it."""
    declared, has_default, default = line.partition(" = ")
    name, kind, *words = declared.split()
    if words and words[0][0].isdigit() and not _holds(words.pop(0), version):
        return None
    tag = int(words[words.index("tag") + 1]) if "tag" in words else None
    is_nullable = "null" in words and all(_holds(one, version) for one in words[words.index("null") + 1 :])
    is_array = kind.startswith("[")
    kind = kind.strip("[]")
    struct = _struct(inner, version, is_flexible) if kind == STRUCT else None
    value = _value(kind, default) if has_default else () if is_array else _zero(kind, struct)
    return FieldPlan(name, kind, is_array, is_nullable, tag, value, struct, is_flexible)


def _value(kind: str, text: str) -> Any:
    if text == "null":
        return None
    if kind == "bool":
        return text == "true"
    return text if kind == "string" else int(text)


def _zero(kind: str, struct: StructPlan | None) -> Any:
    if struct is not None:
        return SimpleNamespace(**{field.name: field.default for field in (*struct.fields, *struct.tagged)})
    return {"string": "", "bytes": b"", "uuid": NO_TOPIC_ID, "bool": False}.get(kind, 0)


def strip_optional(hint: Any) -> tuple[Any, bool]:
    """`X | None` → (X, True); anything else → (itself, False)."""
    if get_origin(hint) is UnionType and NoneType in get_args(hint):
        return next(arg for arg in get_args(hint) if arg is not NoneType), True
    return hint, False
