"""What a setting is: a name, a kind that reads and writes its text, a check, and the words that explain it.

`setting(...)` declares one as a field of a frozen dataclass, so that name, type, default and documentation stand in
one place; `settings_of(cls)` gives the table back.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from enum import IntEnum
from typing import Final, NamedTuple, TypeVar

from clarion.model.errors import ErrorCode, KafkaError

Value = bool | int | float | str | tuple[str, ...]
Check = Callable[[Value], str | None]  # None, or the rest of "Invalid value … for configuration …: …"
T = TypeVar("T", bool, int, float, str, tuple[str, ...])

LONG_MAX: Final = 2**63 - 1


class Kind(IntEnum):
    """Kafka's config types, with the codes that DescribeConfigs sends."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


def _anything(value: Value) -> None:
    """The check of what its kind alone decides."""


class Setting(NamedTuple):
    """A tuple, for there are over a hundred and a broker that starts makes all of them."""

    name: str  # Kafka's name, with dots
    kind: Kind
    default: Value
    doc: str
    field_name: str = ""  # the attribute of the settings class
    check: Check = _anything
    synonyms: tuple[str, ...] = ()  # the broker's names for the same thing, the strongest first
    only: Value | None = None  # the one value that can be honoured, where there is only one
    why_only: str = ""
    is_dynamic: bool = False  # whether a broker's own setting can change while it runs
    is_sensitive: bool = False  # whether DescribeConfigs keeps its value to itself
    in_seconds: bool = False  # whether the field counts in seconds, as the event loop does, what the setting has in ms
    old_names: tuple[str, ...] = ()  # taken with a warning

    def read(self, text: str | None) -> Value:
        """The value that a text stands for, or INVALID_CONFIG with the reason."""
        if text is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {self.name}")
        value = read_value(self.name, self.kind, text)
        if self.only is not None and value != self.only:
            raise refused(self.name, text, f"{self.why_only}; only {write_value(self.only)!r} is possible")
        if complaint := self.check(value):
            raise refused(self.name, "[hidden]" if self.is_sensitive else text, complaint)
        return value

    def in_field(self, value: Value) -> Value:
        """What the field holds for a value of this setting."""
        return float(value) / 1000 if self.in_seconds and isinstance(value, int) else value

    def of_field(self, held: Value) -> Value:
        """The value of this setting, from what the field holds."""
        return round(held * 1000) if self.in_seconds and isinstance(held, int | float) else held


def setting(
    name: str,
    default: T,
    kind: Kind,
    doc: str,
    *,
    check: Check = _anything,
    synonyms: tuple[str, ...] = (),
    why_only_default: str = "",
    is_dynamic: bool = False,
    is_sensitive: bool = False,
    old_names: tuple[str, ...] = (),
) -> T:
    """Declare a field. With `why_only_default`, any other value is refused for that reason."""
    declared = Setting(
        name=name,
        kind=kind,
        default=default,
        doc=doc,
        check=check,
        synonyms=synonyms,
        only=default if why_only_default else None,
        why_only=why_only_default,
        is_dynamic=is_dynamic,
        is_sensitive=is_sensitive,
        old_names=old_names,
    )
    return field(default=default, metadata={_KEY: declared})


def setting_in_seconds(
    name: str, default: float, doc: str, *, least_ms: int, is_dynamic: bool = False, old_names: tuple[str, ...] = ()
) -> float:
    """Declare a field in seconds of a setting that is in milliseconds."""
    declared = Setting(
        name=name,
        kind=Kind.LONG,
        default=round(default * 1000),
        doc=doc,
        check=at_least(least_ms),
        is_dynamic=is_dynamic,
        in_seconds=True,
        old_names=old_names,
    )
    return field(default=default, metadata={_KEY: declared})


def table(*declared: Setting) -> Mapping[str, Setting]:
    """Settings that are no fields of a class, by name, in alphabetical order."""
    return {one.name: one for one in sorted(declared, key=lambda one: one.name)}


def entry(
    name: str, default: Value, kind: Kind, doc: str, *, check: Check = _anything, synonyms: tuple[str, ...] = ()
) -> Setting:
    """One row of such a table."""
    field_name = name.replace(".", "_")
    return Setting(
        name=name, field_name=field_name, kind=kind, default=default, doc=doc, check=check, synonyms=synonyms
    )


_KEY: Final = "clarion.setting"


def settings_of(cls: type) -> Mapping[str, Setting]:
    """The table of a settings class, by Kafka's names, in alphabetical order as Kafka lists them."""
    declared = [(found.metadata[_KEY], found.name) for found in fields(cls) if _KEY in found.metadata]
    named = [one._replace(field_name=field_name) for one, field_name in declared]
    return {one.name: one for one in sorted(named, key=lambda one: one.name)}


