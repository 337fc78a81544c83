"""A share-partition, step by step: who gets which record, for how long, how often, and what is left to remember."""

from __future__ import annotations

import pytest

from clarion.model.errors import ErrorCode, KafkaError
from clarion.queues.acknowledgements import Acknowledgement, AcknowledgeType, check_acknowledgements
from clarion.queues.acquisition import Acquired, AcquireMode, Fate, Readable
from clarion.queues.rules import ShareLimits
from clarion.queues.share_partition import BATCH_MAX, SharePartition
from clarion.queues.share_window import RUNS_MAX
from clarion.queues.state_batches import Delta, StateBatch, combined
from clarion.queues.state_records import ShareUpdate, encode_update

LIMITS = ShareLimits(lock_duration_ms=1_000, deliveries_max=3, in_flight_max=100)
ACCEPT, RELEASE, REJECT, RENEW, GAP = (
    AcknowledgeType.ACCEPT,
    AcknowledgeType.RELEASE,
    AcknowledgeType.REJECT,
    AcknowledgeType.RENEW,
    AcknowledgeType.GAP,
)
WHOLE, EXACT = AcquireMode.BATCH_OPTIMIZED, AcquireMode.RECORD_LIMIT


def log(*batches: tuple[int, int]) -> Readable:
    return Readable(batches[0][0], batches[-1][1] + 1, batches)


def take(one: SharePartition, member: str, read: Readable, count: int = 500, now_ms: int = 0) -> list[Acquired]:
    return one.acquire(member, read, count, WHOLE, now_ms)


def tell(one: SharePartition, member: str, kind: int, first: int, last: int = -1, now_ms: int = 0) -> None:
    one.acknowledge(member, [Acknowledgement(first, max(first, last), (kind,))], now_ms)


def states(one: SharePartition) -> list[tuple[int, int, str, int]]:
    return [(run.first, run.last, run.state.name, run.deliveries) for run in one.runs()]


def test_what_one_member_has_no_other_gets() -> None:
    one = SharePartition(LIMITS, 0)
    assert take(one, "a", log((0, 9))) == [(0, 9, 1)]
    assert take(one, "b", log((0, 9))) == []
    assert one.fetch_offset(0) == 10


def test_whole_batches_may_go_beyond_the_number_asked_for_and_a_record_limit_never() -> None:
    one = SharePartition(LIMITS, 0)
    read = log((0, 4), (5, 9), (10, 14))
    assert one.acquire("a", read, 7, WHOLE, 0) == [(0, 9, 1)]
    assert one.acquire("b", Readable(10, 15, [(10, 14)]), 2, EXACT, 0) == [(10, 11, 1)]
    assert one.acquire("c", Readable(12, 15, [(10, 14)]), 2, EXACT, 0) == [(12, 13, 1)]


def test_what_is_accepted_in_any_order_is_forgotten_when_all_before_it_is_done() -> None:
    one = SharePartition(LIMITS, 0)
    take(one, "a", log((0, 9)))
    for offset in (9, 3, 1, 2, 5):
        tell(one, "a", ACCEPT, offset)
    assert (one.start_offset, one.next_offset, one.open_count, one.done_count) == (0, 10, 5, 5)
    tell(one, "a", ACCEPT, 0)
    assert one.start_offset == 4
    tell(one, "a", ACCEPT, 4)
    tell(one, "a", ACCEPT, 6, 8)
    assert (one.start_offset, one.run_count, one.open_count) == (10, 0, 0)


def test_a_hundred_thousand_acknowledgements_leave_one_offset_to_remember() -> None:
    one = SharePartition(LIMITS._replace(in_flight_max=2_000), 0)
    most = 0
    for first in range(0, 100_000, 1_000):
        take(one, "a", log((first, first + 999)), 1_000)
        for offset in range(first, first + 1_000, 2):  # every other record first: the worst order
            tell(one, "a", ACCEPT, offset)
            most = max(most, one.run_count)
        one.acknowledge("a", [Acknowledgement(at, at, (ACCEPT,)) for at in _held(one)], 0)
        delta = one.take_delta()
    assert delta == Delta(100_000, 0, ())
    assert most <= 1_001


