"""A quarantine as it lies at a broker: its records, read and sent back.

The same record may be there twice, after a task that was tried again: `unique` counts it once. How far a quarantine has
been redriven is kept as the offsets of a group of its own, `<topic>.redrive`. Pipelines may write to it meanwhile: what
comes after it was opened is for the next one who opens it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from clarion.cli.errors import CliError, UsageError
from clarion.cli.link import Link, plain_errors
from clarion.cli.message import TextMessage

if TYPE_CHECKING:
    from confluent_kafka import Consumer

SUFFIX = ".quarantine"
REDRIVEN = "clarion.redriven"  # the header of a message that came back: from where
RECORDS_MAX = 100_000  # of one redrive: they are held in memory, and somebody should look first at more than that
_ANSWER_SECONDS_MAX = 15.0
_REDRIVES_MAX = 100  # of one record that stays bad


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record of a quarantine."""

    message: TextMessage
    is_redriven: bool = False

    @property
    def place(self) -> str:
        return f"{self.message.partition}:{self.message.offset}"

    @property
    def origin(self) -> tuple[str, int, int]:
        return self.header("topic"), int(self.header("partition") or -1), int(self.header("offset") or -1)

    @property
    def sizes(self) -> list[int]:
        """Of key and value, before anything was cut off."""
        key, value = self.message.key, self.message.value
        return [int(each) for each in re.findall(r"\d+", self.header("truncated"))] or _sizes(key, value)

    def is_of(self, key: bytes | None, value: bytes | None) -> bool:
        """Whether it is a copy, perhaps cut off, of a message with this key and value."""
        return (
            self.sizes == _sizes(key, value)
            and _begins_with(key, self.message.key)
            and _begins_with(value, self.message.value)
        )

    def header(self, name: str) -> str:
        found = next((value for key, value in self.message.headers if key == f"clarion.{name}"), None)
        return (found or b"").decode(errors="replace")


class QuarantineTopic:
    """One quarantine, read from the broker."""

    def __init__(self, link: Link, name: str) -> None:
        self._link = link
        self.topic = name
        self._ends: dict[int, tuple[int, int]] = {}
        self._redriven: dict[int, int] = {}

    def __enter__(self) -> QuarantineTopic:
        with plain_errors(self._link):
            there = self._link.admin().list_topics(timeout=_ANSWER_SECONDS_MAX).topics
            self.topic = _known(self.topic, there)
            self._consumer: Consumer = self._link.consumer(
                {
                    "group.id": f"{self.topic}.redrive",
                    "enable.auto.commit": False,
                    "enable.partition.eof": True,
                    "auto.offset.reset": "earliest",  # what retention has taken since we asked is skipped, no more
                }
            )
            places = [self._at(each) for each in sorted(there[self.topic].partitions)]
            self._ends = {
                each.partition: self._consumer.get_watermark_offsets(each, timeout=_ANSWER_SECONDS_MAX)
                for each in places
            }
            stored = self._consumer.committed(places, timeout=_ANSWER_SECONDS_MAX)
            self._redriven = {each.partition: max(each.offset, 0) for each in stored}
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def last(self, count: int) -> list[BadRecord]:
        """The last records, oldest first."""
        begin = {number: max(low, high - count) for number, (low, high) in self._ends.items()}
        found = sorted(self._read(begin), key=lambda each: each.message.timestamp_ms or 0)
        return found[-count:]

    def waiting(self, *, again: bool) -> list[BadRecord]:
        """What has not been redriven yet, or everything."""
        count = self.count_waiting(again=again)
        if count > RECORDS_MAX:
            raise CliError(f"{count:,} records; at most {RECORDS_MAX:,} at a time (choose places, or use --through)")
        return list(self._read(self.range(again=again)[0]))

    def count_waiting(self, *, again: bool = False) -> int:
        begin, end = self.range(again=again)
        return sum(end[number] - begin[number] for number in end)

    def at(self, place: tuple[int, int]) -> BadRecord:
        partition, offset = place
        low, high = self._ends.get(partition, (0, 0))
        if not low <= offset < high:
            raise CliError(f"{self.topic} has no record at {partition}:{offset}")
        first = next(iter(self._read({partition: offset})), None)
        if first is None or first.message.offset != offset:
            raise CliError(f"{self.topic} has no record at {partition}:{offset}")
        return first

    def send(self, records: Sequence[BadRecord], into: str | None) -> list[BadRecord]:
        """Returns those that could not be sent because only a part of them is left."""
        producer = self._link.producer({"enable.idempotence": True, "acks": "all"})
        cut: list[BadRecord] = []
        errors: list[Any] = []
        with plain_errors(self._link, "redrive"):
            for each in map(self._first, records):
                whole = self._whole(each)
                if whole is None:
                    cut.append(each)
                    continue
                headers: list[tuple[str, str | bytes | None]] = [*whole.headers]
                headers.append((REDRIVEN, f"{self.topic} {each.place}".encode()))
                topic, partition, _ = each.origin
                producer.produce(
                    into or topic, whole.value, whole.key, headers=headers, partition=-1 if into else partition,
                    on_delivery=lambda error, _: errors.append(error) if error else None,
                )  # fmt: skip
            left = producer.flush(_ANSWER_SECONDS_MAX)
        if errors or left:
            raise CliError(f"{len(errors) + left} of {len(records) - len(cut)} records were not acknowledged: "
                           f"{errors[0] if errors else 'no answer in time'}")  # fmt: skip
        return cut

    def remember(self) -> None:
        """That everything up to here has been redriven."""
        done = [self._at(number, high) for number, (_, high) in self._ends.items()]
        with plain_errors(self._link, "remember what was redriven"):
            self._consumer.commit(offsets=done, asynchronous=False)

    @property
    def count(self) -> int:
        return sum(high - low for low, high in self._ends.values())

    def range(self, *, again: bool = False) -> tuple[dict[int, int], dict[int, int]]:
        """From where and to where it is to be redriven: what has not been yet, or everything."""
        begin = {n: low if again else max(low, self._redriven[n]) for n, (low, _) in self._ends.items()}
        return begin, {number: high for number, (_, high) in self._ends.items()}

    def _first(self, record: BadRecord) -> BadRecord:
        """What came back through its pipeline and was bad again says that it came from here: the record of that."""
        for _ in range(_REDRIVES_MAX):
            topic, partition, offset = record.origin
            if topic != self.topic:
                break
            record = self.at((partition, offset))
        return record

    def _whole(self, record: BadRecord) -> TextMessage | None:
        """The original with its headers, if it is still where it was; else the copy, unless that is cut off."""
        original = self._original(*record.origin)
        if original is not None and record.is_of(original.key, original.value):
            return original
        return None if record.header("truncated") else replace(record.message, headers=())

    def _original(self, topic: str, partition: int, offset: int) -> TextMessage | None:
        from confluent_kafka import KafkaException, TopicPartition

        try:
            low, high = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), _ANSWER_SECONDS_MAX)
        except KafkaException:  # the topic is gone; the copy is not
            return None
        if not low <= offset < high:
            return None
        self._consumer.assign([TopicPartition(topic, partition, offset)])
        found = self._consumer.poll(_ANSWER_SECONDS_MAX)
        is_it = found is not None and not found.error() and found.offset() == offset
        return _message(found) if is_it else None

    def _read(self, begin: Mapping[int, int]) -> Iterator[BadRecord]:
        """From there to where the quarantine ended when it was opened."""
        unfinished = {number: self._ends[number][1] for number, at in begin.items() if at < self._ends[number][1]}
        self._consumer.assign([self._at(number, begin[number]) for number in unfinished])
        deadline = time.monotonic() + _ANSWER_SECONDS_MAX
        while unfinished:
            for found in self._consumer.consume(500, timeout=1.0):
                number, offset = found.partition() or 0, found.offset() or 0
                end = unfinished.get(number, 0)
                if found.error():
                    self._check(found.error())
                elif offset < end:
                    yield BadRecord(_message(found), offset < self._redriven.get(number, 0))
                if found.error() or offset + 1 >= end:
                    unfinished.pop(number, None)
                deadline = time.monotonic() + _ANSWER_SECONDS_MAX
            if time.monotonic() > deadline:
                raise CliError(f"{self.topic}: the broker stopped answering")

    def _check(self, error: Any) -> None:
        """The end of a partition is no trouble; whatever else keeps records from us must not pass for it."""
        from confluent_kafka import KafkaError

        if error.code() != KafkaError._PARTITION_EOF:
            raise CliError(f"{self.topic}: {error.str()}")

    def _at(self, partition: int, offset: int = -1001) -> Any:
        from confluent_kafka import TopicPartition

        return TopicPartition(self.topic, partition, offset)


