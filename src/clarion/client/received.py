"""A message that was read, and what the application says of it."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from clarion.client.arguments import Duration, milliseconds
from clarion.client.errors import InvalidRequest
from clarion.model.durations import write_duration
from clarion.queues.rules import DELAY_MAX_MS, EXTEND_MAX_MS, REASON_MAX

if TYPE_CHECKING:
    from datetime import datetime


class SettlementKind(IntEnum):
    """What becomes of a message; Kafka's numbers of acknowledgement types."""

    GAP = 0  # there is no message at this offset
    ACK = 1
    RELEASE = 2
    REJECT = 3
    EXTEND = 4


class Said(NamedTuple):
    """What is said of a message."""

    what: SettlementKind
    delay_ms: int = -1  # of a release; -1: as the subscription's rules say
    reason: str = ""  # of a rejection
    extend_ms: int = 0  # of an extension; 0: as long as the subscription says


_ACK: Final = Said(SettlementKind.ACK)
_RELEASE: Final = Said(SettlementKind.RELEASE)


class MessageSource(Protocol):
    """Where a message is from: one partition of a queue, or a stream."""

    topic: str
    partition: int

    def settle(self, message: ReceivedMessage, said: Said) -> None:
        """Note what is said of a message; it is sent soon."""
        ...


class ReceivedMessage:
    """One message, with its place in the log. Its bytes are as they were written.

    A message of a queue is this reader's own until its time is over (`ack_timeout`), and is settled by one of `ack`,
    `release` and `reject`. These return at once; what they say is on its way within milliseconds, and `flush` or
    `close` of the reading waits until it is durable. A message of a stream knows `ack` only, which marks what was read
    up to there as done.
    """

    __slots__ = ("_settled", "_source", "deliveries", "headers", "key", "offset", "timestamp", "value")

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    offset: int
    timestamp: int
    """Milliseconds since 1970."""
    deliveries: int
    """How often it was delivered, this time included; always 1 in a stream."""

    def __init__(
        self,
        source: MessageSource,
        offset: int,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: tuple[tuple[str, bytes | None], ...],
        deliveries: int,
    ) -> None:
        self._source = source
        self._settled: SettlementKind | None = None
        self.offset = offset
        self.timestamp = timestamp
        self.key = key
        self.value = value
        self.headers = headers
        self.deliveries = deliveries

    @property
    def topic(self) -> str:
        return self._source.topic

    @property
    def partition(self) -> int:
        return self._source.partition

    @property
    def time(self) -> datetime:
        """The timestamp, in UTC."""
        from datetime import UTC, datetime

        return datetime.fromtimestamp(self.timestamp / 1000, UTC)

    @property
    def text(self) -> str:
        """The value as UTF-8; empty where there is none."""
        return "" if self.value is None else self.value.decode()

    def ack(self) -> None:
        """It is done, and nobody of this subscription sees it again."""
        self._settle(_ACK)

    def release(self, delay: Duration | None = None) -> None:
        """It comes again, to anybody, no earlier than after `delay`; without one as the subscription's rules say."""
        self._settle(
            _RELEASE if delay is None else Said(SettlementKind.RELEASE, _at_most(DELAY_MAX_MS, delay, "delay"))
        )

    def reject(self, reason: str = "") -> None:
        """It cannot be worked on: it goes to the dead letters, with the beginning of the reason (256 characters)."""
        self._settle(Said(SettlementKind.REJECT, reason=_short(reason)))

    def extend(self, time: Duration | None = None) -> None:
        """From now on it is this reader's own for so long; without a time as long as the subscription says."""
        if self._settled is not None:
            raise InvalidRequest(f"{self!r} was settled before: there is nothing to extend")
        extend_ms = 0 if time is None else _at_most(EXTEND_MAX_MS, time, "time")
        self._source.settle(self, Said(SettlementKind.EXTEND, extend_ms=extend_ms))

    def _settle(self, said: Said) -> None:
        if self._settled is None:
            self._source.settle(self, said)
            self._settled = said.what
        elif self._settled is not said.what:
            raise InvalidRequest(f"{self!r} was settled before, otherwise: {self._settled.name.lower()}")

    def __repr__(self) -> str:
        value = "None" if self.value is None else f"{len(self.value)} bytes"
        return f"<{self.topic}-{self.partition}@{self.offset} key={self.key!r} value={value}>"


def _at_most(limit_ms: int, duration: Duration, name: str) -> int:
    """The broker would refuse more, when nobody waits for its answer any longer."""
    found = milliseconds(duration, name)
    if found > limit_ms:
        raise InvalidRequest(f"{name}: {duration!r} is too long; it is {write_duration(limit_ms)} at most")
    return found


def _short(reason: str) -> str:
    """As a dead letter can have it: what an exception says may be long, or no text that can be sent."""
    if not isinstance(reason, str):
        raise TypeError(f"a reason is a str, not {type(reason).__name__}; write for example str(error)")
    text = reason.encode(errors="replace").decode()
    return text if len(text) <= REASON_MAX else text[: REASON_MAX - 1] + "…"