def _held(one: SharePartition) -> list[int]:
    return [at for run in one.runs() if run.state.name == "ACQUIRED" for at in range(run.first, run.last + 1)]


def test_a_released_record_comes_again_with_one_delivery_more_and_is_given_up_after_the_last() -> None:
    one = SharePartition(LIMITS, 0)
    for delivery in (1, 2, 3):
        assert take(one, "a", log((0, 0))) == [(0, 0, delivery)]
        tell(one, "a", RELEASE, 0)
    assert take(one, "a", log((0, 0))) == []
    assert one.start_offset == 1


def test_a_released_record_with_a_delay_waits_and_holds_nobody_up() -> None:
    one = SharePartition(LIMITS, 0)
    take(one, "a", log((0, 4)))
    one.acknowledge("a", [Acknowledgement(0, 1, (RELEASE,), delay_ms=50)], 10)
    assert one.fetch_offset(59) == 5
    assert one.next_deadline_ms() == 60
    assert one.fetch_offset(60) == 0
    assert take(one, "b", log((0, 4)), now_ms=60) == [(0, 1, 2)]


def test_a_lock_that_ends_gives_the_record_to_others_and_its_late_holder_is_refused() -> None:
    one = SharePartition(LIMITS, 0)
    take(one, "a", log((0, 1)), now_ms=5)
    assert one.next_deadline_ms() == 1_005
    assert not one.expire(1_004)
    assert one.expire(1_005)
    assert take(one, "b", log((0, 1)), now_ms=1_005) == [(0, 1, 2)]
    with pytest.raises(KafkaError) as refusal:
        tell(one, "a", ACCEPT, 0, now_ms=1_006)
    assert refusal.value.code is ErrorCode.INVALID_RECORD_STATE


def test_a_renewed_lock_begins_anew_for_these_records_only() -> None:
    one = SharePartition(LIMITS, 0)
    take(one, "a", log((0, 2)))
    tell(one, "a", RENEW, 1, now_ms=900)
    one.expire(1_000)
    assert states(one) == [(0, 0, "AVAILABLE", 1), (1, 1, "ACQUIRED", 1), (2, 2, "AVAILABLE", 1)]
    one.expire(1_900)
    assert states(one) == [(0, 2, "AVAILABLE", 1)]


def test_a_rejected_record_and_a_gap_are_never_delivered_again() -> None:
    one = SharePartition(LIMITS, 0)
    take(one, "a", log((0, 3)))
    one.acknowledge("a", [Acknowledgement(0, 3, (RELEASE, REJECT, GAP, ACCEPT))], 0)
    assert states(one) == [(0, 0, "AVAILABLE", 1), (1, 2, "ARCHIVED", 1), (3, 3, "ACKNOWLEDGED", 1)]


def test_acknowledgements_of_a_request_happen_all_or_none() -> None:
    one = SharePartition(LIMITS, 0)
    take(one, "a", log((0, 4)))
    take(one, "b", log((5, 9)))
    before = states(one)
    for wrong in (Acknowledgement(4, 5, (ACCEPT,)), Acknowledgement(12, 12, (ACCEPT,))):
        with pytest.raises(KafkaError) as refusal:
            one.acknowledge("a", [Acknowledgement(0, 1, (ACCEPT,)), wrong], 0)
        assert refusal.value.code is ErrorCode.INVALID_RECORD_STATE
        assert states(one) == before


def test_a_record_is_accepted_once() -> None:
    one = SharePartition(LIMITS, 0)
    take(one, "a", log((0, 4)))
    tell(one, "a", ACCEPT, 2)
    with pytest.raises(KafkaError):
        tell(one, "a", ACCEPT, 2)


