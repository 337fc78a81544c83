"""What `write` and `write_many` are given, as messages to be sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from clarion.client.arguments import Content, Headers, Moment, content, header_list, moment_ms
from clarion.client.errors import InvalidRequest
from clarion.client.writer import NewMessage

Draft = Content | tuple[Content, Content] | Mapping[str, Any]
"""A value; a key and a value; or a dict with `value` and what else `write` takes."""


_NOT_SAID: Final = object()  # None is a message, of its own kind


def new_message(
    *what: Any,
    message: Any = _NOT_SAID,
    partition_id: int | None = None,
    key: Content = None,
    headers: Headers | None = None,
    partition: int | None = None,
    timestamp: Moment | None = None,
    **unknown: Any,
) -> NewMessage:
    """`what` is the message, or the partition and the message; both may be said by name as well."""
    if unknown:
        raise TypeError(f"write knows no {', '.join(unknown)}; it takes key, headers, partition and timestamp")
    if len(what) > 2 or len(what) + (message is not _NOT_SAID) not in (1, 2):
        raise TypeError(f"write(topic, message) or write(topic, partition, message), not {len(what)} things")
    value = what[-1] if message is _NOT_SAID else message
    first = what[: len(what) - (message is _NOT_SAID)]
    named = [*first, *(each for each in (partition_id, partition) if each is not None)]
    if len(named) > 1:
        raise InvalidRequest("the partition is given twice")
    if named and (not isinstance(named[0], int) or isinstance(named[0], bool)):
        raise TypeError(f"a partition is an int, not {type(named[0]).__name__}; a key is said with key=")
    return NewMessage(
        content(value, "the message"),
        content(key, "key"),
        header_list(headers),
        named[0] if named else None,
        None if timestamp is None else _written_at(timestamp),
    )


def _written_at(moment: Moment) -> int:
    found = moment_ms(moment, "timestamp")
    if not found:
        raise InvalidRequest("timestamp 0, the first moment of 1970, means now to librdkafka; write 1, or leave it out")
    return found


def last_partition(messages: Sequence[NewMessage]) -> int | None:
    return max((one.partition for one in messages if one.partition is not None), default=None)


def drafts_of(messages: Iterable[Draft]) -> list[NewMessage]:
    if isinstance(messages, str | bytes | bytearray | memoryview | Mapping):
        raise TypeError(f"messages is one {type(messages).__name__}; write it, or a list of messages")
    return [drafted(one) for one in messages]


def drafted(draft: Draft) -> NewMessage:
    if isinstance(draft, Mapping):
        more = {str(name): told for name, told in draft.items()}
        if "value" not in more:
            raise InvalidRequest(f"a message as a dict has a value, beside {', '.join(more) or 'nothing'}")
        return new_message(more.pop("value"), **more)
    if isinstance(draft, tuple):
        if len(draft) != 2:
            raise TypeError(f"a pair is a key and a value, not {len(draft)} things; write a dict to say more")
        key, value = draft
        return NewMessage(content(value, "the message"), content(key, "key"))
    return NewMessage(content(draft, "the message"))
