"""Waiting for news of many partitions: a long poll, by which a driver learns at once that something was written.

The poll is a Fetch from where the reader stands. Its answer tells every partition's watermark and start, brings one
batch (from which the size of a message is estimated), and comes as soon as there is anything to read. Each leader has
its own connection, and all are waited for together; a leader that has nothing to say keeps its question, and the next
call takes it up again. Whoever cannot wait looks: that is one round trip at most.
"""

from __future__ import annotations

import select
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

from clarion.model.ids import TopicPartition
from clarion.pipeline.kafka.batches import HEADER_BYTES, LENGTH_PREFIX_BYTES
from clarion.pipeline.kafka.client import Client
from clarion.pipeline.kafka.connection import BrokerConnection
from clarion.pipeline.kafka.errors import ConnectionLostError
from clarion.pipeline.kafka.fetch import FETCH, Fetched, WantedPartition, fetch_request, read_fetched
from clarion.pipeline.kafka.offsets import READ_COMMITTED

_BATCH_LENGTH = Struct(">i")
_LAST_OFFSET_DELTA = Struct(">i")


class WatchedPosition(NamedTuple):
    topic_id: UUID
    offset: int


class News(NamedTuple):
    """What a leader said of one partition."""

    error_code: int
    end_offset: int  # the first offset that cannot be read yet
    start_offset: int
    bytes_per_row: float | None


class _Poll:
    """A question that waits for its answer."""

    def __init__(self, connection: BrokerConnection) -> None:
        self.connection = connection
        self.asked: dict[tuple[UUID, int], tuple[TopicPartition, WatchedPosition]] = {}
        self.asked_at = 0.0


class Watch:
    def __init__(self, client: Client, isolation: int) -> None:
        self._client = client
        self._isolation = isolation
        self._polls: dict[int, _Poll] = {}

    def close(self) -> None:
        for leader in list(self._polls):
            self._drop(leader)

    def poll(
        self, positions: Mapping[TopicPartition, WatchedPosition], wait_ms: int, hold_ms: int | None = None
    ) -> dict[TopicPartition, News]:
        """What the leaders say until the first of them has something, or until the wait is over. `hold_ms`: how long
        they may keep the question, if that is longer; the next call takes it up again."""
        if not positions:
            time.sleep(wait_ms / 1000)
            return {}
        with self._closed_by_trouble(positions):
            hold_ms = max(wait_ms, hold_ms or 0)
            self._ask(positions, hold_ms)
            return self._collect(self._ready(wait_ms, hold_ms), positions, hold_ms)

    def look(self, positions: Mapping[TopicPartition, WatchedPosition]) -> dict[TopicPartition, News]:
        """What the leaders say at this moment. One that still keeps a question has no news; an answer that has come to
        it since may be as old as the last call, so that it is asked again."""
        with self._closed_by_trouble(positions):
            for poll in self._readable(0):
                poll.connection.receive()
            return self._collect(self._ask(positions, 0), positions, 0)

    @contextmanager
    def _closed_by_trouble(self, positions: Mapping[TopicPartition, WatchedPosition]) -> Iterator[None]:
        try:
            yield
        except Exception:
            self.close()
            self._client.forget_leaders({tp.topic for tp in positions})
            raise

    def _ask(self, positions: Mapping[TopicPartition, WatchedPosition], wait_ms: int) -> list[_Poll]:
        """Ask the leaders that keep no question; those that were asked."""
        asked_now: list[_Poll] = []
        by_leader: dict[int, dict[TopicPartition, WatchedPosition]] = defaultdict(dict)
        for tp, position in positions.items():
            by_leader[self._client.leader(*tp)][tp] = position
        for leader in set(self._polls) - set(by_leader):
            self._drop(leader)
        for leader, asked in by_leader.items():
            poll = self._polls.get(leader)
            if poll is None:
                poll = self._polls[leader] = _Poll(self._client.open_connection(leader))
            if poll.connection.unanswered:
                self._check_patience(poll)
            else:
                poll.asked_at = time.monotonic()
                poll.asked = {(one.topic_id, tp.partition): (tp, one) for tp, one in asked.items()}
                poll.connection.send(FETCH, self._request(asked, wait_ms))
                asked_now.append(poll)
        return asked_now

    def _check_patience(self, poll: _Poll) -> None:
        if time.monotonic() - poll.asked_at > self._client.settings.request_timeout_ms / 1000:
            raise ConnectionLostError(f"{poll.connection.address} was asked for Fetch: no answer in time")

    def _request(self, asked: Mapping[TopicPartition, WatchedPosition], wait_ms: int) -> bytearray:
        # One byte each: the first partition that has anything sends one batch all the same (KIP-74), the others none.
        epoch_of = self._client.leader_epoch
        wanted = [
            WantedPartition(one.topic_id, tp.partition, one.offset, 1, epoch_of(*tp)) for tp, one in asked.items()
        ]
        return fetch_request(wanted, isolation=self._isolation, wait_ms=wait_ms, bytes_max=1)

    def _collect(
        self, polls: Sequence[_Poll], positions: Mapping[TopicPartition, WatchedPosition], hold_ms: int
    ) -> dict[TopicPartition, News]:
        news: dict[TopicPartition, News] = {}
        for poll in polls:
            answer = poll.connection.receive(extra_ms=hold_ms)
            for part in read_fetched(answer):
                tp, position = poll.asked.get((part.topic_id, part.partition), (None, None))
                # An answer about a place where the reader no longer stands tells nothing about its own.
                if tp is not None and position == positions.get(tp):
                    news[tp] = self._read(part, memoryview(answer.data))
        return news

    def _ready(self, wait_ms: int, hold_ms: int) -> list[_Poll]:
        polls = list(self._polls.values())
        return polls if len(polls) == 1 and wait_ms == hold_ms else self._readable(wait_ms)

    def _readable(self, wait_ms: int) -> list[_Poll]:
        polls = [poll for poll in self._polls.values() if poll.connection.unanswered]
        buffered = [poll for poll in polls if poll.connection.has_buffered]
        if buffered:
            return buffered
        waiting = select.poll()  # `select` knows no descriptor over 1,023, and a driver may have thousands open
        for poll in polls:
            waiting.register(poll.connection, select.POLLIN)
        readable = {descriptor for descriptor, _ in waiting.poll(wait_ms)}
        return [poll for poll in polls if poll.connection.fileno() in readable]

    def _read(self, part: Fetched, frame: memoryview) -> News:
        end = part.last_stable_offset if self._isolation == READ_COMMITTED else part.high_watermark
        return News(part.error_code, end, part.start_offset, _bytes_per_row(part, frame))

    def _drop(self, leader: int) -> None:
        self._polls.pop(leader).connection.close()


_LENGTH_AT: Final = 8
_LAST_OFFSET_DELTA_AT: Final = 23


def _bytes_per_row(part: Fetched, frame: memoryview) -> float | None:
    """Of the batch that came along."""
    if part.length < HEADER_BYTES:
        return None
    (length,) = _BATCH_LENGTH.unpack_from(frame, part.at + _LENGTH_AT)
    (last_delta,) = _LAST_OFFSET_DELTA.unpack_from(frame, part.at + _LAST_OFFSET_DELTA_AT)
    return (length + LENGTH_PREFIX_BYTES) / (last_delta + 1) if length > 0 and last_delta >= 0 else None