@pytest.mark.parametrize("last", [0, 1])
def test_who_accepts_what_another_has_done_since_is_refused_also_when_it_is_forgotten(last: int) -> None:
    one = SharePartition(LIMITS, 0)
    take(one, "slow", log((0, 0)))
    take(one, "quick", log((0, 0)), now_ms=1_000)  # the lock of the slow one has ended
    take(one, "slow", log((1, 1)), now_ms=1_000)
    tell(one, "quick", ACCEPT, 0, now_ms=1_001)
    assert one.start_offset == 1
    with pytest.raises(KafkaError) as refused:
        tell(one, "slow", ACCEPT, 0, last, now_ms=1_002)
    assert refused.value.code == ErrorCode.INVALID_RECORD_STATE
    assert states(one) == [(1, 1, "ACQUIRED", 1)]


def test_who_accepts_after_the_last_delivery_was_given_up_is_refused() -> None:
    one = SharePartition(LIMITS._replace(deliveries_max=1), 0)
    take(one, "a", log((0, 4)))
    with pytest.raises(KafkaError):
        tell(one, "a", ACCEPT, 0, 4, now_ms=1_000)


@pytest.mark.parametrize(
    "wrong",
    [
        [Acknowledgement(3, 2, (1,))],
        [Acknowledgement(0, 3, (1,)), Acknowledgement(3, 4, (1,))],
        [Acknowledgement(5, 6, (1,)), Acknowledgement(0, 1, (1,))],
        [Acknowledgement(0, 3, (1, 1))],
        [Acknowledgement(0, 3, ())],
        [Acknowledgement(0, 0, (5,))],
        [Acknowledgement(0, 0, (-1,))],
        [Acknowledgement(-1, 0, (1,))],
    ],
)
def test_acknowledgements_that_make_no_sense_are_refused_before_anybody_looks(wrong: list[Acknowledgement]) -> None:
    with pytest.raises(KafkaError) as refusal:
        check_acknowledgements(wrong, may_renew=True)
    assert refusal.value.code is ErrorCode.INVALID_REQUEST


def test_a_renewal_is_known_only_to_clients_of_its_version() -> None:
    check_acknowledgements([Acknowledgement(0, 0, (4,))], may_renew=True)
    with pytest.raises(KafkaError):
        check_acknowledgements([Acknowledgement(0, 0, (4,))], may_renew=False)


def test_who_leaves_gives_back_its_deliveries_and_who_is_lost_does_not() -> None:
    one = SharePartition(LIMITS, 0)
    take(one, "a", log((0, 4)))
    take(one, "b", log((5, 9)))
    one.give_back("a")
    one.release("b", 0)
    assert states(one) == [(0, 4, "AVAILABLE", 0), (5, 9, "AVAILABLE", 1)]


def test_a_record_that_kills_whoever_reads_it_comes_to_its_last_delivery() -> None:
    one = SharePartition(LIMITS, 0)
    for member in ("a", "b", "c"):
        assert take(one, member, log((0, 0)))
        one.release(member, 0)
    assert one.start_offset == 1


def test_gaps_of_the_log_are_passed_over_and_count_for_nothing() -> None:
    one = SharePartition(LIMITS, 0)
    assert take(one, "a", Readable(0, 50_000, [(10, 11), (40_000, 40_000)])) == [(10, 11, 1), (40_000, 40_000, 1)]
    assert (one.start_offset, one.next_offset, one.open_count) == (10, 50_000, 3)
    tell(one, "a", ACCEPT, 10, 11)
    assert one.start_offset == 40_000


def test_what_compaction_has_taken_away_is_not_waited_for() -> None:
    one = SharePartition(LIMITS, 0)
    take(one, "a", log((0, 9)))
    one.release("a", 0)
    assert take(one, "b", Readable(0, 10, [(6, 9)])) == [(6, 9, 2)]
    assert one.start_offset == 6


def test_the_window_is_full_with_records_that_are_not_done_and_a_stuck_one_holds_up_no_others() -> None:
    one = SharePartition(LIMITS, 0)
    take(one, "a", log((0, 99)))
    assert one.fetch_offset(0) is None
    assert take(one, "b", log((100, 199))) == []
    tell(one, "a", ACCEPT, 1, 99)
    for first in range(100, 10_000, 50):
        assert one.fetch_offset(0) == first
        assert take(one, "b", log((first, first + 49)))
        tell(one, "b", ACCEPT, first, first + 49)
    assert (one.start_offset, one.run_count, one.open_count) == (0, 2, 1)


