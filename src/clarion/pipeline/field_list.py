"""A list of fields in Spark's DDL (`ts timestamp not null, tags array<string>`), looked through without Spark.

Spark itself has the last word, but it needs a JVM for it and half a minute to start one; what is plainly wrong is said
when a pipeline is defined. Only names of types are judged here, brackets, and names that stand twice: whatever else
Spark may know passes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
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
_NAME = re.compile(r"\s*(`(?:[^`]|``)+`|[\w-]+)\s*(?::\s*|\s+)(?=[A-Za-z_])")
_TYPE = re.compile(r"\s*([A-Za-z_]\w*)\s*")
_CLOSING: Final = {">": "<", ")": "("}


def why_no_fields(ddl: str) -> str | None:
    """What is wrong with it, in words; None if it may be right."""
    if not ddl.strip():
        return "it is empty"
    pieces = _pieces(ddl)
    if pieces is None:
        return "its brackets do not match"
    names = [found[1] for each in pieces if (found := _NAME.match(each))]
    if twice := next((each for each in names if names.count(each) > 1), None):
        return f"two fields are called {twice}"
    return _first(_why_no_field, pieces)


def names_in(ddl: str) -> list[str]:
    """What the fields are called, of a list with which nothing is wrong."""
    found = (_NAME.match(each) for each in _pieces(ddl) or ())
    return [each[1][1:-1].replace("``", "`") if each[1].startswith("`") else each[1] for each in found if each]


def _first(why: Callable[[str], str | None], pieces: Iterable[str]) -> str | None:
    return next(filter(None, map(why, pieces)), None)


def _why_no_field(piece: str) -> str | None:
    found = _NAME.match(piece)
    if found is None:
        return f"{piece.strip()!r} has no type; write NAME TYPE"
    return _why_no_type(piece[found.end() :])


def _why_no_type(text: str) -> str | None:
    if not text.strip():
        return "a type is missing"
    found = _TYPE.match(text)
    if found is None or (kind := found[1].lower()) not in _TYPES:
        name = text.strip() if found is None else found[1]
        near = get_close_matches(name.lower(), _TYPES, n=1)
        return f"there is no type {name}" + (f"; did you mean {near[0]}?" if near else "")
    inner, rest = _in_brackets(text[found.end() :])
    parts = _pieces(inner) or [] if inner.strip() else []
    if kind in ("array", "map") and len(parts) != (1 if kind == "array" else 2):
        return f"write {'array<TYPE>' if kind == 'array' else 'map<TYPE, TYPE>'}"
    return _first(_why_no_field if kind == "struct" else _why_no_type, parts) or _why_more(rest)


def _why_more(rest: str) -> str | None:
    """What may follow a type is for Spark to say; another type it is not."""
    found = _TYPE.match(rest)
    return f"{found[1]} follows a type" if found and found[1].lower() in _TYPES - {"null"} else None


def _in_brackets(text: str) -> tuple[str, str]:
    """What stands between the angle brackets at the beginning, if there are any, and what follows."""
    depth = 0
    for at, letter in enumerate(text if text.startswith("<") else ""):
        depth += (letter == "<") - (letter == ">")
        if not depth:
            return text[1:at], text[at + 1 :]
    return "", text


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
