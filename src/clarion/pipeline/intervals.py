"""Lengths of time as Spark writes them (`10 seconds`, `1 minute 30 seconds`), looked through without Spark, which needs
half a minute to start before it can say that it does not understand one."""

from __future__ import annotations

import re
from typing import Final

_PART: Final = re.compile(
    r"[+-]?\s*(\d+(\.\d*)?|\.\d+)\s+(year|month|week|day|hour|minute|second|millisecond|microsecond)s?(\s+|$)", re.I
)


def why_no_interval(text: str) -> str | None:
    """What is wrong with it, in words; None if it may be right. What begins with INTERVAL is an expression of SQL, of
    which Spark alone can judge."""
    rest = text.strip()
    if rest.lower().startswith("interval"):
        return None
    while found := _PART.match(rest):
        rest = rest[found.end() :]
        if not rest:
            return None
    return f"{text!r} is no length of time; write one like 10 seconds or 1 minute 30 seconds"
