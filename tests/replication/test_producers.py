"""Idempotent producers: a repeated batch is recognised, a gap refused, and a new epoch starts from nothing."""

from __future__ import annotations

import tracemalloc

import pytest

from clarion.model.errors import ErrorCode, KafkaError
from clarion.replication.producers import ProducerLimits, ProducerStates
from clarion.wire.batch import BatchHeader

SEQUENCE_MAX = 2**31 - 1


def batch(sequence: int, count: int = 1, *, epoch: int = 0, producer: int = 7, offset: int = 0) -> BatchHeader:
    return BatchHeader(offset, 100, 0, 2, 0, 0, count - 1, 1000, 1000, producer, epoch, sequence, count)


def written(states: ProducerStates, *headers: BatchHeader) -> None:
    for header in headers:
        assert states.check(header, 0) is None
        states.replay(header, 0)


def refusal(states: ProducerStates, header: BatchHeader) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        states.check(header, 0)
    return refused.value.code


def test_each_of_the_last_five_batches_is_recognised_with_its_offset() -> None:
    states = ProducerStates()
    written(states, *(batch(10 * n, 10, offset=100 * n) for n in range(6)))
    for n in range(1, 6):
        known = states.check(batch(10 * n, 10), 0)
        assert known is not None
        assert known.base_offset == 100 * n


