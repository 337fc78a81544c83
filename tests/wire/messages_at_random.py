"""Random neutral messages of any API and version, for tests that compare codecs."""

from __future__ import annotations

import dataclasses
from random import Random
from typing import Any, get_type_hints
from uuid import UUID

from clarion.wire.messages import fields_of
from clarion.wire.plan import FieldPlan, StructPlan, plan_of
from clarion.wire.reader import neutral_struct

TEXTS = ("", "a", "orders", "café ☕", "x" * 130, "long-" * 60)
BLOBS = (b"", b"\x00", b"\xff\xfe", bytes(200))
# Inside what kio can hold as an error code, a datetime and a timedelta.
NUMBERS = {
    "int8": (-1, 0, 1, 127),
    "int16": (-1, 0, 1, 35, 100),
    "int32": (-1, 0, 1, 60_000, 2**31 - 1),
    "int64": (0, 1, 1_700_000_000_000, 2**40),
    "uint16": (0, 9092, 65535),
    "float64": (0.0, 1.5),
    "bool": (False, True),
}


FIRST_OWN_TAG = 10_000


def random_message(
    neutral: type[Any], api_key: int, version: int, direction: str, random: Random, *, with_own_fields: bool = True
) -> Any:
    """`with_own_fields`: with those that are not Kafka's."""
    plan = plan_of(api_key, version, direction)
    return _struct(plan if with_own_fields else _without_own(plan), neutral, random)


def _without_own(plan: StructPlan) -> StructPlan:
    def inside(field: FieldPlan) -> FieldPlan:
        return field if field.struct is None else dataclasses.replace(field, struct=_without_own(field.struct))

    tagged = tuple(inside(field) for field in plan.tagged if (field.tag or 0) < FIRST_OWN_TAG)
    return dataclasses.replace(plan, fields=tuple(map(inside, plan.fields)), tagged=tagged)


def _struct(plan: StructPlan, neutral: type[Any], random: Random) -> Any:
    hints = get_type_hints(neutral)
    known = fields_of(neutral)
    values = {
        field.name: _value(field, hints[field.name], random)
        for field in (*plan.fields, *plan.tagged)
        if field.name in known and not (field.tag is not None and random.random() < 0.3)
    }
    return neutral(**values)


def _value(field: FieldPlan, hint: Any, random: Random) -> Any:
    if field.is_nullable and field.tag is None and random.random() < 0.25:
        return None
    if field.is_array:
        return tuple(
            _element(field, hint, random)
            for _ in range(random.choice((0, 1, 2, 3, 3, 200 if field.struct is None else 4)))
        )
    return _element(field, hint, random)


def _element(field: FieldPlan, hint: Any, random: Random) -> Any:
    if field.struct is not None:
        return _struct(field.struct, neutral_struct(hint), random)
    if field.kind == "string":
        return random.choice(TEXTS)
    if field.kind == "bytes":
        return random.choice(BLOBS)
    if field.kind == "uuid":
        return UUID(int=random.choice((0, 1, random.getrandbits(128))))
    return random.choice(NUMBERS[field.kind])
