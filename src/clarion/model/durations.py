"""Durations as people write them, `90s` or `1h30m`, and milliseconds: both ways, without loss."""

from __future__ import annotations

import re
from typing import Final

UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_ONE: Final = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)(ms|s|m|h|d|w)", re.ASCII)
_DURATION: Final = re.compile(rf"(?:{_ONE.pattern})+", re.ASCII)
_LENGTH_MAX: Final = 100  # of a text: all six units with their longest numbers have room


def is_duration(text: str) -> bool:
    return len(text) <= _LENGTH_MAX and _DURATION.fullmatch(text) is not None


def parse_duration_ms(text: str) -> int:
    """`90s`, `5m`, `1h30m`, `2d` → milliseconds. ValueError, with a text for people, if it is none."""
    if not is_duration(text):
        raise ValueError(f"{text[:_LENGTH_MAX]!r} is not a duration; write for example 90s, 5m, 1h30m or 2d")
    return round(sum(float(number) * UNIT_MS[unit] for number, unit in _ONE.findall(text)))


def write_duration(milliseconds: int) -> str:
    """`1h30m`, `250ms`, `0s`: what `parse_duration_ms` reads as exactly this many."""
    parts: list[str] = []
    rest = milliseconds
    for unit in ("d", "h", "m", "s", "ms"):
        amount, rest = divmod(rest, UNIT_MS[unit])
        if amount:
            parts.append(f"{amount}{unit}")
    return "".join(parts) or "0s"