def test_a_batch_older_than_the_last_five_is_out_of_order() -> None:
    states = ProducerStates()
    written(states, *(batch(n) for n in range(6)))
    assert refusal(states, batch(0)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_gap_is_refused_and_what_was_missing_is_still_taken() -> None:
    states = ProducerStates()
    written(states, batch(0, 5))
    assert refusal(states, batch(6)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    written(states, batch(5), batch(6))


def test_sequences_wrap_to_zero_after_the_largest_number() -> None:
    states = ProducerStates()
    written(states, batch(SEQUENCE_MAX - 1, 2), batch(0, 3), batch(3))


def test_a_batch_across_the_wrap_ends_at_a_small_sequence() -> None:
    states = ProducerStates()
    written(states, batch(SEQUENCE_MAX, 3), batch(2))


def test_a_new_epoch_begins_at_zero_and_ends_the_old_one() -> None:
    states = ProducerStates()
    written(states, batch(0), batch(1))
    assert refusal(states, batch(2, epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    written(states, batch(0, epoch=1))
    assert refusal(states, batch(2, epoch=0)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_an_unknown_producer_may_begin_anywhere() -> None:
    written(ProducerStates(), batch(4711), batch(4712))


def test_a_silent_producer_is_forgotten_and_a_busy_one_is_not() -> None:
    states = ProducerStates()
    states.replay(batch(0, producer=1), now_ms=1_000)
    states.replay(batch(0, producer=2), now_ms=5_000)
    assert states.expire(before_ms=2_000) == 1
    assert 1 not in states
    assert 2 in states


def test_a_producer_whose_first_batch_could_not_be_written_begins_with_that_one() -> None:
    """With several under way, the second may arrive when there is room again."""
    states = ProducerStates()
    assert states.check(batch(0, 3), 0) is None
    states.refuse(batch(0, 3), 0, ErrorCode.KAFKA_STORAGE_ERROR)
    assert refusal(states, batch(3)) is ErrorCode.KAFKA_STORAGE_ERROR
    written(states, batch(0, 3), batch(3))


def test_what_comes_behind_a_refused_batch_is_refused_as_that_and_not_as_out_of_order() -> None:
    """librdkafka begins a new epoch when it hears of a wrong order, and doubles what other partitions may have."""
    states = ProducerStates()
    written(states, batch(0, 3))
    states.refuse(batch(3), 0, ErrorCode.NOT_ENOUGH_REPLICAS)
    assert refusal(states, batch(4)) is ErrorCode.NOT_ENOUGH_REPLICAS
    states.refuse(batch(4), 0, ErrorCode.NOT_ENOUGH_REPLICAS)
    assert refusal(states, batch(5)) is ErrorCode.NOT_ENOUGH_REPLICAS, "all wait for the first"
    written(states, batch(3), batch(4), batch(5))
    assert refusal(states, batch(7)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "nobody refused the one before it"


def test_what_was_refused_behind_a_refused_batch_is_waited_for_when_that_one_has_come() -> None:
    states = ProducerStates()
    states.replay(batch(0), 0)
    states.refuse(batch(1), 0, ErrorCode.NOT_ENOUGH_REPLICAS)
    assert refusal(states, batch(2)) is ErrorCode.NOT_ENOUGH_REPLICAS
    states.replay(batch(1), 0)
    assert refusal(states, batch(3)) is ErrorCode.NOT_ENOUGH_REPLICAS, "2 was turned away here, and is on its way"
    states.replay(batch(2), 0)
    assert states.check(batch(3), 0) is None


def test_an_old_repetition_does_not_wait_for_what_was_refused() -> None:
    states = ProducerStates()
    for sequence in range(10):
        states.replay(batch(sequence), 0)
    states.refuse(batch(10), 0, ErrorCode.NOT_ENOUGH_REPLICAS)
    assert refusal(states, batch(1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_one_that_was_refused_before_the_former_leader_sent_its_predecessor_is_waited_for_as_well() -> None:
    """The client knew who leads before this broker did, and before it had all that was written."""
    states = ProducerStates()
    written(states, batch(0))
    states.refuse(batch(2), 0, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    states.refuse(batch(3), 0, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    states.replay(batch(1), 0)
    assert refusal(states, batch(3)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    states.refuse(batch(0), 0, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert refusal(states, batch(3)) is ErrorCode.NOT_LEADER_OR_FOLLOWER, "what repeats a written one takes no place"
    written(states, batch(2), batch(3))


@pytest.mark.parametrize("then_ms", [3_610_001, 0])
def test_a_refused_batch_that_does_not_come_again_is_given_up(then_ms: int) -> None:
    """Also where the clock was set back meanwhile."""
    states = ProducerStates()
    written(states, batch(0, 3))
    states.refuse(batch(3), 3_600_000, ErrorCode.NOT_ENOUGH_REPLICAS)
    with pytest.raises(KafkaError) as caught:
        states.check(batch(4), then_ms)
    assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_new_epoch_whose_first_batch_was_refused_begins_with_that_one() -> None:
    states = ProducerStates()
    written(states, batch(0, 3))
    states.refuse(batch(0, epoch=1), 0, ErrorCode.NOT_ENOUGH_REPLICAS)
    assert refusal(states, batch(1, epoch=1)) is ErrorCode.NOT_ENOUGH_REPLICAS
    written(states, batch(0, epoch=1), batch(1, epoch=1))


def test_a_batch_from_before_the_first_one_that_was_refused_may_still_begin() -> None:
    """It was sent when this broker did not lead yet, and only the one behind it found too few replicas here."""
    states = ProducerStates()
    states.refuse(batch(SEQUENCE_MAX, 3), 0, ErrorCode.NOT_ENOUGH_REPLICAS)
    states.refuse(batch(SEQUENCE_MAX - 1), 0, ErrorCode.KAFKA_STORAGE_ERROR)
    assert refusal(states, batch(SEQUENCE_MAX, 3)) is ErrorCode.KAFKA_STORAGE_ERROR, "it waits for the earlier one"
    written(states, batch(SEQUENCE_MAX - 2), batch(SEQUENCE_MAX - 1), batch(SEQUENCE_MAX, 3), batch(2))


def test_a_batch_of_an_epoch_that_is_over_takes_no_refusals_place() -> None:
    states = ProducerStates()
    written(states, batch(0, epoch=1))
    states.refuse(batch(1, epoch=1), 0, ErrorCode.NOT_ENOUGH_REPLICAS)
    states.refuse(batch(0, epoch=0), 0, ErrorCode.NOT_ENOUGH_REPLICAS)
    assert refusal(states, batch(2, epoch=1)) is ErrorCode.NOT_ENOUGH_REPLICAS


# Bounds


def some_batch(states: ProducerStates, producer: int, sequence: int = 0, now_ms: int = 0) -> None:
    states.replay(batch(sequence, producer=producer), now_ms)


def test_the_longest_idle_producer_is_forgotten_for_a_new_one() -> None:
    states = ProducerStates(ProducerLimits(in_one_max=3))
    for producer in (1, 2, 3):
        some_batch(states, producer)
    some_batch(states, 1, 1)
    some_batch(states, 4)
    assert [one.id for one in states] == [3, 1, 4]
    some_batch(states, 3, 1)
    assert [one.id for one in states] == [1, 4, 3]


def test_producers_that_were_only_refused_take_no_place_from_one_that_has_written() -> None:
    """Nobody has read what they sent: it costs them nothing to invent ten thousand."""
    limits = ProducerLimits(in_one_max=3)
    states = ProducerStates(limits)
    some_batch(states, 1)
    for producer in range(2, 5_000):
        states.refuse(batch(5, producer=producer), 0, ErrorCode.NOT_ENOUGH_REPLICAS)
    assert states.check(batch(0, producer=1), 0) is not None, "a repeated batch is known"
    assert refusal(states, batch(6, producer=4_999)) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert states.check(batch(6, producer=2), 0) is None, "the longest idle of them is forgotten"
    assert limits.refused_count == 1_000
    some_batch(states, 4_999, 5)
    assert (limits.refused_count, limits.count) == (999, 2)
    states.expire(1)
    assert (limits.refused_count, limits.count) == (0, 0)


def test_those_that_were_refused_are_bounded_over_all_partitions() -> None:
    limits = ProducerLimits()
    states = [ProducerStates(limits) for _ in range(30)]
    for one in states:
        for producer in range(1_000):
            one.refuse(batch(5, producer=producer), 0, ErrorCode.NOT_ENOUGH_REPLICAS)
    assert limits.refused_count == 20_000
    for one in states:
        one.forget_all()
    assert limits.refused_count == 0


def test_producers_of_all_partitions_are_bounded_and_each_keeps_some() -> None:
    limits = ProducerLimits(in_all_max=300)
    many, few = ProducerStates(limits), ProducerStates(limits)
    for producer in range(1000):
        some_batch(many, producer)
    for producer in range(100):
        some_batch(few, producer)
    assert (len(many), len(few), limits.count) == (300, 100, 400)
    some_batch(few, 1000)
    assert (len(few), 0 in few) == (100, False)
    assert many.expire(before_ms=1) == 300
    few.forget_all()
    assert limits.count == 0


def test_expiry_looks_no_further_than_the_first_that_is_not_idle() -> None:
    states = ProducerStates()
    for producer in range(100):
        some_batch(states, producer, now_ms=producer)
    some_batch(states, 3, 1, now_ms=200)
    assert states.expire(before_ms=50) == 49
    assert 3 in states
    assert len(states) == 51


def test_a_producer_with_one_batch_costs_half_a_kilobyte() -> None:
    states = ProducerStates()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for producer in range(2000):
            some_batch(states, 10**9 + producer, now_ms=10**12 + producer)
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert used / 2000 < 600


def test_the_last_sequence_of_a_batch_begins_again_behind_the_greatest() -> None:
    assert batch(SEQUENCE_MAX, 1).last_sequence == SEQUENCE_MAX
    assert batch(SEQUENCE_MAX, 2).last_sequence == 0
    assert batch(SEQUENCE_MAX - 3, 10).last_sequence == 5
