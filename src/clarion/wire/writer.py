"""Compiles a plan into a function that writes a neutral message.

Fields that the version lacks are left out; fields that the neutral class lacks are written as their default. A value
that cannot be written (null where the version knows none, a number that is too big) is our own mistake: ValueError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import groupby
from operator import attrgetter
from struct import Struct, pack
from typing import Any, Final, get_type_hints

from clarion.wire.cursor import write_uvarint
from clarion.wire.left_out import LeftOut
from clarion.wire.plan import FIXED, FieldPlan, StructPlan
from clarion.wire.reader import neutral_struct

SHARED_ELEMENTS_MIN: Final = 8  # of an array: to remember a shorter one costs as much as to write it again


class Out(bytearray):
    """What is written, where the long arrays of this one message stand in it, and where something was left out."""

    __slots__ = ("arrays", "left_out")

    def __init__(self) -> None:
        super().__init__()
        self.arrays: dict[tuple[int, Write], tuple[Any, int, int]] = {}
        self.left_out: list[tuple[int, LeftOut]] = []


Write = Callable[[Out, Any], None]


@cache
def compile_writer(plan: StructPlan, neutral: Any) -> Write:
    """`neutral` is a message class; None takes objects that have every field, as the plan's defaults do."""
    hints = get_type_hints(neutral) if neutral is not None else None
    steps = tuple(_steps(plan, hints))
    write_tags = _tags_writer(plan, hints)

    def write_struct(out: Out, value: Any) -> None:
        for step in steps:
            step(out, value)
        write_tags(out, value)

    return write_struct


Hints = dict[str, Any] | None


def _has(hints: Hints, field: FieldPlan) -> bool:
    return hints is None or field.name in hints


def _steps(plan: StructPlan, hints: Hints) -> Iterator[Write]:
    """Each step takes the whole struct and writes one field, or a run of numbers."""
    for (is_numbers, has_field), run in groupby(plan.fields, key=lambda field: (field.is_fixed, _has(hints, field))):
        if not has_field:
            yield _constant_step(list(run))
        elif is_numbers:
            yield _numbers_step(list(run))
        else:
            yield from (_value_step(field.name, _field_writer(field, hints)) for field in run)


def _constant_step(run: list[FieldPlan]) -> Write:
    constant = Out()
    for field in run:
        _field_writer(field, None)(constant, field.default)
    written = bytes(constant)

    def write_constant(out: Out, _: Any) -> None:
        out += written

    return write_constant


def _numbers_step(run: list[FieldPlan]) -> Write:
    numbers = Struct(">" + "".join(FIXED[field.kind][0] for field in run))
    get = attrgetter(*(field.name for field in run))

    def write_number(out: Out, value: Any) -> None:
        out += numbers.pack(get(value))

    def write_numbers(out: Out, value: Any) -> None:
        out += numbers.pack(*get(value))

    return write_number if len(run) == 1 else write_numbers


def _value_step(name: str, write: Write) -> Write:
    get = attrgetter(name)

    def write_value(out: Out, value: Any) -> None:
        write(out, get(value))

    return write_value


def _tags_writer(plan: StructPlan, hints: Hints) -> Write:
    if not plan.flexible:
        return _no_tags
    tagged = [_tagged_writer(field, hints) for field in plan.tagged if _has(hints, field)]
    if not tagged:
        return _empty_tags

    def write_tags(out: Out, value: Any) -> None:
        written = [part for write in tagged if (part := write(value))]
        write_uvarint(out, len(written))
        for part in written:
            out += part

    return write_tags


def _no_tags(_out: Out, _value: Any) -> None:
    return None


def _empty_tags(out: Out, _value: Any) -> None:
    out.append(0)


def _tagged_writer(field: FieldPlan, hints: Hints) -> Callable[[Any], bytes]:
    """Gives tag, length and value; nothing for the default, which is not sent."""
    assert field.tag is not None
    tag, write, get = field.tag, _field_writer(field, hints), attrgetter(field.name)
    unsent = Out()
    _field_writer(field, None)(unsent, field.default)

    def write_tagged(value: Any) -> bytes:
        content = Out()
        write(content, get(value))
        if content == unsent:
            return b""
        part = Out()
        write_uvarint(part, tag)
        write_uvarint(part, len(content))
        return bytes(part + content)

    return write_tagged


