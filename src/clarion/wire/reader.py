"""Compiles a plan into a function that reads a neutral message.

One closure per field; neighbouring numbers share one `struct` call. Fields that the neutral class lacks are read and
dropped, fields that the version lacks keep the class's default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import groupby
from struct import Struct, unpack_from
from typing import Any, Final, get_args, get_origin, get_type_hints

from clarion.model.errors import MalformedError
from clarion.wire.cursor import FieldReader
from clarion.wire.fields import Body
from clarion.wire.messages import fields_of
from clarion.wire.plan import FIXED, FieldPlan, StructPlan, strip_optional

Read = Callable[[FieldReader], Any]
ReadInto = Callable[[FieldReader, list[Any]], None]


@cache
def compile_reader(plan: StructPlan, neutral: Any) -> Read:
    """`neutral` is a message class; None reads over the struct and returns None."""
    hints = get_type_hints(neutral) if neutral is not None else {}
    _check_fits(plan, neutral, hints)
    steps = tuple(_steps(plan, hints))
    names = tuple(field.name for field in plan.fields)
    unwanted = tuple(name for name in names if name not in hints)
    read_tags = _tags_reader(plan, hints)
    is_flexible = plan.flexible
    build: Callable[..., Any] = neutral if neutral is not None else _nothing

    def read_struct(cursor: FieldReader) -> Any:
        values: list[Any] = []
        for step in steps:
            step(cursor, values)
        named = dict(zip(names, values))  # noqa: B905  # as long as each other by construction, and this is the hot line
        if unwanted:
            for name in unwanted:
                del named[name]
        if is_flexible:
            if cursor.data[cursor.at] == 0:
                cursor.at += 1
            else:
                read_tags(cursor, named)
        return build(**named)

    return read_struct


def neutral_struct(hint: Any) -> Any:
    """The class inside `Topic`, `Topic | None`, `tuple[Topic, ...]` or `tuple[Topic, ...] | None`."""
    inner, _ = strip_optional(hint)
    if get_origin(inner) is tuple:
        inner = get_args(inner)[0]
    return inner


def _nothing(**_: Any) -> None:
    return None


def _check_fits(plan: StructPlan, neutral: type[Any] | None, hints: dict[str, Any]) -> None:
    """Our own mistakes in a neutral class are found when it is first used, by the tests."""
    if neutral is None:
        return
    planned = {field.name: field for field in (*plan.fields, *plan.tagged)}
    for name, has_default in fields_of(neutral).items():
        is_missing = name not in planned
        assert has_default or not is_missing, f"{neutral.__name__}.{name} needs a default"
        may_be_null = not is_missing and planned[name].is_nullable
        assert not may_be_null or strip_optional(hints[name])[1], f"{neutral.__name__}.{name} may be null"


def _steps(plan: StructPlan, hints: dict[str, Any]) -> Iterator[ReadInto]:
    for is_fixed, run in groupby(plan.fields, key=lambda field: field.is_fixed):
        if is_fixed:
            yield _numbers_step(list(run))
        else:
            yield from (_value_step(_field_reader(field, hints)) for field in run)


def _numbers_step(run: list[FieldPlan]) -> ReadInto:
    numbers = Struct(">" + "".join(FIXED[field.kind][0] for field in run))
    unpack, size = numbers.unpack_from, numbers.size

    def read_numbers(cursor: FieldReader, values: list[Any]) -> None:
        values += unpack(cursor.data, cursor.at)
        cursor.at += size

    return read_numbers


def _value_step(read: Read) -> ReadInto:
    def read_value(cursor: FieldReader, values: list[Any]) -> None:
        values.append(read(cursor))

    return read_value


def _tags_reader(plan: StructPlan, hints: dict[str, Any]) -> Callable[[FieldReader, dict[str, Any]], None]:
    known = {field.tag: (field.name, _field_reader(field, hints)) for field in plan.tagged if field.name in hints}
    if not known:
        return _skip_tags

    def read_tags(cursor: FieldReader, named: dict[str, Any]) -> None:
        count = cursor.uvarint()
        cursor.expect_elements(count, _TAGGED_FIELD_BYTES_MIN)
        for _ in range(count):
            tag, length = cursor.uvarint(), cursor.uvarint()
            if tag in known:
                name, read = known[tag]
                named[name] = _read_exactly(cursor, length, read)
            else:
                cursor.take(length)

    return read_tags


def _skip_tags(cursor: FieldReader, _: dict[str, Any]) -> None:
    count = cursor.uvarint()
    cursor.expect_elements(count, _TAGGED_FIELD_BYTES_MIN)
    for _each in range(count):
        cursor.uvarint()
        cursor.take(cursor.uvarint())


_TAGGED_FIELD_BYTES_MIN: Final = 2  # tag and length


def _read_exactly(cursor: FieldReader, length: int, read: Read) -> Any:
    end = cursor.at + length
    value = read(cursor)
    if cursor.at != end:
        raise MalformedError(f"a tagged field of {length} bytes does not end where it says")
    return value


def _field_reader(field: FieldPlan, hints: dict[str, Any]) -> Read:
    if field.is_array:
        return _array_reader(field, hints)
    if field.struct is not None and field.is_nullable:
        return _nullable_struct_reader(_element_reader(field, hints))
    return _element_reader(field, hints)


def _element_reader(field: FieldPlan, hints: dict[str, Any]) -> Read:
    if field.struct is not None:
        return compile_reader(field.struct, neutral_struct(hints.get(field.name)))
    if field.kind in FIXED:
        return _number_reader(field.kind)
    if field.kind == "uuid":
        return FieldReader.uuid
    is_nullable = field.is_nullable and not field.is_array
    return _text_reader(field, is_nullable) if field.kind == "string" else _bytes_reader(field, is_nullable)


def _nullable_struct_reader(read_struct: Read) -> Read:
    """KIP-893: one byte before the struct, negative for null."""

    def read_nullable_struct(cursor: FieldReader) -> Any:
        return None if cursor.take(1)[0] >= 0x80 else read_struct(cursor)

    return read_nullable_struct


def _number_reader(kind: str) -> Read:
    number = Struct(">" + FIXED[kind][0])

    def read_number(cursor: FieldReader) -> Any:
        (value,) = number.unpack_from(cursor.data, cursor.at)
        cursor.at += number.size
        return value

    return read_number


def _text_reader(field: FieldPlan, is_nullable: bool) -> Read:
    def read_text(cursor: FieldReader) -> str | None:
        length = cursor.string_length()
        if length < 0:
            _check_null(field, is_nullable)
            return None
        return str(cursor.take(length), "utf-8")

    return read_text


def _bytes_reader(field: FieldPlan, is_nullable: bool) -> Read:
    def read_bytes(cursor: FieldReader) -> bytes | None:
        length = cursor.length()
        if length < 0:
            _check_null(field, is_nullable)
            return None
        return bytes(cursor.take(length))

    return read_bytes


def _check_null(field: FieldPlan, is_nullable: bool) -> None:
    if not is_nullable:
        raise MalformedError(f"{field.name} is null")


def _array_reader(field: FieldPlan, hints: dict[str, Any]) -> Read:
    read_elements = _elements_reader(field, hints)
    bytes_min = field.element_bytes_min
    assert bytes_min > 0, f"elements of {field.name} take no bytes, so their count cannot be bounded"

    def read_array(cursor: FieldReader) -> tuple[Any, ...] | None:
        count = cursor.length()
        if count < 0:
            _check_null(field, field.is_nullable)
            return None
        cursor.expect_elements(count, bytes_min)
        return read_elements(cursor, count)

    return read_array


ReadElements = Callable[[FieldReader, int], tuple[Any, ...]]


def _elements_reader(field: FieldPlan, hints: dict[str, Any]) -> ReadElements:
    if field.kind in FIXED:
        return _numbers_reader(field.kind)
    each = _each(_element_reader(field, hints))
    read_alike = getattr(neutral_struct(hints.get(field.name)), "read_alike", None)
    return each if read_alike is None else _alike(read_alike, each)


def _numbers_reader(kind: str) -> ReadElements:
    code, size = FIXED[kind]

    def read_numbers(cursor: FieldReader, count: int) -> tuple[Any, ...]:
        values = unpack_from(f">{count}{code}", cursor.data, cursor.at)
        cursor.at += count * size
        return values

    return read_numbers


def _alike(read_alike: Callable[[Body, int, int], tuple[list[Any], int] | None], each: ReadElements) -> ReadElements:
    """A class of which messages bring thousands knows how to read them in one go, where all have the usual form: each
    with one element in an array of its own."""

    def read_elements(cursor: FieldReader, count: int) -> tuple[Any, ...]:
        found = read_alike(cursor.data, cursor.at, count)
        if found is None:
            return each(cursor, count)
        cursor.expect_elements(count, 0)  # those inside
        elements, cursor.at = found
        return tuple(elements)

    return read_elements


def _each(read: Read) -> ReadElements:
    def read_each(cursor: FieldReader, count: int) -> tuple[Any, ...]:
        return tuple([read(cursor) for _ in range(count)])

    return read_each
