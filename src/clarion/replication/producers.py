"""What a partition remembers of its idempotent producers, so that a retried batch is not written twice.

For each producer id: its epoch and its last five batches (a client keeps at most five in flight). A batch that
repeats one of them is a duplicate and is answered with the original offset; one that follows the last is taken;
anything else is out of order. The state is rebuilt from the log: every batch that was written is replayed here, by the
same `replay` after an append and after a restart.

Anybody can invent producer ids, so their number is bounded. The longest idle is forgotten first, in the partition that
takes a new one: it may then begin with any sequence, as one that was silent for `producer.id.expiration.ms` may. Those
of which no batch is written yet, because it was refused, have a room of their own: nobody has read what they sent, and
they take no place from one that has written.

Ids from `FIRST_KEYED_ID` on stand for idempotency keys of writes over HTTP (`gateway.idempotency`), each with one batch
in its life. They have a room of their own, in which they take no place from real producers, and are kept for
`KEYED_KEPT_MS` whatever comes: where there is no room for another one, it is refused, and the client is told when to
come back. That is decided once, by the leader that takes it: what is in the log is remembered by every replica, however
many keys a broker has from elsewhere. Of one partition no leader has taken more than it has room for in that time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain
from typing import Final, NamedTuple

from clarion.model.errors import ErrorCode, KafkaError
from clarion.wire.batch import BatchHeader

BATCHES_REMEMBERED: Final = 5  # Kafka's: max.in.flight.requests.per.connection of an idempotent producer
REFUSED_KEPT_MS: Final = 10_000  # a client tries again within a second; who does not has given the batch up
_SEQUENCE_MASK: Final = 0x7FFFFFFF
_SEQUENCES_BEFORE: Final = 1 << 30  # of the circle, half lie before a sequence
_ALWAYS_REMEMBERED: Final = 100  # by each partition, however many others have invented elsewhere
_REFUSED_IN_ONE_MAX: Final = 1_000  # nothing of them is written: no more clients begin while one trouble lasts
_REFUSED_IN_ALL_MAX: Final = 20_000
FIRST_KEYED_ID: Final = 1 << 61  # ids are given out from 0 on, a thousand at a time: they do not come this far
KEYED_KEPT_MS: Final = 10 * 60_000  # at least; who repeats a write later than that has given up before
_KEYED_IN_ONE_MAX: Final = 30_000  # 50 a second; a snapshot of so many takes some ten milliseconds of the loop


class KnownBatch(NamedTuple):
    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp_ms: int


class RefusedBatch(NamedTuple):
    """One that was turned away for a reason that passes, and will come again."""

    epoch: int
    sequence: int
    code: ErrorCode
    at_ms: int

    def is_waited_for(self, now_ms: int) -> bool:
        return abs(now_ms - self.at_ms) <= REFUSED_KEPT_MS  # a clock that goes back keeps none for hours


def known_batch(header: BatchHeader) -> KnownBatch:
    return KnownBatch(
        header.base_sequence, header.last_sequence, header.base_offset, header.last_offset, header.max_timestamp
    )


class Producer:
    __slots__ = ("batches", "epoch", "first_sequence", "id", "is_restored", "last_timestamp_ms", "refused")

    def __init__(self, producer_id: int, epoch: int, last_timestamp_ms: int) -> None:
        self.id = producer_id
        self.epoch = epoch
        self.last_timestamp_ms = last_timestamp_ms
        self.first_sequence: int | None = None  # while there is no batch: the one that may come, if not any
        self.refused: list[RefusedBatch] = []  # those that will come again, in order; at most five, as they are sent
        self.is_restored = False  # from a snapshot, which knows the last batch and not the four before it
        self.batches: list[KnownBatch] = []  # of at most five; most have one, and a deque has room for 64

    @property
    def next_sequence(self) -> int | None:
        """None: any may begin."""
        return (self.batches[-1].last_sequence + 1) & _SEQUENCE_MASK if self.batches else self.first_sequence

    def may_begin_earlier(self, sequence: int) -> bool:
        """Whether nothing is written yet, and it comes before the one that was refused: somebody else, or this broker
        when it did not lead, had turned it away."""
        if self.batches or self.first_sequence is None:
            return False
        return _is_before(sequence, self.first_sequence)

    def note_refused(self, batch: RefusedBatch) -> None:
        """Also one whose predecessor is not here yet: it may come from another leader."""
        following = self.next_sequence if batch.epoch == self.epoch else 0
        if following is None or _is_before(batch.sequence, following):
            return  # it repeats what is written
        others = [
            one
            for one in self.refused
            if (one.epoch == batch.epoch and one.sequence != batch.sequence)
            and (one.is_waited_for(batch.at_ms) and not _is_before(one.sequence, following))
        ]
        in_order = sorted([*others, batch], key=lambda one: (one.sequence - following) & _SEQUENCE_MASK)
        self.refused = in_order[:BATCHES_REMEMBERED]

    def refusal_of(self, epoch: int, sequence: int, now_ms: int) -> RefusedBatch | None:
        for one in self.refused:
            if one.epoch == epoch and one.sequence == sequence and one.is_waited_for(now_ms):
                return one
        return None

    def note(self, batch: KnownBatch) -> None:
        self.batches.append(batch)
        if len(self.batches) > BATCHES_REMEMBERED:
            del self.batches[0]


class ProducerLimits:
    """Shared by all partitions of a broker, which count in it."""

    __slots__ = ("count", "in_all_max", "in_one_max", "keyed_count", "keyed_in_one_max", "refused_count")

    def __init__(
        self, in_all_max: int = 200_000, in_one_max: int = 10_000, keyed_in_one_max: int = _KEYED_IN_ONE_MAX
    ) -> None:
        """`in_all_max`: about 100 MB, and as much for idempotency keys; of these more, where other brokers have taken
        them and this one has replicas. `in_one_max`: a snapshot of so many takes a few milliseconds of the loop."""
        self.in_all_max = in_all_max
        self.in_one_max = in_one_max
        self.keyed_in_one_max = keyed_in_one_max
        self.count = 0
        self.keyed_count = 0
        self.refused_count = 0

    def is_full_for_keys(self, count: int) -> bool:
        return count >= self.keyed_in_one_max or (self.keyed_count >= self.in_all_max and count >= _ALWAYS_REMEMBERED)

    def is_full_for_refused(self, count: int) -> bool:
        return count >= _REFUSED_IN_ONE_MAX or self.refused_count >= _REFUSED_IN_ALL_MAX

    def is_full_for(self, count: int) -> bool:
        """Whether a partition that remembers so many has to forget one before the next."""
        return count >= self.in_one_max or (self.count >= self.in_all_max and count >= _ALWAYS_REMEMBERED)


class ProducerStates:
    def __init__(self, limits: ProducerLimits | None = None) -> None:
        self._limits = limits or ProducerLimits()
        self._producers: OrderedDict[int, Producer] = OrderedDict()  # the longest idle first
        self._keyed: OrderedDict[int, Producer] = OrderedDict()  # likewise, of idempotency keys
        self._refused: OrderedDict[int, Producer] = OrderedDict()  # likewise, of which nothing is written yet
        self.has_snapshot = False  # on disk, perhaps an older one: also "nobody" must then be written down

    @property
    def limits(self) -> ProducerLimits:
        return self._limits

    def __len__(self) -> int:
        return len(self._producers) + len(self._keyed)

    def __contains__(self, producer_id: object) -> bool:
        return producer_id in self._producers or producer_id in self._keyed

    def __iter__(self) -> Iterator[Producer]:
        return chain(self._producers.values(), self._keyed.values())

    def find(self, producer_id: int) -> Producer | None:
        if producer_id >= FIRST_KEYED_ID:
            return self._keyed.get(producer_id)
        return self._producers.get(producer_id) or self._refused.get(producer_id)

    def check(self, header: BatchHeader, now_ms: int) -> KnownBatch | None:
        """The batch that this one repeats, or None if it may be written; raises if it comes out of order."""
        producer = self.find(header.producer_id)
        if producer is None:
            if header.producer_id >= FIRST_KEYED_ID:
                self._check_room_for_key(now_ms)
            return None  # never seen or long forgotten: any sequence may begin, as in Kafka
        if header.producer_epoch != producer.epoch:
            _check_new_epoch(header, producer, now_ms)
            return None
        for known in producer.batches:
            if known.first_sequence == header.base_sequence and known.last_sequence == header.last_sequence:
                return known
        expected = producer.next_sequence
        if expected is not None and header.base_sequence != expected:
            if producer.may_begin_earlier(header.base_sequence):
                return None
            _check_refused(header, producer, expected, now_ms)
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id}: sequence {header.base_sequence} came where {expected} was expected",
            )
        return None

    def replay(self, header: BatchHeader, now_ms: int) -> None:
        """Remember a batch that is in the log."""
        producer = self.find(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            known, producer = producer, Producer(header.producer_id, header.producer_epoch, now_ms)
            if known is not None:
                producer.refused = known.refused  # of the epoch that begins now
        self._remember(producer)
        producer.last_timestamp_ms = now_ms
        producer.note(known_batch(header))

    def refuse(self, header: BatchHeader, now_ms: int, code: ErrorCode) -> None:
        """A batch could not be written and will come again. The one behind it may be here first: it must not begin, and
        is refused with the same code.

        Behind that of an idempotency key there is none: it takes no place from a key whose message was written.
        """
        if not 0 <= header.producer_id < FIRST_KEYED_ID:
            return
        producer = self.find(header.producer_id)
        if producer is None:
            producer = Producer(header.producer_id, header.producer_epoch, now_ms)
            producer.first_sequence = header.base_sequence
            if not self._remember_refused(producer):
                return
        if header.producer_epoch < producer.epoch:
            return  # it comes again in vain
        if header.producer_epoch == producer.epoch and producer.may_begin_earlier(header.base_sequence):
            producer.first_sequence = header.base_sequence
        producer.note_refused(RefusedBatch(header.producer_epoch, header.base_sequence, code, now_ms))

    def restore(self, producer: Producer) -> None:
        """Remember a producer from a snapshot."""
        self._remember(producer)

    def _remember(self, producer: Producer) -> None:
        if producer.id >= FIRST_KEYED_ID:
            self._remember_key(producer)
            return
        if self._refused and self._refused.pop(producer.id, None) is not None:
            self._limits.refused_count -= 1
        known = self._producers
        if known.pop(producer.id, None) is None:
            if self._limits.is_full_for(len(known)):
                known.popitem(last=False)
                self._limits.count -= 1
            self._limits.count += 1
        known[producer.id] = producer

    def _remember_refused(self, producer: Producer) -> bool:
        """False if there is no room: where other partitions have filled it, and this one has none to forget."""
        if self._limits.is_full_for_refused(len(self._refused)):
            if not self._refused:
                return False
            self._refused.popitem(last=False)
            self._limits.refused_count -= 1
        self._limits.refused_count += 1
        self._refused[producer.id] = producer
        return True

    def _remember_key(self, producer: Producer) -> None:
        if self._keyed.pop(producer.id, None) is None:
            if self._may_forget_key(producer.last_timestamp_ms):
                self._keyed.popitem(last=False)
                self._limits.keyed_count -= 1
            self._limits.keyed_count += 1
        self._keyed[producer.id] = producer

    def _may_forget_key(self, now_ms: int) -> bool:
        """The oldest, for one that is in the log: more than its partition has room for have come after it, or it is so
        old that nobody relies on it. Where other partitions have filled the room of all, that is no reason."""
        if len(self._keyed) >= self._limits.keyed_in_one_max:
            return True
        return self._limits.is_full_for_keys(len(self._keyed)) and not self._has_young_keys(now_ms)

    def _has_young_keys(self, now_ms: int) -> bool:
        """Alone: whoever repeats its write within the time relies on it."""
        oldest = next(iter(self._keyed.values()), None)
        return oldest is not None and oldest.last_timestamp_ms > now_ms - KEYED_KEPT_MS

    def _check_room_for_key(self, now_ms: int) -> None:
        """None is forgotten too early."""
        if self._limits.is_full_for_keys(len(self._keyed)) and self._has_young_keys(now_ms):
            raise KafkaError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                f"{len(self._keyed)} idempotency keys of the last {KEYED_KEPT_MS // 60_000} minutes are remembered, "
                "and there is no room for more: repeat it later, or spread the writes over more partitions",
            )

    def forget_all(self) -> None:
        """The partition is gone."""
        self._limits.count -= len(self._producers)
        self._limits.keyed_count -= len(self._keyed)
        self._limits.refused_count -= len(self._refused)
        self._producers.clear()
        self._keyed.clear()
        self._refused.clear()

    def last_offsets(self) -> frozenset[int]:
        """Of the batches by which living producers are remembered: compaction keeps these."""
        return frozenset(one.batches[-1].last_offset for one in self if one.batches)

    def expire_keys(self, before_ms: int) -> None:
        while self._keyed and next(iter(self._keyed.values())).last_timestamp_ms < before_ms:
            self._keyed.popitem(last=False)
            self._limits.keyed_count -= 1

    def restart_times(self, now_ms: int) -> None:
        """The clock was wrong: each counts as having written just now, the longest idle still the first to go."""
        for producer in chain(self, self._refused.values()):
            producer.last_timestamp_ms = now_ms

    def expire(self, before_ms: int) -> int:
        """Forget producers that have written nothing since; returns how many."""
        count = 0
        while self._producers and next(iter(self._producers.values())).last_timestamp_ms < before_ms:
            self._producers.popitem(last=False)
            count += 1
        self._limits.count -= count
        while self._refused and next(iter(self._refused.values())).last_timestamp_ms < before_ms:
            self._refused.popitem(last=False)
            self._limits.refused_count -= 1
        return count


def _is_before(one: int, other: int) -> bool:
    return 0 < ((other - one) & _SEQUENCE_MASK) < _SEQUENCES_BEFORE


def _check_refused(header: BatchHeader, producer: Producer, expected: int, now_ms: int) -> None:
    """Behind a batch that we have turned away ourselves nothing is out of order: it comes again, and this one after it.
    Told of a wrong order, librdkafka would begin a new epoch, and send once more what may be in other partitions."""
    refused = producer.refusal_of(header.producer_epoch, expected, now_ms)
    if refused is None or not _is_before(expected, header.base_sequence):
        return
    producer.note_refused(RefusedBatch(header.producer_epoch, header.base_sequence, refused.code, now_ms))
    raise KafkaError(
        refused.code,
        f"producer {header.producer_id}: sequence {expected} was refused and has not come again; "
        f"{header.base_sequence} waits for it",
    )


def _check_new_epoch(header: BatchHeader, producer: Producer, now_ms: int) -> None:
    if header.producer_epoch < producer.epoch:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"producer {header.producer_id}: epoch {header.producer_epoch} is over, {producer.epoch} has begun",
        )
    if header.base_sequence != 0:
        _check_refused(header, producer, 0, now_ms)
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {header.producer_id}: a new epoch begins with sequence 0, not {header.base_sequence}",
        )