def test_the_record_limit_stops_at_the_window() -> None:
    one = SharePartition(LIMITS._replace(in_flight_max=5), 0)
    assert one.acquire("a", log((0, 9)), 100, EXACT, 0) == [(0, 4, 1)]


def test_of_a_batch_with_a_million_records_no_more_are_open_than_can_be_kept_apart() -> None:
    for limits in (LIMITS, LIMITS._replace(in_flight_max=1_000_000)):
        one = SharePartition(limits, 0)
        read = log((0, 999_999), (1_000_000, 1_000_009))
        assert take(one, "a", read) == [(0, BATCH_MAX - 1, 1)]
        tell(one, "a", ACCEPT, 0, BATCH_MAX - 1)
        assert take(one, "a", read._replace(first=BATCH_MAX)) == [(BATCH_MAX, 2 * BATCH_MAX - 1, 1)]


def test_what_is_done_behind_a_stuck_record_is_counted_as_far_as_an_int32_goes() -> None:
    one = SharePartition(LIMITS, 0)
    take(one, "a", log((0, 0)))
    take(one, "b", Readable(1, 2**32, [(2**32 - 1, 2**32 - 1)]))  # all between was compacted
    delta = one.take_delta()
    assert delta is not None
    assert encode_update(ShareUpdate(0, 0, *delta))


def test_records_that_the_log_has_dropped_are_gone_here_too() -> None:
    one = SharePartition(LIMITS, 0)
    take(one, "a", log((0, 9)))
    one.take_delta()
    one.delete_before(4)
    assert (one.start_offset, one.open_count) == (4, 6)
    assert one.take_delta() == Delta(4, 0, ())
    tell(one, "a", ACCEPT, 2, 5)
    one.delete_before(30)
    assert (one.start_offset, one.next_offset, one.open_count) == (30, 30, 0)


def test_a_delta_has_what_changed_and_an_acquisition_as_if_its_lock_had_ended() -> None:
    one = SharePartition(LIMITS, 0)
    assert one.take_delta() is None
    take(one, "a", log((0, 9)))
    assert one.take_delta() == Delta(0, 0, (StateBatch(0, 9, 0, 1),))
    tell(one, "a", ACCEPT, 4)
    tell(one, "a", RELEASE, 5)
    assert one.take_delta() == Delta(0, 1, (StateBatch(4, 4, 2, 1), StateBatch(5, 5, 0, 1)))
    tell(one, "a", ACCEPT, 0, 3)
    assert one.take_delta() == Delta(5, 0, ())
    assert one.take_delta() is None


def test_the_next_leader_finds_counts_and_positions_and_nobody_holding_anything() -> None:
    one = SharePartition(LIMITS, 3)
    take(one, "a", Readable(3, 10, [(0, 9)]))
    tell(one, "a", ACCEPT, 5)
    tell(one, "a", REJECT, 7)
    delta = one.take_delta()
    assert delta is not None
    later = SharePartition(LIMITS, delta.start_offset, combined([], delta.batches, delta.start_offset))
    assert states(later) == [
        (3, 4, "AVAILABLE", 1),
        (5, 5, "ACKNOWLEDGED", 1),
        (6, 6, "AVAILABLE", 1),
        (7, 7, "ARCHIVED", 1),
        (8, 9, "AVAILABLE", 1),
    ]
    assert later.fetch_offset(0) == 3
    assert later.open_count == one.open_count


def test_a_last_delivery_that_a_crash_interrupted_is_not_made_again() -> None:
    later = SharePartition(LIMITS, 0, [StateBatch(0, 0, 0, 3), StateBatch(1, 1, 0, 2)])
    assert later.start_offset == 1
    assert later.take_delta() == Delta(1, 0, ())


