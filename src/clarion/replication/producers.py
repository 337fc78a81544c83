"""What a partition remembers of its idempotent producers, so that a retried batch is not written twice.

For each producer id: its epoch and its last five batches (a client keeps at most five in flight). A batch that
repeats one of them is a duplicate and is answered with the original offset; one that follows the last is taken;
anything else is out of order. The state is rebuilt from the log: every batch that was written is replayed here, by the
same `replay` after an append and after a restart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from clarion.model.errors import ErrorCode, KafkaError
from clarion.wire.batch import BatchHeader

BATCHES_REMEMBERED: Final = 5  # Kafka's: max.in.flight.requests.per.connection of an idempotent producer
_SEQUENCE_MASK: Final = 0x7FFFFFFF


class KnownBatch(NamedTuple):
    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp_ms: int


def known_batch(header: BatchHeader) -> KnownBatch:
    return KnownBatch(
        header.base_sequence, header.last_sequence, header.base_offset, header.last_offset, header.max_timestamp
    )


class Producer:
    __slots__ = ("batches", "epoch", "first_sequence", "id", "is_restored", "last_timestamp_ms")

    def __init__(self, producer_id: int, epoch: int, last_timestamp_ms: int) -> None:
        self.id = producer_id
        self.epoch = epoch
        self.last_timestamp_ms = last_timestamp_ms
        self.first_sequence: int | None = None  # while there is no batch: the one that may come, if not any
        self.is_restored = False  # from a snapshot, which knows the last batch and not the four before it
        self.batches: deque[KnownBatch] = deque(maxlen=BATCHES_REMEMBERED)


class ProducerStates:
    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}
        self.has_snapshot = False  # on disk, perhaps an older one: also "nobody" must then be written down

    def __len__(self) -> int:
        return len(self._producers)

    def __contains__(self, producer_id: object) -> bool:
        return producer_id in self._producers

    def __iter__(self) -> Iterator[Producer]:
        return iter(self._producers.values())

    def find(self, producer_id: int) -> Producer | None:
        return self._producers.get(producer_id)

    def check(self, header: BatchHeader) -> KnownBatch | None:
        """The batch that this one repeats, or None if it may be written; raises if it comes out of order."""
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return None  # never seen or long forgotten: any sequence may begin, as in Kafka
        if header.producer_epoch != producer.epoch:
            _check_new_epoch(header, producer)
            return None
        for known in producer.batches:
            if known.first_sequence == header.base_sequence and known.last_sequence == header.last_sequence:
                return known
        expected = producer.first_sequence
        if producer.batches:
            expected = (producer.batches[-1].last_sequence + 1) & _SEQUENCE_MASK
        if expected is not None and header.base_sequence != expected:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id}: sequence {header.base_sequence} came where {expected} was expected",
            )
        return None

    def replay(self, header: BatchHeader, now_ms: int) -> None:
        """Remember a batch that is in the log."""
        producer = self._producers.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            producer = self._producers[header.producer_id] = Producer(header.producer_id, header.producer_epoch, now_ms)
        producer.last_timestamp_ms = now_ms
        producer.batches.append(known_batch(header))

    def refuse(self, header: BatchHeader, now_ms: int) -> None:
        """A batch could not be written and will come again. The one behind it may be here first, and must not begin."""
        if header.producer_id not in self._producers:
            producer = Producer(header.producer_id, header.producer_epoch, now_ms)
            producer.first_sequence = header.base_sequence
            self._producers[producer.id] = producer

    def restore(self, producer: Producer) -> None:
        """Remember a producer from a snapshot."""
        self._producers[producer.id] = producer

    def last_offsets(self) -> frozenset[int]:
        """Of the batches by which living producers are remembered: compaction keeps these."""
        return frozenset(one.batches[-1].last_offset for one in self._producers.values() if one.batches)

    def expire(self, before_ms: int) -> int:
        """Forget producers that have written nothing since; returns how many."""
        stale = [one.id for one in self._producers.values() if one.last_timestamp_ms < before_ms]
        for producer_id in stale:
            del self._producers[producer_id]
        return len(stale)


def _check_new_epoch(header: BatchHeader, producer: Producer) -> None:
    if header.producer_epoch < producer.epoch:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"producer {header.producer_id}: epoch {header.producer_epoch} is over, {producer.epoch} has begun",
        )
    if header.base_sequence != 0:
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {header.producer_id}: a new epoch begins with sequence 0, not {header.base_sequence}",
        )
