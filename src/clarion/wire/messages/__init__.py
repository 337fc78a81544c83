"""Neutral forms of Kafka's messages: one module per subject, one class per message, whatever the version.

A class carries the union of the fields of every version we speak, under kio's names; a field that some version lacks
has a default. Values are plain: int (times in milliseconds), str, bytes, bool, UUID (all zero for null), tuple.
`wire.bridge` turns them into bytes of a version and back. Nothing here decides anything.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def message(cls: type[T]) -> type[T]:
    """A message class: fields by keyword, equal by content, and mypy lets nobody change one.

    `dataclass` would compile six methods for each, and a broker loads fifty before its first client comes: a tenth of
    its start. Only the constructor is worth that; an unfrozen one is also twice as fast.
    """
    made = dataclass(kw_only=True, slots=True, eq=False, repr=False)(cls)
    for name, method in (("__eq__", _is_equal), ("__hash__", _hash), ("__repr__", _text)):
        setattr(made, name, method)
    return made


def is_message(one: Any) -> bool:
    """A message class, or a message."""
    return is_dataclass(one) or hasattr(one, "_fields")


def fields_of(neutral: Any) -> dict[str, bool]:
    """The fields of a message class, and whether each has a default. A NamedTuple is one, too: for thousands of it."""
    if issubclass(neutral, tuple):
        return {name: name in neutral._field_defaults for name in neutral._fields}
    return {field.name: field.default is not MISSING for field in fields(neutral)}


def _values(one: Any) -> list[Any]:
    return [getattr(one, name) for name in one.__slots__]


def _is_equal(one: Any, other: object) -> bool:
    return type(other) is type(one) and _values(one) == _values(other)


def _hash(one: Any) -> int:
    return hash(tuple(_values(one)))


def _text(one: Any) -> str:
    fields = ", ".join(f"{name}={getattr(one, name)!r}" for name in one.__slots__)
    return f"{type(one).__qualname__}({fields})"