def test_offsets_between_persisted_batches_are_still_to_be_delivered() -> None:
    later = SharePartition(LIMITS, 0, [StateBatch(5, 6, 2, 1), StateBatch(9, 9, 0, 2)])
    assert states(later) == [
        (0, 4, "AVAILABLE", 0),
        (5, 6, "ACKNOWLEDGED", 1),
        (7, 8, "AVAILABLE", 0),
        (9, 9, "AVAILABLE", 2),
    ]
    assert take(later, "a", log((0, 9))) == [(0, 4, 1), (7, 8, 1), (9, 9, 3)]


def test_a_delay_goes_on_as_long_as_it_had_left_if_the_wall_clock_is_set_and_another_leader_takes_over() -> None:
    one = SharePartition(LIMITS, 0, now_ms=1_000, wall_ahead_ms=50_000)
    take(one, "a", log((0, 1)), now_ms=1_000)
    one.acknowledge("a", [Acknowledgement(0, 0, (RELEASE,), delay_ms=500)], 1_000)
    delta = one.take_delta()
    assert delta is not None
    assert delta.batches == (StateBatch(0, 0, 0, 1, 51_500), StateBatch(1, 1, 0, 1))
    one.follow_wall(50_900)  # how clocks run
    assert not one.has_changed
    one.follow_wall(90_000)
    later = one.take_delta()
    assert later is not None
    assert later.batches == (StateBatch(0, 0, 0, 1, 91_500),)
    state = combined(delta.batches, later.batches, 0)
    next_leader = SharePartition(LIMITS, 0, state, now_ms=7_000, wall_ahead_ms=84_100)  # 100 ms later by the wall clock
    assert next_leader.fetch_offset(7_000) == 1
    assert next_leader.next_deadline_ms() == 7_400


def test_many_accepted_at_once_let_the_next_of_their_keys_go() -> None:
    one = SharePartition(LIMITS._replace(keeps_key_order=True), 0)
    one.learn([])
    spans = [(at, at) for at in range(12)]
    read = Readable(0, 12, spans, [Fate(key=at % 6) for at in range(12)])
    assert take(one, "a", read) == [(0, 5, 1)]
    assert one.fetch_offset(0) == 12
    one.acknowledge("a", [Acknowledgement(at, at, (ACCEPT,)) for at in range(5)], 0)
    assert one.fetch_offset(0) == 6
    assert take(one, "b", read) == [(6, 10, 1)]


def test_records_that_wait_for_their_time_are_not_open_and_more_runs_than_can_be_written_down_are_not_made() -> None:
    one = SharePartition(LIMITS, 0)
    count = RUNS_MAX + 1_000
    fates = [Fate(due_ms=5_000 + at % 2 * 1_000_000) for at in range(count)]  # no two neighbours alike
    assert take(one, "a", Readable(0, count, [(at, at) for at in range(count)], fates)) == []
    assert (one.open_count, one.run_count, one.next_offset) == (0, RUNS_MAX, RUNS_MAX)
    assert one.fetch_offset(0) is None
    assert one.fetch_offset(5_000) == 0


def test_records_that_wait_for_their_time_are_not_written_down_and_the_next_leader_looks_at_them_itself() -> None:
    one = SharePartition(LIMITS, 0)
    read = Readable(0, 5, [(at, at) for at in range(5)], [Fate(due_ms=5_000 + at % 2 * 1_000) for at in range(5)])
    assert take(one, "a", read) == []
    assert one.take_delta() is None
    due = read._replace(fates=[Fate() if at % 2 == 0 else Fate(due_ms=6_000) for at in range(5)])
    assert take(one, "a", due, now_ms=5_000) == [(0, 0, 1), (2, 2, 1), (4, 4, 1)]
    tell(one, "a", ACCEPT, 2, now_ms=5_000)
    delta = one.take_delta()
    assert delta is not None
    assert [(batch.first, batch.last) for batch in delta.batches] == [(0, 0), (2, 2), (4, 4)]
    following = SharePartition(LIMITS, 0, combined((), delta.batches, 0))
    assert states(following) == [
        (0, 0, "AVAILABLE", 1),
        (1, 1, "AVAILABLE", 0),
        (2, 2, "ACKNOWLEDGED", 1),
        (3, 3, "AVAILABLE", 0),
        (4, 4, "AVAILABLE", 1),
    ]


