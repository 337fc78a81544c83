"""The largest legal requests of every API: for each of its arrays, one that has as many elements as are taken.

Made from the message classes themselves, so that an API which is added tomorrow is walked through as well.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints
from uuid import UUID

from clarion.wire.apis import APIS, FETCH, PRODUCE, Api
from clarion.wire.bridge import encode
from clarion.wire.frames import request_frame
from clarion.wire.limits import FETCH_ELEMENTS_MAX, PRODUCE_ELEMENTS_MAX, request_elements_max
from clarion.wire.messages import fields_of, is_message

FRAME_BYTES_MAX = 4_000_000  # a little less than a broker takes of anything but Produce


class Largest(NamedTuple):
    name: str
    api: Api
    frame: bytes


def largest_requests(*, every_array: bool = True) -> Iterator[Largest]:
    return (make() for make in makers(every_array=every_array))


def makers(*, every_array: bool = True) -> list[Callable[[], Largest]]:
    """One for each request: to make one takes a tenth of a second. Of every array, or of the deepest of each API."""
    bridged = [api for api in APIS.values() if api.key not in (PRODUCE, FETCH)]
    paths = {api: list(array_paths(api.request)) for api in bridged}
    if not every_array:
        paths = {api: [max(found, key=len)] for api, found in paths.items() if found}
    found = [partial(_largest, api, path) for api, of_api in paths.items() for path in of_api]
    return [*found, *(partial(lambda one: one, one) for one in (*_fetches(), *_produces()))]


def array_paths(message: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """`("topics",)`, `("topics", "partitions")`: the names that lead to each array of a message class."""
    for name, hint in _hints(message).items():
        path = (*before, name)
        inner = _element(hint)
        if inner is not None:
            yield path
        if is_message(inner if inner is not None else hint):
            yield from array_paths(inner if inner is not None else hint, path)


def _largest(api: Api, path: tuple[str, ...]) -> Largest:
    one, two = (Maker(path, count).make(api.request) for count in (1, 2))
    sizes = [len(encode(request, api.key, api.max_version, "request")) for request in (one, two)]
    by_elements = (request_elements_max(api.key) - _elements(one)) // (_elements(two) - _elements(one))
    by_bytes = FRAME_BYTES_MAX // max(1, sizes[1] - sizes[0] + 5)  # names grow by a few digits
    count = min(by_elements, by_bytes)
    body = encode(Maker(path, count).make(api.request), api.key, api.max_version, "request")
    frame = request_frame(api.key, api.max_version, 1, "largest", body)
    return Largest(f"{api.name} {'.'.join(path)} × {count}", api, frame)


class Maker:
    """Builds a message whose array at `path` is long; every other array has one element."""

    def __init__(self, path: tuple[str, ...], count: int) -> None:
        self._path = path
        self._count = count
        self._number = 0

    def make(self, message: Any, before: tuple[str, ...] = ()) -> Any:
        return message(**{name: self._value(hint, (*before, name)) for name, hint in _hints(message).items()})

    def _value(self, hint: Any, path: tuple[str, ...]) -> Any:
        inner = _element(hint)
        if inner is not None:
            return tuple(self._one(inner, path) for _ in range(self._count if path == self._path else 1))
        return self._one(hint, path)

    def _one(self, hint: Any, path: tuple[str, ...]) -> Any:
        self._number += 1
        if is_message(hint):
            return self.make(hint, path)
        if path[-1] == "group_id":
            return "largest"
        plain: dict[Any, Any] = {
            str: f"n{self._number}", bytes: b"", bool: False, int: self._number % 128, float: 0.0,
        }  # fmt: skip
        return UUID(int=self._number) if hint is UUID else plain[hint]


@cache
def _hints(message: Any) -> dict[str, Any]:
    hints = get_type_hints(message)
    return {name: _not_none(hints[name]) for name in fields_of(message)}


def _not_none(hint: Any) -> Any:
    if get_origin(hint) is UnionType:
        return next(arg for arg in get_args(hint) if arg is not NoneType)
    return hint


def _element(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is tuple else None


def _elements(message: Any) -> int:
    count = 0
    for name in fields_of(type(message)):
        value = getattr(message, name)
        if isinstance(value, tuple) and not is_message(value):
            count += len(value) + sum(_elements(one) for one in value if is_message(one))
        elif is_message(value):
            count += _elements(value)
    return count


# The two that are written by hand, in versions with names: topic "t" has as many partitions as the test gave it


def _fetches() -> Iterator[Largest]:
    head = struct.pack(">iiiibii", -1, 0, 1, 1 << 20, 0, 0, 0)
    count = FETCH_ELEMENTS_MAX - 1
    partitions = b"".join(struct.pack(">iiqqi", index, -1, 0, -1, 1 << 20) for index in range(count))
    one_topic = struct.pack(">ih1si", 1, 1, b"t", count) + partitions
    topics = b"".join(struct.pack(">h6si", 6, b"%06d" % number, 0) for number in range(FETCH_ELEMENTS_MAX))
    for name, body in (("partitions", one_topic), ("topics", struct.pack(">i", FETCH_ELEMENTS_MAX) + topics)):
        frame = request_frame(FETCH, 10, 1, "largest", head + body + struct.pack(">i", 0))
        yield Largest(f"Fetch {name}", APIS[FETCH], frame)


def _produces() -> Iterator[Largest]:
    count = PRODUCE_ELEMENTS_MAX - 1
    head = struct.pack(">hhi", -1, 1, 30_000)
    for name, records in (("no records", None), ("rubbish", bytes(100))):
        length = -1 if records is None else len(records)
        partitions = b"".join(struct.pack(">ii", index, length) + (records or b"") for index in range(count))
        body = head + struct.pack(">ih1si", 1, 1, b"t", count) + partitions
        yield Largest(f"Produce {name}", APIS[PRODUCE], request_frame(PRODUCE, 7, 1, "largest", body))
