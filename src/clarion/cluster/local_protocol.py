"""What processes of one machine say to the owner of the coordination store: JSON with a length before it.

    {"id": 7, "call": "transact", "compares": [["topics/a", 0]], "operations": [["topics/a", "djE=", null]]}
    {"id": 7, "answer": {"succeeded": true, "revision": 3}}

A watch is a call with many answers. Both sides are this version of Clarion: the socket is private to one machine, and
whoever is upgraded while others run finds the same messages or a call that is not known, and says so.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Final

from clarion.cluster.coordination import (
    Change,
    CompactedError,
    Compare,
    Delete,
    Entry,
    KeyEvent,
    LeaseId,
    LeaseNotFoundError,
    Operation,
    OutcomeUnknownError,
    Put,
    Range,
    Revision,
    StoreError,
    StoreFailedError,
    TransactionTooLargeError,
)

_MESSAGE_BYTES_MAX: Final = 256 * 1024 * 1024  # all keys of a large cluster in one answer
_ERRORS: Final = {
    kind.__name__: kind
    for kind in (LeaseNotFoundError, OutcomeUnknownError, TransactionTooLargeError, StoreFailedError, StoreError)
}

Message = Mapping[str, Any]


def encode(message: Message) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode()
    return len(body).to_bytes(4, "big") + body


async def receive(reader: asyncio.StreamReader) -> Message:
    """EOFError: the other side has gone."""
    size = int.from_bytes(await reader.readexactly(4), "big")
    if size > _MESSAGE_BYTES_MAX:
        raise EOFError(f"a message of {size} bytes")
    message: Message = json.loads(await reader.readexactly(size))
    return message


def from_compares(compares: Sequence[Compare]) -> list[list[Any]]:
    return [[one.key, one.mod_revision] for one in compares]


def to_compares(packed: Sequence[Sequence[Any]]) -> list[Compare]:
    return [Compare(key, Revision(revision)) for key, revision in packed]


def from_operations(operations: Sequence[Operation]) -> list[list[Any]]:
    return [[one.key, _b64(one.value), one.lease] if isinstance(one, Put) else [one.key] for one in operations]


def to_operations(packed: Sequence[Sequence[Any]]) -> list[Operation]:
    return [Delete(one[0]) if len(one) == 1 else Put(one[0], b64decode(one[1]), one[2]) for one in packed]


def from_entry(entry: Entry | None) -> list[Any] | None:
    if entry is None:
        return None
    return [entry.key, _b64(entry.value), entry.create_revision, entry.mod_revision, entry.lease]


def to_entry(packed: Sequence[Any] | None) -> Entry | None:
    return None if packed is None else _entry(packed)


def from_range(found: Range) -> Message:
    return {"entries": list(map(from_entry, found.entries)), "revision": found.revision}


def to_range(packed: Message) -> Range:
    return Range(tuple(map(_entry, packed["entries"])), Revision(packed["revision"]))


def from_change(change: Change) -> Message:
    return {"revision": change.revision, "events": [[one.key, from_entry(one.entry)] for one in change.events]}


def to_change(packed: Message) -> Change:
    events = tuple(KeyEvent(key, to_entry(entry)) for key, entry in packed["events"])
    return Change(Revision(packed["revision"]), events)


def from_error(error: StoreError | OSError) -> Message:
    if isinstance(error, CompactedError):
        return {"error": "CompactedError", "reason": str(error), "oldest": error.oldest}
    kind = type(error).__name__
    return {"error": kind if kind in _ERRORS else "StoreError", "reason": str(error)}


def to_error(packed: Message, asked_revision: int = 0) -> StoreError:
    if packed["error"] == "CompactedError":
        return CompactedError(asked_revision, packed["oldest"])
    return _ERRORS.get(packed["error"], StoreError)(packed["reason"])


def _entry(packed: Sequence[Any]) -> Entry:
    key, value, created, modified, lease = packed
    bound = None if lease is None else LeaseId(lease)
    return Entry(key, b64decode(value), Revision(created), Revision(modified), bound)


def _b64(value: bytes) -> str:
    return b64encode(value).decode()