def parse_place(text: str) -> tuple[int, int]:
    """`12` or `0:12`: partition and offset."""
    partition, _, offset = text.rpartition(":")
    partition = partition or "0"
    if not partition.isdigit() or not offset.isdigit():
        raise UsageError(f"{text}: write an offset (12) or partition:offset (0:12), as `list` shows it")
    return int(partition), int(offset)


def unique(records: Sequence[BadRecord]) -> list[BadRecord]:
    """Each record once: a task that was tried again has sent its bad records again, perhaps cut off. Another key, value
    or time at the same place is another record: a topic that was made again begins at offset 0 once more."""
    found: list[BadRecord] = []
    places: dict[tuple[str, int, int], list[int]] = {}
    for each in records:
        mates = places.setdefault(each.origin, [])
        mate = next((at for at in mates if _is_same(found[at], each)), None)
        if mate is None:
            mates.append(len(found))
            found.append(each)
        elif found[mate].header("truncated") and not each.header("truncated"):
            found[mate] = each
    return found


def _is_same(one: BadRecord, other: BadRecord) -> bool:
    long, short = (other, one) if one.header("truncated") else (one, other)
    pairs = ((long.message.key, short.message.key), (long.message.value, short.message.value))
    return (
        one.header("timestamp") == other.header("timestamp")
        and one.sizes == other.sizes
        and all(_begins_with(*each) or _begins_with(*reversed(each)) for each in pairs)
    )


def quarantines(link: Link) -> list[str]:
    with plain_errors(link):
        topics = link.admin().list_topics(timeout=_ANSWER_SECONDS_MAX).topics
    return sorted(each for each in topics if each.endswith(SUFFIX))


def _known(name: str, topics: Mapping[str, Any]) -> str:
    for each in (name, f"{name}{SUFFIX}") if name.endswith(SUFFIX) else (f"{name}{SUFFIX}", name):
        if each in topics:
            return each
    there = ", ".join(sorted(each for each in topics if each.endswith(SUFFIX))) or "none"
    raise CliError(f"there is no quarantine {name}{SUFFIX} (known: {there})")


def _message(found: Any) -> TextMessage:
    return TextMessage(
        key=found.key(),
        value=found.value(),
        headers=tuple(found.headers() or ()),
        partition=found.partition(),
        timestamp_ms=found.timestamp()[1],
        topic=found.topic(),
        offset=found.offset(),
    )


def _sizes(key: bytes | None, value: bytes | None) -> list[int]:
    return [len(key or b""), len(value or b"")]


def _begins_with(whole: bytes | None, part: bytes | None) -> bool:
    return whole == part or (whole is not None and part is not None and whole.startswith(part))