def test_of_a_great_many_records_that_fall_due_all_the_time_the_later_ones_have_their_turn_too() -> None:
    one = SharePartition(LIMITS._replace(in_flight_max=10_000), 0)
    count, part = 3_000, 1_000
    due = [1_000 + at % 25 * 40 for at in range(count)]
    spans = [(at, at) for at in range(count)]
    assert take(one, "a", Readable(0, count, spans, [Fate(due_ms=at) for at in due])) == []
    looked_at = []
    for now_ms in range(1_040, 1_040 + 6 * 40, 40):  # each time there is something in every part
        first = one.fetch_offset(now_ms, end=count)
        assert first is not None
        looked_at.append(first // part)
        end = (first // part + 1) * part
        fates = [Fate() if at <= now_ms else Fate(due_ms=at) for at in due[first:end]]
        assert one.acquire("a", Readable(first, end, spans[first:end], fates), 10_000, EXACT, now_ms)
    assert looked_at == [0, 1, 2, 0, 1, 2]


def test_what_nobody_has_looked_at_yet_has_a_turn_among_a_great_many_records_that_fall_due() -> None:
    one = SharePartition(LIMITS._replace(in_flight_max=10_000), 0)
    count = 3_000
    spans = [(at, at) for at in range(count)]
    waiting = [Fate(due_ms=1_000 + at % 25 * 40) for at in range(count)]
    assert take(one, "a", Readable(0, count, spans, waiting)) == []
    assert one.acquire("a", Readable(0, 1_000, spans[:1_000], [Fate()] * 1_000), 3, EXACT, 1_100)
    assert one.acquire("a", Readable(2_000, count, spans[2_000:], [Fate()] * 1_000), 500, EXACT, 1_100)
    assert one.fetch_offset(1_100, end=count) == 25, "there is nothing else"
    assert one.fetch_offset(1_100, end=count + 1) == count
    assert take(one, "a", log((count, count)), now_ms=1_100) == [(count, count, 1)]
    assert one.fetch_offset(1_100, end=count + 2) == 25


def test_many_times_are_kept_less_exactly_and_none_is_early() -> None:
    one = SharePartition(LIMITS, 0)
    count = 20_000
    due = [5_000 + at for at in range(count)]
    take(one, "a", Readable(0, count, [(at, at) for at in range(count)], [Fate(due_ms=at) for at in due]))
    waits = [(run.until_ms - due[at]) for run in one.runs() for at in range(run.first, run.last + 1)]
    assert waits[0] == 0
    assert min(waits) >= 0
    assert max(waits) <= 200


def test_a_record_that_waits_for_its_key_after_a_delivery_waits_no_longer_for_the_next_leader() -> None:
    """Two of one key were delivered before anybody asked for the order of keys."""
    one = SharePartition(LIMITS, 0)
    assert take(one, "a", log((0, 1))) == [(0, 1, 1)]
    in_order = LIMITS._replace(keeps_key_order=True)
    one.use(in_order)
    one.learn([(0, 7), (1, 7)])
    tell(one, "a", RELEASE, 0, 1)
    read = Readable(0, 2, [(0, 0), (1, 1)], [Fate(key=7), Fate(key=7)])
    assert take(one, "a", read) == [(0, 0, 2)]
    tell(one, "a", RELEASE, 0)
    delta = one.take_delta()
    assert delta is not None
    state = combined((), delta.batches, 0)
    assert [batch.available_at_ms for batch in state] == [0] * len(state)
    following = SharePartition(in_order, 0, state, now_ms=5_000, wall_ahead_ms=1_000_000)
    following.learn([(0, 7), (1, 7)])
    assert take(following, "b", read, now_ms=5_000) == [(0, 0, 3)]
    tell(following, "b", ACCEPT, 0, now_ms=5_000)
    assert take(following, "b", read, now_ms=5_000) == [(1, 1, 2)]
