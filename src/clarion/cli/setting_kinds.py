"""What a broker setting may be: kinds that read a value from TOML, from the environment or from a flag alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple


class SenselessError(ValueError):
    """A value that its setting cannot have; says what would make sense."""


class HostPort(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Kind:
    words: str  # for the reference: "a whole number from 1"
    read: Callable[[Any], Any]


def whole_number(least: int, most: int = 2**63 - 1) -> Kind:
    words = f"a whole number from {least:,}" + (f" to {most:,}" if most < 2**63 - 1 else "")

    def read(raw: Any) -> int:
        try:
            value = None if isinstance(raw, bool | float) else int(raw)
        except (TypeError, ValueError):
            value = None
        if value is None or not least <= value <= most:
            raise SenselessError(f"must be {words}")
        return value

    return Kind(words, read)


def seconds(least: float) -> Kind:
    words = f"seconds, at least {least:g}"

    def read(raw: Any) -> float:
        try:
            value = -1.0 if isinstance(raw, bool) else float(raw)
        except (TypeError, ValueError):
            value = -1.0
        if not least <= value < 1e9:  # a NaN is neither
            raise SenselessError(f"must be {words}")
        return value

    return Kind(words, read)


def one_of(*choices: str) -> Kind:
    words = " or ".join(f"`{each}`" for each in choices)

    def read(raw: Any) -> str:
        if raw not in choices:
            raise SenselessError(f"must be {' or '.join(choices)}")
        return str(raw)

    return Kind(words, read)


def _read_switch(raw: Any) -> bool:
    value = (
        raw if isinstance(raw, bool) else {"true": True, "1": True, "false": False, "0": False}.get(str(raw).lower())
    )
    if value is None:
        raise SenselessError("must be true or false")
    return value


def _read_text(raw: Any) -> str:
    if not isinstance(raw, str) or not raw or "\0" in raw:
        raise SenselessError("must be a text")
    return raw


def _read_address(raw: Any) -> HostPort:
    if isinstance(raw, HostPort):
        return raw
    host, colon, port = str(raw).strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdigit() and len(port) < 6 and int(port) < 65536):
        raise SenselessError("must be HOST:PORT, for example 127.0.0.1:9092")
    return HostPort(host, int(port))


def _read_addresses(raw: Any) -> tuple[HostPort, ...]:
    each = raw.split(",") if isinstance(raw, str) else raw
    if not isinstance(each, list | tuple) or not each:
        raise SenselessError("must be HOST:PORT, or a list of them")
    return tuple(_read_address(one) for one in each)


SWITCH = Kind("`true` or `false`", _read_switch)
TEXT = Kind("a text", _read_text)
PATH = Kind("a path", _read_text)
ADDRESS = Kind("`HOST:PORT`; port 0 picks a free one", _read_address)
ADDRESSES = Kind("`HOST:PORT`, or several; port 0 picks a free one", _read_addresses)
