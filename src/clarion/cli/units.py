"""Numbers as people read and write them: sizes, durations, moments. Pure functions, both ways."""

from __future__ import annotations

from datetime import UTC, datetime

from clarion.cli.errors import UsageError
from clarion.model import durations

_TIME_MS_MAX = 253_402_300_799_999  # the last moment of the year 9999: more is a typing mistake, not a time


def parse_duration_ms(text: str) -> int:
    """`90s`, `5m`, `1h30m`, `2d` → milliseconds."""
    try:
        return durations.parse_duration_ms(text)
    except ValueError as error:
        raise UsageError(str(error)) from None


def parse_time_ms(text: str, now_ms: int) -> int:
    """A moment: `-5m` (ago), `now`, `2026-11-15`, `2026-11-15T10:30:00+01:00`, or milliseconds since 1970."""
    if text == "now":
        return now_ms
    if text.startswith("-"):
        return now_ms - parse_duration_ms(text[1:])
    moment = int(text) if text.isascii() and text.isdigit() else _iso_ms(text)
    if moment > _TIME_MS_MAX:
        raise UsageError(f"{text} is not a time: it lies after the year 9999")
    return moment


def _iso_ms(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{text!r} is not a time; write for example -5m, 2026-11-15T10:30:00 or milliseconds since 1970"
        ) from None
    return int(moment.timestamp() * 1000)  # without a zone it is local time, as people mean it


def time_text(timestamp_ms: int) -> str:
    """Local time to the millisecond; a dash where there is none."""
    if not 0 <= timestamp_ms <= _TIME_MS_MAX:
        return "-"
    return datetime.fromtimestamp(timestamp_ms / 1000).isoformat(sep=" ", timespec="milliseconds")


def utc_text(timestamp_ms: int) -> str | None:
    """ISO 8601 in UTC, for JSON."""
    if not 0 <= timestamp_ms <= _TIME_MS_MAX:
        return None
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def bytes_text(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def count_text(count: float) -> str:
    return f"{count:,.0f}"


def duration_text(milliseconds: float) -> str:
    """The two most telling units: `3d 4h`, `1h 30m`, `42s`, `0.25 ms`."""
    if milliseconds < 1000:
        return f"{milliseconds:.3g} ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:.3g}s"
    parts: list[str] = []
    rest = int(milliseconds)
    for unit in ("d", "h", "m", "s"):
        amount, rest = divmod(rest, durations.UNIT_MS[unit])
        if amount or parts:
            parts.append(f"{amount}{unit}")
    return " ".join(part for part in parts[:2] if not part.startswith("0"))


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
