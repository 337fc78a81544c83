"""Produce's replies: what became of each batch, told at once, or when the watermark has passed them all."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import TopicId
from clarion.net import PendingReply, Reply
from clarion.replication import Appended, Partition
from clarion.wire.apis import PRODUCE
from clarion.wire.current_leader import CurrentLeader
from clarion.wire.frames import RequestHeader, reply_head
from clarion.wire.produce import PartitionProduced, encode_response

if TYPE_CHECKING:
    from clarion.broker.broker import Broker

TopicResult = tuple[str, TopicId, list[PartitionProduced]]


def taken(partition: Partition, appended: Appended, index: int) -> PartitionProduced:
    return PartitionProduced(index, 0, appended.base_offset, appended.log_append_time_ms, partition.start_offset)


def refused(index: int, error: KafkaError, leader: CurrentLeader | None = None) -> PartitionProduced:
    """`leader`: the one that should have been asked."""
    code, message = int(error.code), error.message or None
    return PartitionProduced(index, code, -1, -1, -1, message, leader, bad_records=error.records)


def encode_reply(header: RequestHeader, results: list[TopicResult]) -> Reply:
    body = encode_response(header.api_version, results)
    return reply_head(PRODUCE, header.api_version, header.correlation_id, len(body)) + body


class UncommittedBatch:
    """One appended batch that the watermark has not passed, and its place in the reply."""

    __slots__ = ("_term", "at", "last_offset", "partition", "produced")

    def __init__(self, partition: Partition, last_offset: int, produced: list[PartitionProduced], at: int) -> None:
        self.partition = partition
        self.last_offset = last_offset
        self.produced = produced
        self.at = at
        self._term = partition.leader_epoch

    @property
    def is_given_up(self) -> bool:
        """Its leader's term is over: the log may have been cut since, and the same offset be another's message."""
        return not self.partition.is_leader or self.partition.leader_epoch != self._term

    @property
    def is_committed(self) -> bool:
        return self.last_offset < self.partition.high_watermark.offset

    def fail(self, code: ErrorCode) -> None:
        self.produced[self.at] = PartitionProduced(self.produced[self.at].index, int(code), -1, -1, -1)


class WaitingProduce:
    """A produce with acks=all whose batches are appended and not all committed."""

    __slots__ = ("_broker", "_header", "_left", "_pending", "_results", "_uncommitted", "deadline")

    def __init__(
        self, broker: Broker, header: RequestHeader, results: list[TopicResult], uncommitted: list[UncommittedBatch]
    ) -> None:
        self._broker = broker
        self._header = header
        self._results = results
        self._uncommitted = uncommitted
        self._left = len(uncommitted)
        self._pending: PendingReply | None = None
        self.deadline = 0.0

    def wait(self, pending: PendingReply, timeout_ms: int) -> PendingReply:
        self._pending = pending
        self.deadline = self._broker.waiting_produces.add(self, timeout_ms)
        for one in self._uncommitted:
            one.partition.when_committed(one.last_offset, partial(self._on_commit, one))
        return pending

    def _on_commit(self, one: UncommittedBatch, code: ErrorCode) -> None:
        if code is not ErrorCode.NONE:
            one.fail(code)
        self._left -= 1
        if self._left == 0:
            self._resolve()

    def time_out(self) -> None:
        """Nothing is known of what is not committed by now: it may still be."""
        for one in self._uncommitted:
            if not one.is_committed:
                one.fail(ErrorCode.REQUEST_TIMED_OUT)
        self._resolve()

    def _resolve(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            self._broker.waiting_produces.discard(self)
            pending.resolve(encode_reply(self._header, self._results))
