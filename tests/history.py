"""What clients saw, and whether a log that keeps its promises can explain it: one checker for real and simulated runs.

A history is a list of operations. A `Send` stands where it was made, a `Poll` where it returned, a `Commit` where it
was tried and again where it was acknowledged, an `Asked` where somebody began to ask what is committed, a `Committed`
where he was told. Values are unique. What `anomalies` finds, named as in Jepsen's kafka workload where it has a name
there:

    lost-write            an acknowledged value is missing although something behind it was read
    unseen                an acknowledged value was never read, nor anything behind it
    phantom               a value was read that nobody sent
    aborted-read          a value was read whose send was refused for good
    duplicate             one value at two offsets
    inconsistent-offsets  two values at one offset, or a value elsewhere than its acknowledgement said
    nonmonotonic-send     a producer's later value comes before its earlier one
    nonmonotonic-poll     a consumer was given an offset again, or went back
    poll-skip             a consumer was led past an offset that holds a value
    gap                   an offset without a value, in a log that has no reason for one
    commit-lost           a group's committed offset is older than what was acknowledged, or told, before the question
    commit-phantom        a group's committed offset that nobody had tried to commit by then
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Outcome(Enum):
    UNKNOWN = "unknown"  # it may be in the log, or come to be
    ACKED = "acked"
    REFUSED = "refused"  # it is not in the log and never will be


@dataclass(slots=True)
class Send:
    producer: str
    partition: str
    value: str
    outcome: Outcome = Outcome.UNKNOWN
    offset: int | None = None

    def acked(self, offset: int | None) -> None:
        self.outcome, self.offset = Outcome.ACKED, offset

    def refused(self) -> None:
        self.outcome = Outcome.REFUSED


@dataclass(slots=True)
class Poll:
    """What one consumer was given by one call. A consumer that seeks is another consumer from then on."""

    consumer: str
    partition: str
    messages: list[tuple[int, str]]


@dataclass(slots=True)
class Commit:
    group: str
    partition: str
    offset: int
    outcome: Outcome = Outcome.UNKNOWN


@dataclass(slots=True, eq=False)
class Asked:
    """Every answer to it knows what was known by now; what comes to be known until then it may know or not."""

    group: str
    partition: str


@dataclass(slots=True)
class Committed:
    """What a group has committed; None where there is nothing. `asked`: None if nothing happened since it was."""

    group: str
    partition: str
    offset: int | None
    asked: Asked | None = None


Operation = Send | Poll | Commit | Asked | Committed


class Anomaly(NamedTuple):
    kind: str
    where: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind} in {self.where}: {self.detail}"


def anomalies(history: Iterable[Operation], *, dense: bool = True, start_offsets: dict[str, int] | None = None):
    """All of them. `dense`: every offset has a value (no compaction, no markers). `start_offsets`: what lies before
    was deleted on purpose, and is missed by nobody."""
    operations = list(history)
    found: list[Anomaly] = []
    starts = start_offsets or {}
    for name, log in _logs(operations).items():
        found += log.anomalies(dense=dense, start=starts.get(name, 0))
    found += _commit_anomalies(operations)
    return found


def check(history: Iterable[Operation], **how: object) -> None:
    """AssertionError with the first few anomalies, if there are any."""
    found = anomalies(history, **how)  # type: ignore[arg-type]
    shown = "\n".join(map(str, found[:20]))
    assert not found, f"{len(found)} anomalies\n{shown}"


class PartitionHistory:
    """Everything that is known of one partition."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sends: list[Send] = []
        self.polls: list[Poll] = []

    def anomalies(self, *, dense: bool, start: int) -> Iterator[Anomaly]:
        self._values: dict[int, set[str]] = defaultdict(set)  # by offset
        self._offsets: dict[str, set[int]] = defaultdict(set)  # by value, as read
        for poll in self.polls:
            for offset, value in poll.messages:
                self._values[offset].add(value)
                self._offsets[value].add(offset)
        yield from self._origins()
        yield from self._places()
        yield from self._losses(start)
        yield from self._orders()
        yield from self._walks()
        if dense:
            yield from self._gaps(start)

    def _found(self, kind: str, detail: str) -> Anomaly:
        return Anomaly(kind, self.name, detail)

    def _origins(self) -> Iterator[Anomaly]:
        sent = {send.value: send for send in self.sends}
        for value, offsets in self._offsets.items():
            if value not in sent:
                yield self._found("phantom", f"nobody sent {value!r}, read at {sorted(offsets)}")
            elif sent[value].outcome is Outcome.REFUSED:
                yield self._found("aborted-read", f"{value!r} was refused, and read at {sorted(offsets)}")

    def _places(self) -> Iterator[Anomaly]:
        for value, offsets in self._offsets.items():
            if len(offsets) > 1:
                yield self._found("duplicate", f"{value!r} at {sorted(offsets)}")
        for offset, values in self._values.items():
            if len(values) > 1:
                yield self._found("inconsistent-offsets", f"at {offset}: {sorted(values)}")
        acked: dict[int, str] = {}
        for send in self._acked_with_offset():
            read = self._values.get(send.offset, {send.value})
            if send.value not in read:
                yield self._found("inconsistent-offsets", f"{send.value!r} acked at {send.offset}: {sorted(read)}")
            if acked.setdefault(send.offset, send.value) != send.value:
                yield self._found(
                    "inconsistent-offsets", f"{send.offset} acked for {acked[send.offset]!r}, {send.value!r}"
                )

    def _losses(self, start: int) -> Iterator[Anomaly]:
        last_read = max(self._values, default=-1)
        for send in self.sends:
            if send.outcome is not Outcome.ACKED or send.value in self._offsets:
                continue
            if send.offset is not None and send.offset < start:
                continue
            is_behind = send.offset is not None and send.offset > last_read
            yield self._found("unseen" if is_behind else "lost-write", f"{send.value!r}, acked at {send.offset}")

    def _orders(self) -> Iterator[Anomaly]:
        """By the offset read, or acknowledged where it was not read; in the order in which they were sent."""
        last: dict[str, tuple[int, str]] = {}
        for send in self.sends:
            read = self._offsets.get(send.value)
            offset = min(read) if read else send.offset
            if offset is None:
                continue
            before = last.get(send.producer)
            if before is not None and offset <= before[0]:
                detail = f"{send.producer} sent {before[1]!r} (at {before[0]}) before {send.value!r} (at {offset})"
                yield self._found("nonmonotonic-send", detail)
            last[send.producer] = (offset, send.value)

    def _walks(self) -> Iterator[Anomaly]:
        known = sorted({*self._values, *(send.offset for send in self._acked_with_offset())})
        position: dict[str, int] = {}
        for poll in self.polls:
            for offset, _ in poll.messages:
                before = position.get(poll.consumer)
                position[poll.consumer] = offset
                if before is None:
                    continue
                if offset <= before:
                    yield self._found("nonmonotonic-poll", f"{poll.consumer} got {offset} after {before}")
                elif offset > before + 1 and known[bisect_left(known, before + 1)] < offset:
                    yield self._found("poll-skip", f"{poll.consumer} got {offset} after {before}")

    def _gaps(self, start: int) -> Iterator[Anomaly]:
        expected = start
        for offset in sorted(self._values):
            if offset > expected:
                yield self._found("gap", f"nothing at {expected} to {offset - 1}")
            expected = max(expected, offset + 1)

    def _acked_with_offset(self) -> Iterator[Send]:
        return (send for send in self.sends if send.outcome is Outcome.ACKED and send.offset is not None)


