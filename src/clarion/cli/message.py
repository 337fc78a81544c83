"""One message as text: the JSON form that `consume --json` writes and `produce --json-lines` reads, and templates.

The JSON form loses nothing: bytes that are not UTF-8 travel as `key_base64`, `value_base64` and `{"base64": …}`.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any

from clarion.cli.errors import CliError, UsageError
from clarion.cli.units import time_text, utc_text

Headers = Sequence[tuple[str, bytes | None]]
_NAMES_IN_JSON = frozenset(
    {"topic", "partition", "offset", "timestamp", "time", "key", "value", "headers", "key_base64", "value_base64"}
)


@dataclass(frozen=True, slots=True)
class TextMessage:
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None
    topic: str = ""
    offset: int = -1


def from_json(line: bytes) -> TextMessage:
    """Read `{"key": …, "value": …, "headers": {…}, "partition": 0, "timestamp": 0}`; everything is optional."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CliError(f"not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise CliError('not a JSON object; write for example {"key": "a", "value": "b"}')
    if unknown := sorted(fields.keys() - _NAMES_IN_JSON):
        raise CliError(f"unknown field {unknown[0]!r}; known are key, value, headers, partition, timestamp")
    return TextMessage(
        key=_field_bytes(fields, "key"),
        value=_field_bytes(fields, "value"),
        headers=_json_headers(fields.get("headers")),
        partition=_field_int(fields, "partition"),
        timestamp_ms=_field_int(fields, "timestamp"),
    )


def to_json(message: TextMessage) -> str:
    fields: dict[str, Any] = {"topic": message.topic, "partition": message.partition, "offset": message.offset}
    if message.timestamp_ms is not None:
        fields |= {"timestamp": message.timestamp_ms, "time": utc_text(message.timestamp_ms)}
    fields |= _bytes_field("key", message.key)
    fields |= _bytes_field("value", message.value)
    if message.headers:
        fields["headers"] = [[name, _header_value(value)] for name, value in message.headers]
    return json.dumps(fields, ensure_ascii=False)


class Template:
    """`{offset} {key}={value}`, as bytes out: what a message holds is written as it is. `{{` stands for a brace."""

    def __init__(self, text: str, null_marker: str = "") -> None:
        self._null = null_marker.encode()
        try:
            parsed = [*Formatter().parse(_unescape(text))]
        except ValueError as error:
            raise UsageError(f"--format {text}: {error}; write {{{{ or }}}} for a brace itself") from None
        self._parts = [part for each in parsed for part in self._two(*each)]

    def __call__(self, message: TextMessage) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(message) for part in self._parts)

    def _two(
        self, literal: str, field: str | None, form: str | None, conversion: str | None
    ) -> Iterator[bytes | Callable[[TextMessage], bytes]]:
        """Text, and the field that follows it."""
        yield literal.encode()
        if field is not None:
            yield self._field(field + (f"!{conversion}" if conversion else "") + (f":{form}" if form else ""))

    def _field(self, field: str) -> Callable[[TextMessage], bytes]:
        if field in ("key", "value"):
            return lambda message: self._null if (data := getattr(message, field)) is None else bytes(data)
        if field in _TEMPLATE_FIELDS:
            read = _TEMPLATE_FIELDS[field]
            return lambda message: read(message).encode()
        raise UsageError(f"--format: unknown field {{{field}}}; known are {', '.join(TEMPLATE_FIELDS)}")


_TEMPLATE_FIELDS: Mapping[str, Callable[[TextMessage], str]] = {
    "topic": lambda message: message.topic,
    "partition": lambda message: str(message.partition),
    "offset": lambda message: str(message.offset),
    "timestamp": lambda message: str(-1 if message.timestamp_ms is None else message.timestamp_ms),
    "time": lambda message: time_text(-1 if message.timestamp_ms is None else message.timestamp_ms),
    "headers": lambda message: ",".join(f"{name}={_shown(value)}" for name, value in message.headers),
    "size": lambda message: str(len(message.key or b"") + len(message.value or b"")),
}
TEMPLATE_FIELDS = tuple(f"{{{name}}}" for name in ("key", "value", *_TEMPLATE_FIELDS))


def for_terminal(line: bytes) -> bytes:
    """What a peer wrote must not be able to steer the terminal: escape control characters and broken UTF-8."""
    text = line.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return line
    return "".join(each if each.isprintable() or each in "\n\t" else repr(each)[1:-1] for each in text).encode()


def _unescape(text: str) -> str:
    return text.replace("\\t", "\t").replace("\\n", "\n").replace("\\0", "\0")


def _field_bytes(fields: Mapping[str, Any], name: str) -> bytes | None:
    if f"{name}_base64" in fields:
        return _from_base64(fields[f"{name}_base64"])
    return _json_bytes(fields.get(name))


def _json_bytes(value: Any) -> bytes | None:
    """Text as it is, anything else that JSON knows as compact JSON."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _field_int(fields: Mapping[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise CliError(f"{name} must be a whole number of at least 0, not {value!r}")
    return value


def _json_headers(value: Any) -> Headers:
    if value is None:
        return ()
    pairs = value.items() if isinstance(value, dict) else value
    try:
        return [(str(name), _json_header(each)) for name, each in pairs]
    except (TypeError, ValueError):
        raise CliError('headers must look like {"name": "value"} or [["name", "value"]]') from None


def _json_header(value: Any) -> bytes | None:
    if isinstance(value, dict) and value.keys() == {"base64"}:
        return _from_base64(value["base64"])
    return _json_bytes(value)


def _from_base64(value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise CliError(f"{value!r} is not base64") from None


def _bytes_field(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _header_value(data: bytes | None) -> str | dict[str, str] | None:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data or b"").decode()}


def _shown(data: bytes | None) -> str:
    return "" if data is None else data.decode("utf-8", "backslashreplace")
