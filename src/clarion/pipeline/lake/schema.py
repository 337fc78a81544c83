"""The columns of a table against the columns of what is to be written: what fits, what is added, what is refused.

A new column is added, and empty in the rows before it. A narrower number fits a wider column. Everything else that
differs is refused by name: rows are never bent to fit. All columns may be empty, so that a table can grow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from clarion.pipeline.lake.errors import LakeError
from clarion.pipeline.lake.partitions import can_partition


@dataclass(frozen=True, slots=True)
class Fit:
    written: pa.Schema  # of the files: the incoming columns with the table's types
    added: tuple[
        pa.Field, ...
    ]  # columns the table must get first; of a struct with new fields, the struct as it will be


def fit(table: pa.Schema, incoming: pa.Schema, *, may_add: bool) -> Fit:
    written, added = [], []
    for field in incoming:
        known = _known(table, field.name)
        if known is None:
            added.append(field)
            written.append(field)
            continue
        kind, grown = _fitted(known.type, field.type, field.name)
        written.append(pa.field(field.name, kind))
        if grown:
            added.append(pa.field(field.name, grown))
    if added and not may_add:
        raise LakeError(f"the table has no column {', '.join(each.name for each in added)}, and mergeSchema is off")
    return Fit(pa.schema(written), tuple(added))


def check_partition_columns(schema: pa.Schema, partition_by: Sequence[str]) -> None:
    for name in partition_by:
        if name not in schema.names:
            raise LakeError(f"the table is partitioned by {name}, and the rows have no such column")
        if not can_partition(schema.field(name).type):
            raise LakeError(
                f"a table cannot be partitioned by {name}: {schema.field(name).type}; dates, whole numbers, "
                "strings and booleans can name a folder"
            )
    if partition_by and len(partition_by) == len(schema.names):
        raise LakeError("a table needs a column besides those it is partitioned by")


def nullable(schema: pa.Schema) -> pa.Schema:
    """The same columns, all of which may be empty, times in UTC microseconds."""
    return pa.schema([pa.field(each.name, _canonical(each.type)) for each in schema])


def _known(table: pa.Schema, name: str) -> pa.Field | None:
    if name in table.names:
        return table.field(name)
    twin = next((each for each in table.names if each.lower() == name.lower()), None)
    if twin is not None:
        raise LakeError(f"column {name}: the table calls it {twin}, and table columns do not differ by case alone")
    return None


def _fitted(known: pa.DataType, incoming: pa.DataType, name: str) -> tuple[pa.DataType, pa.DataType | None]:
    """The type to write, and the struct that the table must grow into if it has to."""
    if known.equals(incoming) or _widens(incoming, known):
        return known, None
    if pa.types.is_struct(known) and pa.types.is_struct(incoming):
        return _fitted_struct(known, incoming, name)
    raise LakeError(f"column {name} is {known} in the table and {incoming} in what is to be written")


def _fitted_struct(known: pa.StructType, incoming: pa.StructType, name: str) -> tuple[pa.DataType, pa.DataType | None]:
    fields = {each.name: each for each in known}
    written, grows = [], False
    for each in incoming:
        if each.name not in fields:
            fields[each.name] = each
            written.append(each)
            grows = True
            continue
        kind, grown = _fitted(fields[each.name].type, each.type, f"{name}.{each.name}")
        written.append(pa.field(each.name, kind))
        if grown:
            fields[each.name] = pa.field(each.name, grown)
            grows = True
    return pa.struct(written), pa.struct(list(fields.values())) if grows else None


def _widens(narrow: pa.DataType, wide: pa.DataType) -> bool:
    if pa.types.is_signed_integer(narrow) and pa.types.is_signed_integer(wide):
        return bool(narrow.bit_width < wide.bit_width)
    return bool(pa.types.is_float32(narrow) and pa.types.is_float64(wide))


def _canonical(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _canonical(each.type)) for each in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", _canonical(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_canonical(kind.key_type), _canonical(kind.item_type))
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    return kind
