"""Where a subscription is to read on: at the beginning, at the end, at a time, or at offsets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from clarion.model.durations import is_duration, parse_duration_ms
from clarion.model.errors import KafkaError
from clarion.model.ids import TopicPartition
from clarion.model.json_fields import JsonFields, refused

LATEST: Final = -1  # timestamps, as ListOffsets has them
EARLIEST: Final = -2


class Seek(NamedTuple):
    """Either a timestamp as ListOffsets has it, or offsets."""

    timestamp: int | None = None
    offsets: Mapping[TopicPartition, int] | None = None

    @classmethod
    def earliest(cls) -> Seek:
        return cls(EARLIEST)

    @classmethod
    def latest(cls) -> Seek:
        return cls(LATEST)

    @classmethod
    def from_json(cls, data: object, now_ms: int) -> Seek:
        """`{"to": "earliest"}`, `{"to": "latest"}`, `{"to": "1h"}` (ago), `{"to": "2026-11-16T12:00:00Z"}`, or
        `{"offsets": {"orders": {"0": 42}}}`."""
        found = JsonFields(data, "seek")
        to, offsets = found.text("to"), found.get("offsets")
        if (to is None) == (offsets is None):
            raise refused('write either "to": "earliest", "latest", a time or how long ago; or "offsets"')
        seek = cls(offsets=_read_offsets(offsets)) if to is None else cls(_read_time(to, found, now_ms))
        found.check_all_known()
        return seek

    def checked(
        self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        assert self.offsets is not None
        for place, offset in self.offsets.items():
            if place not in ends:
                raise refused(f"it does not read {place}")
            if not starts.get(place, 0) <= offset <= ends[place]:
                raise refused(f"{place} has the offsets {starts.get(place, 0)} to {ends[place]}, not {offset}")
        return dict(self.offsets)


def _read_time(to: str, found: JsonFields, now_ms: int) -> int:
    if to in ("earliest", "latest"):
        return EARLIEST if to == "earliest" else LATEST
    if is_duration(to):
        return max(0, now_ms - parse_duration_ms(to))
    try:
        return max(0, found.moment("to"))
    except KafkaError:
        raise refused(f"to {to[:100]!r}: write earliest, latest, a time such as 2026-11-16T12:00:00Z, or 1h") from None


def _read_offsets(offsets: object) -> dict[TopicPartition, int]:
    complaint = refused('offsets are written by topic and partition: {"orders": {"0": 42, "1": 17}}')
    if not isinstance(offsets, Mapping) or not offsets:
        raise complaint
    found: dict[TopicPartition, int] = {}
    for topic, of_topic in offsets.items():
        if not isinstance(of_topic, Mapping):
            raise complaint
        for index, offset in of_topic.items():
            if not str(index).isascii() or not str(index).isdigit() or type(offset) is not int or offset < 0:
                raise complaint
            found[TopicPartition(str(topic), int(index))] = offset
    return found