def _logs(operations: list[Operation]) -> dict[str, PartitionHistory]:
    logs: dict[str, PartitionHistory] = {}
    for one in operations:
        if isinstance(one, Send):
            logs.setdefault(one.partition, PartitionHistory(one.partition)).sends.append(one)
        elif isinstance(one, Poll):
            logs.setdefault(one.partition, PartitionHistory(one.partition)).polls.append(one)
    return logs


def _commit_anomalies(operations: list[Operation]) -> Iterator[Anomaly]:
    """Of each group and partition one client commits at a time, offsets that only grow. Many may ask at a time: who
    was asked earlier and answers later may know more, and whoever asked meanwhile need not."""
    tried: dict[tuple[str, str], set[int]] = defaultdict(set)
    known: dict[tuple[str, str], int] = defaultdict(lambda: -1)
    known_when: dict[Asked, int] = {}
    for one in operations:
        if isinstance(one, Send | Poll):
            continue
        where = (one.group, one.partition)
        if isinstance(one, Asked):
            known_when[one] = known[where]
        elif isinstance(one, Commit):
            tried[where].add(one.offset)
            if one.outcome is Outcome.ACKED:
                known[where] = max(one.offset, known[where])
        else:
            least = known[where] if one.asked is None else known_when[one.asked]
            offset = -1 if one.offset is None else one.offset
            if offset < least:
                yield Anomaly("commit-lost", " ".join(where), f"{one.offset} after {least} was acknowledged or told")
            elif offset >= 0 and offset not in tried[where]:
                yield Anomaly("commit-phantom", " ".join(where), f"nobody committed {offset}")
            known[where] = max(offset, known[where])
