"""Messages as HTTP shows and takes them: JSON objects, with text where bytes are text and base64 where they are not.

Written: {"key": "42", "value": {"total": 12.5}, "headers": {"trace": "a1"}, "partition": 0, "timestamp": 1700000000000}
A string is its UTF-8 bytes, any other JSON value its JSON text, null (or nothing) is no key and no value; bytes that
are no text come as `key_base64` and `value_base64`. Headers are an object, or a list of {"name", "value"} where one
name comes twice.

Read: the same fields, with topic, partition, offset and timestamp. What is no UTF-8 is told in base64.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from math import isinf
from typing import Any, Final, NamedTuple

from clarion.gateway.problems import HttpProblem
from clarion.wire.records import Headers, Record

TEXT: Final = "text"  # how keys and values are told: as text where they are text
JSON: Final = "json"  # values as JSON where they are JSON, else as text
BASE64: Final = "base64"  # all in base64, also what is text

_FIELDS: Final = (
    "key",
    "key_base64",
    "value",
    "value_base64",
    "headers",
    "partition",
    "timestamp",
    "idempotency_key",
)
HEADERS_MAX: Final = 1_000  # of one message: Kafka has no limit, but nobody means more
TIMESTAMP_MAX: Final = 2**61 - 1  # milliseconds; what the log's own arithmetic takes
PARTITION_MAX: Final = 2**31 - 1
IDEMPOTENCY_KEY_CHARS_MAX: Final = 255  # as the IETF's draft and others have it


class MessageToWrite(NamedTuple):
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    partition: int | None = None  # None: the key decides, or the broker
    timestamp_ms: int | None = None  # None: now
    idempotency_key: str | None = None


def parse_json(text: bytes | str) -> Any:
    """ValueError, of JSON that is none, in words that fit behind "this is no JSON: "."""
    try:
        return json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except UnicodeDecodeError as error:
        raise ValueError(f"it is no UTF-8 ({error.reason} at byte {error.start})") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if isinf(number):
        raise ValueError(f"{text[:50]} is too large a number")
    return number


def message_from_json(told: Any) -> MessageToWrite:
    if not isinstance(told, dict):
        raise _refused('a message is a JSON object, as in {"value": "hello"}')
    unknown = [name for name in told if name not in _FIELDS]
    if unknown:
        raise _refused(f"a message has no field {unknown[0][:100]!r}; there are {', '.join(_FIELDS)}")
    return MessageToWrite(
        _bytes_of(told, "key"),
        _bytes_of(told, "value"),
        _headers_of(told.get("headers")),
        _number(told, "partition", PARTITION_MAX),
        _number(told, "timestamp", TIMESTAMP_MAX),
        check_idempotency_key(told.get("idempotency_key")),
    )


def check_idempotency_key(told: Any) -> str | None:
    if told is None:
        return None
    if not isinstance(told, str) or not 0 < len(told) <= IDEMPOTENCY_KEY_CHARS_MAX:
        raise _refused(f"an idempotency key is a text of 1 to {IDEMPOTENCY_KEY_CHARS_MAX} characters, as a UUID")
    _encoded(told, "an idempotency key")
    return told


def _bytes_of(told: Mapping[str, Any], name: str) -> bytes | None:
    in_base64 = told.get(f"{name}_base64")
    if in_base64 is not None:
        if told.get(name) is not None:
            raise _refused(f"a message has {name} or {name}_base64, not both")
        return from_base64(in_base64, f"{name}_base64")
    return as_bytes(told.get(name), name)


def as_bytes(value: Any, name: str) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return _encoded(value, name)
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except RecursionError as error:
        raise _refused(f"{name} is nested too deeply; send it as {name}_base64") from error
    return _encoded(text, name)


def _encoded(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise _refused(f"{name} is no valid Unicode; send bytes as {name}_base64") from error


def from_base64(told: Any, name: str) -> bytes:
    try:
        return b64decode(told, validate=True)
    except (ValueError, TypeError) as error:
        raise _refused(f"{name} is no base64") from error


def _headers_of(told: Any) -> Headers:
    if told is None:
        return ()
    if isinstance(told, dict):
        listed = [{"name": name, "value": value} for name, value in told.items()]
    elif isinstance(told, list):
        listed = told
    else:
        raise _refused('headers are an object, or a list of {"name": …, "value": …}')
    if len(listed) > HEADERS_MAX:
        raise _refused(f"{len(listed)} headers; a message has at most {HEADERS_MAX}")
    return tuple([_header(one) for one in listed])


def _header(told: Any) -> tuple[str, bytes | None]:
    if not isinstance(told, dict) or not isinstance(told.get("name"), str):
        raise _refused('a header is {"name": "trace", "value": "a1"} or {"name": …, "value_base64": …}')
    unknown = [name for name in told if name not in ("name", "value", "value_base64")]
    if unknown:
        raise _refused(f"a header has no field {unknown[0][:100]!r}; there are name, value, value_base64")
    _encoded(told["name"], "a header's name")
    return told["name"], _bytes_of(told, "value")


def _number(told: Mapping[str, Any], name: str, greatest: int) -> int | None:
    number = told.get(name)
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= greatest:
        raise _refused(f"{name} is a whole number from 0 to {greatest}")
    return number


def _refused(detail: str) -> HttpProblem:
    return HttpProblem(422, detail, kind="invalid-message")


# ------------------------------------------------------------------------------------------------ out


def record_to_json(record: Record, encoding: str) -> dict[str, Any]:
    told: dict[str, Any] = {"offset": record.offset, "timestamp": record.timestamp}
    put_bytes(told, "key", record.key, BASE64 if encoding == BASE64 else TEXT)
    put_bytes(told, "value", record.value, encoding)
    if record.headers:
        told["headers"] = [_told_header(name, value, encoding) for name, value in record.headers]
    return told


def _told_header(name: str, value: bytes | None, encoding: str) -> dict[str, Any]:
    told: dict[str, Any] = {"name": name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")}
    put_bytes(told, "value", value, BASE64 if encoding == BASE64 else TEXT)
    return told


def put_bytes(told: dict[str, Any], name: str, content: bytes | None, encoding: str) -> None:
    if content is None:
        told[name] = None
        return
    if encoding != BASE64:
        try:
            text = content.decode()
        except UnicodeDecodeError:
            pass
        else:
            told[name] = _as_json(text) if encoding == JSON else text
            return
    told[f"{name}_base64"] = b64encode(content).decode()


def _as_json(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        return text
