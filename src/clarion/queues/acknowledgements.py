"""What consumers say of records: one word for a range of them, or one for each."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from clarion.model.errors import ErrorCode, KafkaError
from clarion.queues.rules import DELAY_MAX_MS, EXTEND_MAX_MS, REASON_MAX

if TYPE_CHECKING:
    from clarion.wire.messages.share_groups import AcknowledgementBatch

_TYPES_MAX: Final = 50_000  # five times the largest window; as many take some ten milliseconds


RULES_DECIDE: Final = -1  # how long what is released has to wait


class AcknowledgeType(IntEnum):
    """Kafka's numbers."""

    GAP = 0  # there is no record at this offset: compacted, or a transaction's marker
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


_ACCEPT: Final = int(AcknowledgeType.ACCEPT)


class Acknowledgement(NamedTuple):
    """One type for all offsets from first to last, or one for each. What Kafka's clients cannot say has defaults."""

    first: int
    last: int
    types: Sequence[int]
    delay_ms: int = RULES_DECIDE  # what is released comes again no earlier
    reason: str = ""  # why it is rejected
    extend_ms: int = 0  # a renewed lock ends so much later than now; 0: as the rules say
    deliveries: int = 0  # of which delivery this is said, where it is known: an earlier one's word no longer counts


def said_in(batches: Sequence[AcknowledgementBatch]) -> list[Acknowledgement]:
    """What a request brings; of which delivery it is said, Kafka's clients do not tell."""
    new = tuple.__new__
    return [
        new(Acknowledgement, (first, last, types, delay_ms, reason, extend_ms, 0))
        for first, last, types, delay_ms, reason, extend_ms in batches
    ]


def check_acknowledgements(acknowledgements: Sequence[Acknowledgement], *, may_renew: bool) -> None:
    """What is wrong with them whatever the state is: INVALID_REQUEST."""
    is_short = len(acknowledgements) <= _TYPES_MAX and sum(len(one.types) for one in acknowledgements) <= _TYPES_MAX
    if not is_short:
        raise _refused(f"more than {_TYPES_MAX} acknowledgements of one partition in one request")
    newest = AcknowledgeType.RENEW if may_renew else AcknowledgeType.REJECT
    before = -1
    for first, last, types, delay_ms, reason, extend_ms, _ in acknowledgements:  # thousands, nearly all of them plain
        if not before < first <= last:
            raise _refused("acknowledgements must be in order, and must not overlap")
        before = last
        if len(types) != 1 and len(types) != last - first + 1:
            raise _refused("one type for all records, or one for each")
        if not (0 <= types[0] <= newest if len(types) == 1 else 0 <= min(types) <= max(types) <= newest):
            raise _refused("no such type of acknowledgement")
        if delay_ms != RULES_DECIDE or reason or extend_ms:
            _check_own(delay_ms, reason, extend_ms)


def _check_own(delay_ms: int, reason: str, extend_ms: int) -> None:
    if not RULES_DECIDE <= delay_ms <= DELAY_MAX_MS:
        raise _refused(f"a record waits for {DELAY_MAX_MS} ms at most")
    if not 0 <= extend_ms <= EXTEND_MAX_MS:
        raise _refused(f"a lock is extended by {EXTEND_MAX_MS} ms at most")
    if len(reason) > REASON_MAX:
        raise _refused(f"a reason has {REASON_MAX} characters at most")


def accepted_spans(acknowledgements: Sequence[Acknowledgement]) -> list[tuple[int, int]] | None:
    """The offsets, if all are of the kind that nearly all are: accepted, whichever delivery it was."""
    spans = []
    for first, last, types, _delay_ms, _reason, _extend_ms, deliveries in acknowledgements:
        if len(types) != 1 or types[0] != _ACCEPT or deliveries:
            return None
        spans.append((first, last))
    return spans


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