def _field_writer(field: FieldPlan, hints: Hints) -> Write:
    if field.is_array:
        return _array_writer(field, hints)
    if field.struct is not None and field.is_nullable:
        return _nullable_struct_writer(_element_writer(field, hints))
    return _element_writer(field, hints)


def _element_writer(field: FieldPlan, hints: Hints) -> Write:
    if field.struct is not None:
        return compile_writer(field.struct, neutral_struct(hints[field.name]) if hints is not None else None)
    if field.kind in FIXED:
        return _number_writer(field.kind)
    if field.kind == "uuid":
        return _write_uuid
    return _blob_writer(field)


def _nullable_struct_writer(write_struct: Write) -> Write:
    def write_nullable_struct(out: Out, value: Any) -> None:
        if value is None:
            out.append(0xFF)
        else:
            out.append(1)
            write_struct(out, value)

    return write_nullable_struct


def _number_writer(kind: str) -> Write:
    number = Struct(">" + FIXED[kind][0])

    def write_number(out: Out, value: Any) -> None:
        out += number.pack(value)

    return write_number


def _write_uuid(out: Out, value: Any) -> None:
    out += value.bytes


def _blob_writer(field: FieldPlan) -> Write:
    """Strings and bytes: the length, then the content."""
    write_length = _length_writer(field, "h" if field.kind == "string" else "i")
    is_nullable = field.is_nullable and not field.is_array

    def write_blob(out: Out, value: Any) -> None:
        if value is None:
            _check_null(field, is_nullable)
            write_length(out, -1)
        elif type(value) is LeftOut:
            write_length(out, value.length)
            out.left_out.append((len(out), value))
        else:
            content = value.encode() if isinstance(value, str) else value
            write_length(out, len(content))
            out += content

    return write_blob


def _length_writer(field: FieldPlan, code: str) -> Callable[[Out, int], None]:
    if field.flexible:
        return lambda out, length: write_uvarint(out, length + 1)
    length_struct = Struct(">" + code)

    def write_length(out: Out, length: int) -> None:
        out += length_struct.pack(length)

    return write_length


def _check_null(field: FieldPlan, is_nullable: bool) -> None:
    if not is_nullable:
        raise ValueError(f"{field.name} cannot be null in this version")


def _array_writer(field: FieldPlan, hints: Hints) -> Write:
    write_length = _length_writer(field, "i")
    write_elements = (
        _numbers_writer(field.kind) if field.kind in FIXED else _each_once(_each(_element_writer(field, hints)))
    )

    def write_array(out: Out, values: Any) -> None:
        if values is None:
            _check_null(field, field.is_nullable)
            write_length(out, -1)
        else:
            write_length(out, len(values))
            write_elements(out, values)

    return write_array


def _numbers_writer(kind: str) -> Write:
    code = FIXED[kind][0]

    def write_numbers(out: Out, values: Any) -> None:
        out += pack(f">{len(values)}{code}", *values)

    return write_numbers


def _each_once(write: Write) -> Write:
    """An array that one message holds many times, the very same object, is written once and copied after that.

    Topics without settings of their own share all of them: DescribeConfigs of thousands is made up of one array.
    """

    def write_once(out: Out, values: Any) -> None:
        if len(values) < SHARED_ELEMENTS_MIN:
            write(out, values)
            return
        known = out.arrays.get((id(values), write))
        if known is not None:
            out += out[known[1] : known[2]]
            return
        begins = len(out)
        write(out, values)
        if not out.left_out:  # what is in no place cannot be copied from there
            out.arrays[id(values), write] = values, begins, len(out)  # kept alive: no other array gets its id meanwhile

    return write_once


def _each(write: Write) -> Write:
    def write_each(out: Out, values: Any) -> None:
        for value in values:
            write(out, value)

    return write_each
