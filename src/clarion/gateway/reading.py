"""Messages of a topic from a place on: the place, what is there, and waiting for more.

A place is a next offset for each partition that is read, written as `0:12,1:7`: the answer to one read says where the
next one begins, and so do the ids of server-sent events. Keys and values are decoded off the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from clarion.broker.authorizer import Operation, Principal
from clarion.cluster import Topic
from clarion.gateway.brokers import READ_AGAIN_SECONDS, Brokers
from clarion.gateway.message_forms import TIMESTAMP_MAX, record_to_json
from clarion.gateway.problems import HttpProblem
from clarion.gateway.read_room import ReadTurn
from clarion.model.errors import ErrorCode, KafkaError
from clarion.replication import Partition
from clarion.wire.batch import read_header
from clarion.wire.records import Record, iter_records

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_END: Final = -1  # as ListOffsets asks for it
_START: Final = -2
MESSAGES_MAX: Final = 1_000  # in one answer; the next one goes on behind it
BYTES_MAX: Final = 1024 * 1024  # of batches read for one answer, and of what comes out of them, but for one message
_BATCHES_AT_ONCE_BYTES: Final = 16 * 1024  # more is decoded in a thread
PARTITIONS_MAX: Final = 500  # read at once: a place of so many is a header of 6 KB

Place = dict[int, int]  # the next offset of each partition


class FoundMessage(NamedTuple):
    partition: int
    record: Record


class ReadResult(NamedTuple):
    found: list[FoundMessage]
    place: Place


class PartitionEnds(NamedTuple):
    partition: int
    start_offset: int
    high_watermark: int


# ------------------------------------------------------------------------------------------------ places


def write_place(place: Mapping[int, int]) -> str:
    return ",".join(f"{partition}:{offset}" for partition, offset in sorted(place.items()))


def read_place(text: str) -> Place:
    place: Place = {}
    for part in text.split(","):
        partition, colon, offset = part.partition(":")
        if not (colon and _is_number(partition) and _is_number(offset)):
            raise HttpProblem(
                422,
                f"{text[:100]!r} is no place: it is what an answer gave as `next`, as in 0:12,1:7",
                kind="invalid-place",
            )
        place[int(partition)] = int(offset)
    return place


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 20


def read_time(text: str) -> int:
    """Milliseconds since 1970, or a time as ISO 8601 writes it."""
    if _is_number(text):
        return min(int(text), TIMESTAMP_MAX)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise HttpProblem(
            422,
            f"{text[:100]!r} is neither earliest, latest, milliseconds since 1970 nor a time with its zone, as "
            "2026-01-31T12:00:00Z",
            kind="invalid-time",
        )
    return max(0, int(moment.timestamp() * 1000))


class MessageReader:
    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    async def begin(self, who: Principal, topic: Topic, partitions: Iterable[int], start: str) -> Place:
        """Where `start` is: the earliest, the latest, or the first at a time."""
        indexes = list(partitions)
        if len(indexes) > PARTITIONS_MAX:
            raise HttpProblem(
                422, f"{topic.name} has {topic.partition_count} partitions; name one", kind="too-many-partitions"
            )
        asked = {EARLIEST: _START, LATEST: _END}.get(start)
        timestamp = read_time(start) if asked is None else asked
        offsets = await asyncio.gather(*(self._begin(who, topic, index, timestamp) for index in indexes))
        return dict(zip(indexes, offsets, strict=True))

    async def _begin(self, who: Principal, topic: Topic, index: int, timestamp: int) -> int:
        offset = await self._brokers.offset_at(who, topic, index, timestamp)
        return offset if offset >= 0 else await self._brokers.offset_at(who, topic, index, _END)

    async def ends(self, who: Principal, topic: Topic, index: int) -> PartitionEnds:
        start, end = await asyncio.gather(
            self._brokers.offset_at(who, topic, index, _START), self._brokers.offset_at(who, topic, index, _END)
        )
        return PartitionEnds(index, start, end)

    async def grown(self, who: Principal, topic: Topic, place: Place) -> tuple[Topic, Place]:
        """The topic as it is now, and a place in all of its partitions: those that are new are read from their start.
        KafkaError if it is gone, also if there is another one of its name."""
        now = self._brokers.broker.image.topics_by_id.get(topic.id)
        if now is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic.name} has been deleted")
        added = [index for index in range(now.partition_count) if index not in place]
        return now, {**place, **(await self.begin(who, now, added, EARLIEST) if added else {})}

    async def nearest(self, who: Principal, topic: Topic, place: Place) -> Place:
        """Where what is at a place is gone already: the first that is there."""
        ends = await asyncio.gather(*(self.ends(who, topic, index) for index in place))
        return {
            one.partition: place[one.partition]
            if one.start_offset <= place[one.partition] <= one.high_watermark
            else one.start_offset
            for one in ends
        }

    async def read(
        self,
        who: Principal,
        topic: Topic,
        place: Place,
        *,
        messages_max: int,
        wait_seconds: float = 0.0,
        bytes_max: int = BYTES_MAX,
        turn: ReadTurn | None = None,
    ) -> ReadResult:
        """At most so many messages, partition by partition, the one that was behind longest first."""
        deadline = asyncio.get_running_loop().time() + wait_seconds
        while True:
            if turn is not None:
                await turn.take()
            result = await self._read_now(who, topic, place, messages_max, bytes_max)
            left = deadline - asyncio.get_running_loop().time()
            if result.found or left <= 0:
                return result
            if turn is not None:
                turn.give_back()
            await self._news(topic, result.place, left)

    async def _read_now(
        self, who: Principal, topic: Topic, place: Place, messages_max: int, bytes_left: int
    ) -> ReadResult:
        found: list[FoundMessage] = []
        after = dict(place)
        for index in list(place):
            room = messages_max - len(found)
            if room <= 0 or bytes_left <= 0:
                break
            records, after[index], size = await self._read_one(who, topic, index, place[index], room, bytes_left)
            found += [FoundMessage(index, record) for record in records]
            bytes_left -= size
            if records:  # next time the others come before it
                after[index] = after.pop(index)
        return ReadResult(found, after)

    async def _read_one(
        self, who: Principal, topic: Topic, index: int, offset: int, messages_max: int, bytes_max: int
    ) -> tuple[list[Record], int, int]:
        batches, high_watermark, _ = await self._brokers.read(who, topic, index, offset, bytes_max=bytes_max)
        if not batches:
            return [], offset, 0
        work = (batches, offset, min(high_watermark, 1 << 62), messages_max, bytes_max)
        if sum(map(len, batches)) > _BATCHES_AT_ONCE_BYTES or any(read_header(one).compression for one in batches):
            return await self._brokers.broker.turns.aside(_decode, *work)
        return _decode(*work)

    async def _news(self, topic: Topic, place: Place, seconds: float) -> None:
        """Returns when there may be more, or the time is over."""
        brokers = self._brokers
        here = [index for index in place if brokers.is_led_here(topic, index)]
        seconds = seconds if len(here) == len(place) else min(seconds, READ_AGAIN_SECONDS)
        partitions = [brokers.broker.resolver.partition(topic, index) for index in here]
        news = _NewsOfMany({id(one): place[index] for one, index in zip(partitions, here, strict=True)})
        for one in partitions:
            one.watchers[news] = None
            news.on_progress(one)
        try:
            await asyncio.wait([news.done], timeout=seconds)
        finally:
            for one in partitions:
                one.watchers.pop(news, None)


class _NewsOfMany:
    """Implements `replication.Watcher`, for several partitions at once."""

    __slots__ = ("_offsets", "done")

    def __init__(self, offsets: dict[int, int]) -> None:
        self._offsets = offsets
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_progress(self, partition: Partition) -> None:
        has_news = partition.is_gone or partition.high_watermark.offset > self._offsets.get(id(partition), 0)
        if has_news and not self.done.done():
            self.done.set_result(None)


def _decode(
    batches: list[bytes], offset: int, high_watermark: int, messages_max: int, bytes_max: int
) -> tuple[list[Record], int, int]:
    """The records from the offset on, the next offset, and how many bytes they have; at least one record, if any."""
    found: list[Record] = []
    size = 0
    for batch in batches:
        header = read_header(batch)
        if header.base_offset >= high_watermark:
            break
        if not header.is_control:
            for record in iter_records(batch):
                if record.offset < offset:
                    continue
                found.append(record)
                size += len(record.key or b"") + len(record.value or b"")
                offset = record.offset + 1
                if len(found) >= messages_max or size >= bytes_max:
                    return found, offset, size
        offset = max(offset, header.next_offset)
    return found, offset, size


def told_message(topic: Topic, found: FoundMessage, encoding: str) -> dict[str, Any]:
    return {"topic": topic.name, "partition": found.partition, **record_to_json(found.record, encoding)}


def told_messages(topic: Topic, found: Iterable[FoundMessage], encoding: str) -> Iterator[dict[str, Any]]:
    for one in found:
        yield told_message(topic, one, encoding)


def check_may_read(brokers: Brokers, who: Principal, text: str) -> Topic:
    return brokers.topic(who, Operation.READ, text)


def check_partition(topic: Topic, index: int) -> None:
    if not 0 <= index < topic.partition_count:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"there is no partition {topic.name}-{index}: it has {topic.partition_count}, from 0 on",
        )
