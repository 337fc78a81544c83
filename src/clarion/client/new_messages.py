"""What `write` and `write_many` are given, as messages to be sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clarion.client.arguments import Content, Headers, Moment, content, header_list, moment_ms
from clarion.client.errors import InvalidRequest
from clarion.client.writer import NewMessage

Draft = Content | tuple[Content, Content] | Mapping[str, Any]
"""A value; a key and a value; or a dict with `value` and what else `write` takes."""


def new_message(
    *what: Any,
    key: Content = None,
    headers: Headers | None = None,
    partition: int | None = None,
    timestamp: Moment | None = None,
) -> NewMessage:
    """`what` is the message, or the partition and the message."""
    if len(what) == 2:
        if partition is not None:
            raise InvalidRequest("the partition is given twice")
        partition, value = what
        if not isinstance(partition, int):
            raise TypeError(f"a partition is an int, not {type(partition).__name__}; a key is said with key=")
    elif len(what) == 1:
        (value,) = what
    else:
        raise TypeError(f"write(topic, message) or write(topic, partition, message), not {len(what)} things")
    return NewMessage(
        content(value, "the message"),
        content(key, "key"),
        header_list(headers),
        partition,
        None if timestamp is None else moment_ms(timestamp, "timestamp"),
    )


def last_partition(messages: Sequence[NewMessage]) -> int | None:
    return max((one.partition for one in messages if one.partition is not None), default=None)


def drafted(draft: Draft) -> NewMessage:
    if isinstance(draft, Mapping):
        more = dict(draft)
        if "value" not in more:
            raise InvalidRequest(f"a message as a dict has a value, beside {', '.join(more) or 'nothing'}")
        return new_message(more.pop("value"), **more)
    if isinstance(draft, tuple):
        key, value = draft
        return NewMessage(content(value, "the message"), content(key, "key"))
    return NewMessage(content(draft, "the message"))
