"""Settings as people write them, `1d` or `10GB`, in the numbers that Kafka's protocol has for them. Pure functions.

For whoever brings settings by another way than that protocol: command line and files, Python, HTTP.
"""

from __future__ import annotations

import re
from typing import Final

from clarion.model.durations import is_duration, parse_duration_ms

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]i?)?B", re.IGNORECASE | re.ASCII)
_UNIT_BYTES: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12} | {
    f"{letter}i": 1 << shift for letter, shift in (("k", 10), ("m", 20), ("g", 30), ("t", 40))
}
_ENDING_MS: Final = {".ms": 1, ".seconds": 1_000, ".minutes": 60_000, ".hours": 3_600_000}
_ENDING_WORDS: Final = {
    ".ms": "milliseconds, or for example 90s, 1h30m or 7d",
    ".seconds": "seconds, or for example 90s, 1h30m or 7d",
    ".minutes": "minutes, or for example 90m, 12h or 7d",
    ".hours": "hours, or for example 12h or 7d",
    ".bytes": "bytes, or for example 64MiB or 10GB",
}
_LENGTH_MAX: Final = 100  # of a size: more is none


def setting_text(name: str, raw: object) -> str:
    """A setting's value as Kafka writes it: where its name says that it counts time or bytes, people may say `1d`,
    `90s`, `10GB` (a thousand million each) or `64MiB`.
    """
    if isinstance(raw, bool):
        return str(raw).lower()
    text = ",".join(map(str, raw)) if isinstance(raw, list | tuple) else str(raw)
    unit_ms = next((unit_ms for ending, unit_ms in _ENDING_MS.items() if name.endswith(ending)), None)
    if unit_ms is not None and is_duration(text):
        return _whole(parse_duration_ms(text) / unit_ms, text)
    size = _SIZE.fullmatch(text) if name.endswith(".bytes") and len(text) <= _LENGTH_MAX else None
    if size is not None:
        return _whole(float(size[1]) * _UNIT_BYTES[(size[2] or "").lower()], text)
    return text


def setting_hint(name: str, text: str) -> str:
    """What to write instead of a text that is no time or no size, where the setting's name says that it is one."""
    if re.fullmatch(r"-?\d+", text.strip(), re.ASCII):
        return ""
    return next((f"write {words}" for ending, words in _ENDING_WORDS.items() if name.endswith(ending)), "")


def _whole(count: float, text: str) -> str:
    """What is no whole number in the setting's own unit is left for the setting to refuse."""
    return str(int(count)) if count == int(count) else text
