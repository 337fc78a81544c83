"""What consumers say of records: one word for a range of them, or one for each."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from clarion.model.errors import ErrorCode, KafkaError

_TYPES_MAX: Final = 50_000  # five times the largest window; as many take some ten milliseconds


class AcknowledgeType(IntEnum):
    """Kafka's numbers."""

    GAP = 0  # there is no record at this offset: compacted, or a transaction's marker
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class Acknowledgement(NamedTuple):
    """One type for all offsets from first to last, or one for each."""

    first: int
    last: int
    types: Sequence[int]
    delay_ms: int = 0  # what is released comes again no earlier


def check_acknowledgements(acknowledgements: Sequence[Acknowledgement], *, may_renew: bool) -> None:
    """What is wrong with them whatever the state is: INVALID_REQUEST."""
    is_short = len(acknowledgements) <= _TYPES_MAX and sum(len(one.types) for one in acknowledgements) <= _TYPES_MAX
    _require(is_short, f"more than {_TYPES_MAX} acknowledgements of one partition in one request")
    last = -1
    for one in acknowledgements:
        _require(last < one.first <= one.last, "acknowledgements must be in order, and must not overlap")
        _require(len(one.types) in (1, one.last - one.first + 1), "one type for all records, or one for each")
        newest = AcknowledgeType.RENEW if may_renew else AcknowledgeType.REJECT
        _require(all(0 <= kind <= newest for kind in one.types), "no such type of acknowledgement")
        last = one.last


def by_type(one: Acknowledgement) -> list[tuple[int, int, int]]:
    """Ranges of the same type."""
    if len(one.types) == 1:
        return [(one.first, one.last, one.types[0])]
    ranges = []
    first = one.first
    for offset, kind in enumerate(one.types[1:], one.first + 1):
        if kind != one.types[first - one.first]:
            ranges.append((first, offset - 1, one.types[first - one.first]))
            first = offset
    ranges.append((first, one.last, one.types[first - one.first]))
    return ranges


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
