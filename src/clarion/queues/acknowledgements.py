"""What consumers say of records: one word for a range of them, or one for each."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from clarion.model.errors import ErrorCode, KafkaError
from clarion.queues.rules import DELAY_MAX_MS, EXTEND_MAX_MS, REASON_MAX

_TYPES_MAX: Final = 50_000  # five times the largest window; as many take some ten milliseconds


RULES_DECIDE: Final = -1  # how long what is released has to wait


class AcknowledgeType(IntEnum):
    """Kafka's numbers."""

    GAP = 0  # there is no record at this offset: compacted, or a transaction's marker
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class Acknowledgement(NamedTuple):
    """One type for all offsets from first to last, or one for each. What Kafka's clients cannot say has defaults."""

    first: int
    last: int
    types: Sequence[int]
    delay_ms: int = RULES_DECIDE  # what is released comes again no earlier
    reason: str = ""  # why it is rejected
    extend_ms: int = 0  # a renewed lock ends so much later than now; 0: as the rules say
    deliveries: int = 0  # of which delivery this is said, where it is known: an earlier one's word no longer counts


def check_acknowledgements(acknowledgements: Sequence[Acknowledgement], *, may_renew: bool) -> None:
    """What is wrong with them whatever the state is: INVALID_REQUEST."""
    is_short = len(acknowledgements) <= _TYPES_MAX and sum(len(one.types) for one in acknowledgements) <= _TYPES_MAX
    if not is_short:
        raise _refused(f"more than {_TYPES_MAX} acknowledgements of one partition in one request")
    newest = AcknowledgeType.RENEW if may_renew else AcknowledgeType.REJECT
    last = -1
    for one in acknowledgements:  # thousands, in a request that is nothing else: what is not looked at costs nothing
        if not last < one.first <= one.last:
            raise _refused("acknowledgements must be in order, and must not overlap")
        last = one.last
        if len(one.types) not in (1, one.last - one.first + 1):
            raise _refused("one type for all records, or one for each")
        if not 0 <= min(one.types) <= max(one.types) <= newest:
            raise _refused("no such type of acknowledgement")
        if one.delay_ms != RULES_DECIDE or one.reason or one.extend_ms:
            _check_own(one)


def _check_own(one: Acknowledgement) -> None:
    if not RULES_DECIDE <= one.delay_ms <= DELAY_MAX_MS:
        raise _refused(f"a record waits for {DELAY_MAX_MS} ms at most")
    if not 0 <= one.extend_ms <= EXTEND_MAX_MS:
        raise _refused(f"a lock is extended by {EXTEND_MAX_MS} ms at most")
    if len(one.reason) > REASON_MAX:
        raise _refused(f"a reason has {REASON_MAX} characters at most")


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


def _refused(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
