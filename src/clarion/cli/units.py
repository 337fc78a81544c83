"""Numbers as people read and write them: sizes, durations, moments. Pure functions, both ways."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from clarion.cli.errors import UsageError
from clarion.model import durations

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]i?)?B", re.IGNORECASE)
_UNIT_BYTES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12} | {
    f"{letter}i": 1 << shift for letter, shift in (("k", 10), ("m", 20), ("g", 30), ("t", 40))
}
_TIME_MS_MAX = 253_402_300_799_999  # the last moment of the year 9999: more is a typing mistake, not a time


def parse_duration_ms(text: str) -> int:
    """`90s`, `5m`, `1h30m`, `2d` → milliseconds."""
    try:
        return durations.parse_duration_ms(text)
    except ValueError as error:
        raise UsageError(str(error)) from None


def setting_text(name: str, raw: Any) -> str:
    """A setting's value as Kafka writes it: where its name says that it counts time or bytes, people may say `1d`,
    `90s`, `10GB` (a thousand million each) or `64MiB`.
    """
    if isinstance(raw, bool):
        return str(raw).lower()
    text = ",".join(map(str, raw)) if isinstance(raw, list | tuple) else str(raw)
    unit_ms = next((unit_ms for ending, unit_ms in _ENDING_MS.items() if name.endswith(ending)), None)
    if unit_ms is not None and durations.is_duration(text):
        return _whole(parse_duration_ms(text) / unit_ms, text)
    size = _SIZE.fullmatch(text) if name.endswith(".bytes") else None
    if size is not None:
        return _whole(float(size[1]) * _UNIT_BYTES[(size[2] or "").lower()], text)
    return text


_ENDING_MS = {".ms": 1, ".seconds": 1_000, ".minutes": 60_000, ".hours": 3_600_000}
_ENDING_WORDS = {
    ".ms": "milliseconds, or for example 90s, 1h30m or 7d",
    ".seconds": "seconds, or for example 90s, 1h30m or 7d",
    ".minutes": "minutes, or for example 90m, 12h or 7d",
    ".hours": "hours, or for example 12h or 7d",
    ".bytes": "bytes, or for example 64MiB or 10GB",
}


def setting_hint(name: str, text: str) -> str:
    """What to write instead of a text that is no time or no size, where the setting's name says that it is one."""
    if re.fullmatch(r"-?\d+", text.strip(), re.ASCII):
        return ""
    return next((f"write {words}" for ending, words in _ENDING_WORDS.items() if name.endswith(ending)), "")


def _whole(count: float, text: str) -> str:
    """What is no whole number in the setting's own unit is left for the setting to refuse."""
    return str(int(count)) if count == int(count) else text


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
