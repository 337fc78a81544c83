"""A message as a webhook: CloudEvents 1.0 over HTTP, signed as Standard Webhooks says.

A value that is JSON goes as it is into a structured event (`application/cloudevents+json`). Any other goes in binary
mode: the body is the value, the attributes are `ce-` headers; unless those would be too large, or the event is in a
batch: then it is `data_base64` of a structured one. Bytes of values are never changed, and JSON is never written anew.

The id of an event is the idempotency key of its message: the same in every try, from whichever broker, and never that
of another message. It is also the `webhook-id`, and thereby signed; a batch's is made of the ids in it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple, NoReturn, Protocol
from urllib.parse import quote
from uuid import UUID

STRUCTURED: Final = "application/cloudevents+json; charset=utf-8"
BATCH: Final = "application/cloudevents-batch+json; charset=utf-8"
BINARY: Final = "application/octet-stream"
EVENT_TYPE: Final = "clarion.message"
SECRET_PREFIX: Final = "whsec_"
_HEADERS_BYTES_MAX: Final = 4096  # of all attributes: servers take 8 KB of headers, and some are their own
_ID_BYTES: Final = 20  # of a SHA-256: 160 bits, of which nobody finds two alike
_PRINTABLE: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')


class Pushed(Protocol):
    """A message as a queue delivers it."""

    @property
    def topic(self) -> str: ...
    @property
    def topic_id(self) -> UUID: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def deliveries(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]: ...
    @property
    def timestamp_ms(self) -> int: ...


class Webhook(NamedTuple):
    """What is sent, but for the signature: that has the time of the sending in it."""

    id: str
    headers: dict[str, str]
    body: bytes


def message_id(subscription: str, topic_id: UUID, partition: int, offset: int, leader_epoch: int) -> str:
    """The idempotency key of a message for one subscription: it follows from where the message lies in the log, and in
    which leader's term it was written. That is stamped into its batch and the same on every replica; it tells it from
    another message, which has come to the same place after this one was lost (a power cut with `page-cache`, an
    election that loses messages). In the first term nothing can have been there before, and the place is enough.
    """
    place = f"{subscription}\n{topic_id}\n{partition}\n{offset}"
    return _id((f"{place}\n{leader_epoch}" if leader_epoch > 0 else place).encode())


def single_webhook(subscription: str, message: Pushed) -> Webhook:
    attributes = _attributes(subscription, message)
    if message.value is not None and not _is_json(message.value):
        headers = _binary_headers(attributes)
        if sum(len(name) + len(value) + 4 for name, value in headers.items()) <= _HEADERS_BYTES_MAX:
            return Webhook(attributes["id"], {"content-type": BINARY, **headers}, message.value)
    return Webhook(attributes["id"], {"content-type": STRUCTURED}, _structured(attributes, message.value))


def batch_webhook(subscription: str, messages: Sequence[Pushed]) -> Webhook:
    events = [_attributes(subscription, message) for message in messages]
    bodies = [_structured(event, message.value) for event, message in zip(events, messages, strict=True)]
    batch_id = _id("\n".join(event["id"] for event in events).encode())
    return Webhook(batch_id, {"content-type": BATCH}, b"[" + b",".join(bodies) + b"]")


def signed_headers(webhook: Webhook, secret: str, now_ms: int) -> dict[str, str]:
    """All headers of a request that is sent now."""
    sent_at = str(now_ms // 1000)
    return {
        **webhook.headers,
        "webhook-id": webhook.id,
        "webhook-timestamp": sent_at,
        "webhook-signature": signature(secret, webhook.id, sent_at, webhook.body),
    }


def signature(secret: str, webhook_id: str, timestamp: str, body: bytes) -> str:
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX) + "==")  # some write it without its padding
    signed = f"{webhook_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def _id(content: bytes) -> str:
    digest = hashlib.sha256(content).digest()[:_ID_BYTES]
    return "msg_" + base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _attributes(subscription: str, message: Pushed) -> dict[str, str]:
    """CloudEvents knows texts here, and numbers of 32 bits: an offset is a text."""
    attributes = {
        "specversion": "1.0",
        "id": message_id(subscription, *_place(message)),
        "source": f"/topics/{message.topic}/partitions/{message.partition}",
        "type": EVENT_TYPE,
        "topic": message.topic,
        "partition": str(message.partition),
        "offset": str(message.offset),
        "subscription": subscription,
        "deliveries": str(message.deliveries),
    }
    time = _time(message.timestamp_ms)
    if time is not None:
        attributes["time"] = time
    if message.key is not None:
        attributes |= _text_or_base64("partitionkey", "keybase64", message.key)
    if message.headers:
        attributes["recordheaders"] = _record_headers(message.headers)
    return attributes


def _place(message: Pushed) -> tuple[UUID, int, int, int]:
    return message.topic_id, message.partition, message.offset, message.leader_epoch


def _time(timestamp_ms: int) -> str | None:
    """None where a producer wrote something that no calendar has."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _record_headers(headers: Sequence[tuple[str, bytes | None]]) -> str:
    """A list in a text, since attributes know no lists: `[{"name": "trace", "value": "7"}]`, or `valuebase64`."""
    listed = [{"name": _plain(name), **({} if value is None else _header_value(value))} for name, value in headers]
    return json.dumps(listed, ensure_ascii=False, separators=(",", ":"))


def _plain(name: str) -> str:
    """Kafka's clients may write names that are no UTF-8: what cannot be told is a question mark in a diamond."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _header_value(value: bytes) -> dict[str, str]:
    return _text_or_base64("value", "valuebase64", value)


def _text_or_base64(name: str, base64_name: str, content: bytes) -> dict[str, str]:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return {base64_name: base64.b64encode(content).decode()}
    # CloudEvents knows no control characters in attributes, and no empty ones.
    return {name: text} if text and text.isprintable() else {base64_name: base64.b64encode(content).decode()}


def _structured(attributes: dict[str, str], value: bytes | None) -> bytes:
    event: dict[str, str] = dict(attributes)
    if value is None:
        return _json(event)
    if _is_json(value):
        return _json(event | {"datacontenttype": "application/json"})[:-1] + b',"data":' + value + b"}"
    return _json(event | {"datacontenttype": BINARY, "data_base64": base64.b64encode(value).decode()})


def _json(event: dict[str, str]) -> bytes:
    return json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()


def _is_json(value: bytes) -> bool:
    """Whether it may stand in a JSON text as it is: UTF-8, and none of Python's extras."""
    try:
        json.loads(value.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _binary_headers(attributes: dict[str, str]) -> dict[str, str]:
    """Percent-encoded as the HTTP binding says: everything but printable ASCII, and of that the space, `"` and `%`."""
    return {f"ce-{name}": quote(value, safe=_PRINTABLE) for name, value in attributes.items()}
