"""What an application may write as a duration, a moment, a message or headers, in one form. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from clarion.client.errors import InvalidRequest
from clarion.model.durations import is_duration, parse_duration_ms

Duration = float | str | timedelta
"""Seconds, a text such as "30s" or "14d", or a timedelta."""

Content = bytes | bytearray | memoryview | str | None
"""A key or a value: text is written as UTF-8; a value of None deletes its key in a compacted topic."""

Headers = Mapping[str, Content] | Iterable[tuple[str, Content]]
Moment = datetime | int
"""A datetime (without a zone: local time), or milliseconds since 1970."""

_DURATION_MAX_MS = 10**12  # thirty years: nobody means more, and every clock can count so far
_TIMESTAMP_MAX = 2**63 - 1  # as the wire has it


def milliseconds(duration: Duration, name: str) -> int:
    if isinstance(duration, str):
        try:
            found: float = parse_duration_ms(duration)
        except ValueError as error:
            raise InvalidRequest(f"{name}: {error}") from None
    elif isinstance(duration, timedelta):
        found = duration / timedelta(milliseconds=1)
    elif isinstance(duration, int | float) and not isinstance(duration, bool):
        found = duration * 1000
    else:
        raise TypeError(f"{name} is {type(duration).__name__}; write seconds, a text such as '10s', or a timedelta")
    if not 0 <= found <= _DURATION_MAX_MS:
        raise InvalidRequest(f"{name}: {duration!r} is no time that can be waited for; write for example 10 or '10s'")
    return round(found)


def seconds_of(timeout: Duration | None) -> float | None:
    """How long a reading waits; None: for ever."""
    return None if timeout is None else milliseconds(timeout, "timeout") / 1000


def duration_text(duration: Duration, name: str) -> str:
    """As subscriptions have it; words such as "consumed" are left to the broker."""
    if isinstance(duration, str):
        return duration
    return f"{milliseconds(duration, name)}ms"


def content(what: Content, name: str) -> bytes | None:
    if what is None or isinstance(what, bytes):
        return what
    if isinstance(what, str):
        return what.encode()
    if isinstance(what, bytearray | memoryview):
        return bytes(what)
    raise TypeError(f"{name} is {type(what).__name__}; write bytes or str")


def header_list(headers: Headers | None) -> list[tuple[str, bytes | None]] | None:
    if not headers:
        return None
    pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise TypeError("headers are a dict, or pairs of a name and a value")
    return [(name, content(value, f"header {name}")) for name, value in pairs]


def moment_ms(moment: Moment, name: str) -> int:
    found = round(moment.timestamp() * 1000) if isinstance(moment, datetime) else moment
    if isinstance(found, bool) or not isinstance(found, int):
        raise TypeError(f"{name} is {type(moment).__name__}; write a datetime, or milliseconds since 1970 as an int")
    if not 0 <= found <= _TIMESTAMP_MAX:
        raise InvalidRequest(f"{name}: {moment!r} lies before 1970, or too far ahead")
    return found


def start_of(start: str | Moment | timedelta, now_ms: int) -> str | int:
    """`earliest`, `latest`, or a moment in milliseconds; "1h" and a timedelta are so long ago."""
    if isinstance(start, timedelta) or (isinstance(start, str) and is_duration(start)):
        return now_ms - milliseconds(start, "start")
    if not isinstance(start, str):
        return moment_ms(start, "start")
    if start not in ("earliest", "latest"):
        raise InvalidRequest(f"start {start!r}: write earliest, latest, a datetime, or how long ago, as 1h")
    return start
