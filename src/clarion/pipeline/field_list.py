"""A list of fields in Spark's DDL (`ts timestamp not null, tags array<string>`), looked through without Spark.

Spark itself has the last word, but it needs a JVM for it and half a minute to start one; what is plainly wrong is said
when a pipeline is defined. Only names of types are judged here, and brackets: whatever else Spark may know passes.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Final

_TYPES: Final = frozenset(
    {
        *("boolean", "tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long"),
        *("float", "real", "double", "decimal", "dec", "numeric"),
        *("date", "time", "timestamp", "timestamp_ntz", "timestamp_ltz", "interval"),
        *("string", "char", "character", "varchar", "binary", "void", "null"),
        *("variant", "object", "geometry", "geography", "array", "map", "struct"),
    }
)
_FIELD = re.compile(r"\s*(?:`(?:[^`]|``)+`|[\w-]+)\s*(?::\s*|\s+)([A-Za-z_]\w*)")
_CLOSING: Final = {">": "<", ")": "("}


def why_no_fields(ddl: str) -> str | None:
    """What is wrong with it, in words; None if it may be right."""
    if not ddl.strip():
        return "it is empty"
    pieces = _pieces(ddl)
    if pieces is None:
        return "its brackets do not match"
    return next(filter(None, map(_why_no_field, pieces)), None)


def _why_no_field(piece: str) -> str | None:
    found = _FIELD.match(piece)
    if found is None:
        return f"{piece.strip()!r} has no type; write NAME TYPE"
    kind = found[1].lower()
    if kind in _TYPES:
        return None
    near = get_close_matches(kind, _TYPES, n=1)
    return f"there is no type {found[1]}" + (f"; did you mean {near[0]}?" if near else "")


def _pieces(ddl: str) -> list[str] | None:
    """Cut at the commas that stand outside of brackets and quotes; None if brackets are left open."""
    pieces, depth, quote, start = [], [], "", 0
    for at, letter in enumerate(ddl):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "`'\"":
            quote = letter
        elif letter in "<(":
            depth.append(letter)
        elif letter in _CLOSING:
            if not depth or depth.pop() != _CLOSING[letter]:
                return None
        elif letter == "," and not depth:
            pieces.append(ddl[start:at])
            start = at + 1
    return None if depth or quote else [*pieces, ddl[start:]]
