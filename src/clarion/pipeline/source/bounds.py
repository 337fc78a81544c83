"""Where reading begins and ends, as the options say it: by name, by offset, or by time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

from clarion.model.ids import TopicPartition
from clarion.pipeline.connector_options import OptionError, Options
from clarion.pipeline.kafka.offsets import EARLIEST, LATEST


@dataclass(frozen=True, slots=True)
class Earliest:
    pass


@dataclass(frozen=True, slots=True)
class Latest:
    pass


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset for every partition; -2 stands for the earliest, -1 for the latest."""

    offsets: tuple[tuple[TopicPartition, int], ...]


@dataclass(frozen=True, slots=True)
class AtTimes:
    """A time for every partition: the first message at or after it. `every` is for all that are not named."""

    times_ms: tuple[tuple[TopicPartition, int], ...]
    every_ms: int | None = None


Bound = Earliest | Latest | AtOffsets | AtTimes

STARTING_NAMES: Final = ("startingOffsets", "startingOffsetsByTimestamp", "startingTimestamp")
ENDING_NAMES: Final = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")


def starting_bound(options: Options) -> Bound | None:
    """None where the options say nothing: a batch then begins at the earliest, a stream at the latest."""
    return _bound(options, "starting")


def ending_bound(options: Options) -> Bound | None:
    return _bound(options, "ending")


def _bound(options: Options, which: str) -> Bound | None:
    """As in Spark's Kafka connector, a time for all goes before times, and times before offsets."""
    for name, read in (
        (f"{which}Timestamp", lambda text: AtTimes((), _milliseconds(text))),
        (f"{which}OffsetsByTimestamp", lambda text: AtTimes(_places(text))),
        (f"{which}Offsets", named_or_offsets),
    ):
        if name in options:
            return options.read(name, read, None)
    return None


def _milliseconds(text: str) -> int:
    if not text.strip().isdigit():
        raise ValueError(f"{text!r} is not a time in milliseconds since 1970")
    return int(text)


def named_or_offsets(text: str) -> Bound:
    """`earliest`, `latest`, or the offsets as JSON; ValueError with words for people."""
    match text.strip().lower():
        case "earliest":
            return Earliest()
        case "latest":
            return Latest()
    offsets = _places(text)
    for tp, offset in offsets:
        if offset < EARLIEST:
            raise ValueError(f"{tp} has offset {offset}; -2 is the earliest, -1 the latest")
    return AtOffsets(offsets)


def _places(text: str) -> tuple[tuple[TopicPartition, int], ...]:
    """`{"topic": {"0": 23, "1": -2}}`"""
    try:
        document = json.loads(text)
    except json.JSONDecodeError:
        raise ValueError(f"{text!r} is neither earliest, latest nor JSON") from None
    if not isinstance(document, dict):
        raise ValueError(f"{text!r} is not an object of topics")
    return tuple(sorted(_flat(document).items()))


def _flat(document: Mapping[str, Any]) -> dict[TopicPartition, int]:
    out: dict[TopicPartition, int] = {}
    for topic, partitions in document.items():
        if not isinstance(partitions, dict):
            raise ValueError(f'{topic} needs an object like {{"0": 23}}')
        for partition, number in partitions.items():
            if partition in ("id", "epochs"):  # our own offsets, as they stand in a checkpoint, are taken as well
                continue
            if not partition.isdigit() or not isinstance(number, int):
                raise ValueError(f'{topic} needs an object like {{"0": 23}}')
            out[TopicPartition(topic, int(partition))] = number
    return out


def check_batch(starting: Bound, ending: Bound) -> None:
    """A batch neither begins at the latest nor ends at the earliest."""
    if isinstance(starting, Latest) or (isinstance(starting, AtOffsets) and _has(starting, LATEST)):
        raise OptionError("option startingOffsets: a batch query cannot begin at the latest offset")
    if isinstance(ending, Earliest) or (isinstance(ending, AtOffsets) and _has(ending, EARLIEST)):
        raise OptionError("option endingOffsets: a batch query cannot end at the earliest offset")


def moves(bound: Bound) -> bool:
    """Whether resolving it again later may give greater offsets although nothing was deleted."""
    return not isinstance(bound, Earliest | AtOffsets) or (isinstance(bound, AtOffsets) and _has(bound, LATEST))


def told_apart(bound: Bound) -> str:
    """A few letters, the same for bounds that mean the same: nothing for the latest. A time may be one that was counted
    back from now, so that those of two runs differ and mean the same all the same."""
    match bound:
        case AtTimes():
            return "time:"
        case AtOffsets(offsets):
            return f"{crc32(repr(offsets).encode()):08x}:"
    return ""


def _has(bound: AtOffsets, offset: int) -> bool:
    return any(one == offset for _, one in bound.offsets)