def refused(name: str, text: str, reason: str) -> KafkaError:
    """In Kafka's words, here and below: tools and tests of client libraries look for them."""
    return KafkaError(ErrorCode.INVALID_CONFIG, f"Invalid value {text} for configuration {name}: {reason}")


def nearest(name: str, known: Mapping[str, object]) -> str:
    """For whoever has mistyped a name; the rest of the sentence that refuses it."""
    from difflib import get_close_matches

    close = get_close_matches(name[:100], known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


# ------------------------------------------------------------------------------------------------ text and value

_INT_MAX: Final = 2**31 - 1
_TEXT_MAX: Final = 32_767  # characters; no sane value comes near it, and int() of endless digits is slow


def read_value(name: str, kind: Kind, text: str) -> Value:
    if len(text) > _TEXT_MAX:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name}: a value has at most {_TEXT_MAX} characters")
    match kind:
        case Kind.BOOLEAN:
            return _read_boolean(name, text)
        case Kind.INT:
            return _read_whole(name, text, _INT_MAX)
        case Kind.LONG:
            return _read_whole(name, text, LONG_MAX)
        case Kind.DOUBLE:
            return _read_double(name, text)
        case Kind.LIST:
            return read_list(text)
        case Kind.STRING:
            return text.strip()


def write_value(value: Value) -> str:
    """As Kafka writes it in DescribeConfigs."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, tuple) else str(value)


def read_list(text: str) -> tuple[str, ...]:
    """Parts between commas, each once, in the order given; an empty text is an empty list."""
    parts = (part.strip() for part in text.split(","))
    return tuple(dict.fromkeys(part for part in parts if part))


def _read_boolean(name: str, text: str) -> bool:
    match text.strip().lower():
        case "true":
            return True
        case "false":
            return False
    raise refused(name, text, "Expected value to be either true or false")


def _read_whole(name: str, text: str, most: int) -> int:
    stripped = text.strip()
    complaint = f"Not a number of type {'INT' if most == _INT_MAX else 'LONG'}"
    if len(stripped) > 20 or not stripped.removeprefix("-").isdecimal() or not stripped.isascii():
        raise refused(name, text[:40], complaint)
    value = int(stripped)
    if not -most - 1 <= value <= most:
        raise refused(name, text, complaint)
    return value


def _read_double(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise refused(name, text[:40], "Not a number of type DOUBLE") from None
    if not math.isfinite(value):
        raise refused(name, text, "Not a number of type DOUBLE")
    return value


# ------------------------------------------------------------------------------------------------ checks


class Rule:
    """A check that can say in a few words, for the documentation, what it lets pass."""

    __slots__ = ("complaint", "words")

    def __init__(self, words: str, complaint: Check) -> None:
        self.words = words
        self.complaint = complaint

    def __call__(self, value: Value) -> str | None:
        return self.complaint(value)


def at_least(least: int) -> Rule:
    def complaint(value: Value) -> str | None:
        return None if isinstance(value, int) and value >= least else f"Value must be at least {least}"

    return Rule(f"from {least:,}", complaint)


def between(least: float, most: float) -> Rule:
    def complaint(value: Value) -> str | None:
        assert isinstance(value, int | float)
        if value < least:
            return f"Value must be at least {least:g}"
        return f"Value must be no more than {most:g}" if value > most else None

    return Rule(f"from {least:,} to {most:,}", complaint)


def one_of(*choices: str) -> Rule:
    words = " or ".join(f"`{choice}`" for choice in choices)
    return Rule(words, lambda value: None if value in choices else f"String must be one of: {', '.join(choices)}")


def some_of(*choices: str) -> Rule:
    def complaint(value: Value) -> str | None:
        assert isinstance(value, tuple)
        is_known = all(part in choices for part in value)
        return None if is_known else f"String must be one of: {', '.join(choices)}"

    return Rule(f"any of {', '.join(f'`{choice}`' for choice in choices)}", complaint)


def some_replicas() -> Rule:
    """Kafka's lists of throttled replicas."""

    def complaint(value: Value) -> str | None:
        assert isinstance(value, tuple)
        is_list = value == ("*",) or all(re.fullmatch(r"[0-9]+:[0-9]+", one) for one in value)
        return None if is_list else "must be * or a list of [partition]:[broker],[partition]:[broker],..."

    return Rule("`*`, or `PARTITION:BROKER,…`", complaint)
