"""Where a push subscription's messages go, and how they are sent there."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, field, replace
from typing import Any, Final

from clarion.model.durations import write_duration
from clarion.model.json_fields import JsonFields, check_bounds, refused

PUSH_BATCH: Final = (1, 1_000)  # 1,000 events are one body of about the largest that webhooks take
PUSH_TIMEOUT_MS: Final = (100, 300_000)
URL_LENGTH_MAX: Final = 2_048
HEADERS_MAX: Final = 32
HEADER_LENGTH_MAX: Final = 4_096
SECRET_PREFIX: Final = "whsec_"
HIDDEN: Final = "(hidden)"  # in place of what is not shown
SECRET_BYTES: Final = (24, 64)  # Standard Webhooks' bounds

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_HOST: Final = re.compile(r"[0-9A-Za-z._:%-]+")  # names, and addresses of both kinds
_HEADER_VALUE: Final = re.compile(r"[\x20-\x7e]*")
_OWN_HEADERS: Final = frozenset({"host", "content-length", "content-type", "transfer-encoding", "connection"})
_OWN_HEADER_PREFIXES: Final = ("webhook-", "ce-")


@dataclass(frozen=True, slots=True, kw_only=True)
class PushEndpoint:
    """Where a push subscription's messages go. `secret` signs them; it is never shown, unless asked for. Nor is what
    headers say: one may be Authorization."""

    url: str
    secret: str = field(default="", repr=False)  # so that no log line or traceback shows it
    batch_max: int = 1
    ordered: bool = False  # of the messages of one key, one is under way at a time
    timeout_ms: int = 10_000
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # likewise: one may be Authorization
    allow_private: bool = False

    def check(self) -> None:
        _check_url(self.url)
        _check_secret(self.secret)
        check_bounds("push.batch_max", self.batch_max, PUSH_BATCH)
        check_bounds("push.timeout", self.timeout_ms, PUSH_TIMEOUT_MS, in_ms=True)
        _check_headers(self.headers)

    def to_json(self, *, with_secret: bool = False) -> dict[str, Any]:
        return {
            "url": self.url,
            **({"secret": self.secret} if with_secret else {}),
            "batch_max": self.batch_max,
            "ordered": self.ordered,
            "timeout": write_duration(self.timeout_ms),
            "headers": {name: value if with_secret else HIDDEN for name, value in self.headers},
            "allow_private": self.allow_private,
        }

    def with_secrets_of(self, before: PushEndpoint) -> PushEndpoint:
        """What is not said, or said as it was shown, stays as it was; unless it would go to another place then, whose
        owner it was never told."""
        if HIDDEN in dict(self.headers).values() and _origin(self.url) != _origin(before.url):
            raise refused("push.url is another place: say what its headers are, which stay hidden from there")
        known = {name.lower(): value for name, value in before.headers}
        headers = tuple(
            (name, known.get(name.lower(), value) if value == HIDDEN else value) for name, value in self.headers
        )
        return replace(self, secret=self.secret or before.secret, headers=headers)

    @classmethod
    def from_json(cls, data: object) -> PushEndpoint:
        if isinstance(data, str):
            data = {"url": data}
        found = JsonFields(data, "push")
        endpoint = cls(
            url=found.text("url") or "",
            secret=found.text("secret") or "",
            batch_max=found.number("batch_max", 1),
            ordered=found.truth("ordered", False),
            timeout_ms=found.duration("timeout", 10_000),
            headers=found.texts_by_name("headers"),
            allow_private=found.truth("allow_private", False),
        )
        found.check_all_known()
        endpoint.check()
        return endpoint


def _check_url(url: str) -> None:
    from urllib.parse import urlsplit  # most brokers push nothing, and start without it

    if len(url) > URL_LENGTH_MAX:
        raise refused(f"push.url has at most {URL_LENGTH_MAX} characters")
    try:
        parts = urlsplit(url)
        host = _HOST.fullmatch(parts.hostname or "")
        is_whole = parts.scheme in ("http", "https") and host is not None and parts.port != 0
    except ValueError:
        is_whole = False
    if not is_whole or not _HEADER_VALUE.fullmatch(url) or " " in url:
        raise refused("push.url is an address such as https://example.org/hook")
    if parts.username is not None or parts.password is not None:
        raise refused("push.url must not name a user or password; write an Authorization header in push.headers")


def _origin(url: str) -> tuple[str, str]:
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    return parts.scheme, parts.netloc.lower()


def _check_secret(secret: str) -> None:
    """Empty: whoever creates the subscription makes one."""
    if not secret:
        return
    try:
        length = len(base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True))
    except (binascii.Error, ValueError):
        length = 0
    if not secret.startswith(SECRET_PREFIX) or not SECRET_BYTES[0] <= length <= SECRET_BYTES[1]:
        raise refused(
            f"push.secret is {SECRET_PREFIX} and {SECRET_BYTES[0]} to {SECRET_BYTES[1]} bytes in base64; "
            "leave it out and one is made"
        )


def _check_headers(headers: tuple[tuple[str, str], ...]) -> None:
    if len(headers) > HEADERS_MAX:
        raise refused(f"push.headers are at most {HEADERS_MAX}")
    for name, value in headers:
        lower = name.lower()
        if not _HEADER_NAME.fullmatch(name):
            raise refused(f"{name[:100]!r} cannot be the name of an HTTP header")
        if lower in _OWN_HEADERS or lower.startswith(_OWN_HEADER_PREFIXES):
            raise refused(f"the header {name} is written for you; leave it out of push.headers")
        if len(value) > HEADER_LENGTH_MAX or not _HEADER_VALUE.fullmatch(value):
            raise refused(f"push.headers.{name} is one line of at most {HEADER_LENGTH_MAX} plain characters")
