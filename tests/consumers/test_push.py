"""Push decisions: delays grow and scatter, sick endpoints are left alone, windows adapt, and keys keep their order."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.consumers.push import (
    FAILURES_TO_OPEN,
    REST_MAX_MS,
    REST_MIN_MS,
    RETRY_AFTER_MAX_MS,
    RETRY_MIN_MS,
    WINDOW_MAX,
    WINDOW_START,
    Circuit,
    CircuitState,
    Lanes,
    PushOutcome,
    Window,
    outcome_of,
    retry_after_ms,
    retry_delay_ms,
)

DRAWS = st.floats(0, 1, exclude_max=True)


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, PushOutcome.DELIVERED),
        (204, PushOutcome.DELIVERED),
        (299, PushOutcome.DELIVERED),
        (302, PushOutcome.FAILED),
        (400, PushOutcome.FAILED),
        (410, PushOutcome.GONE),
        (429, PushOutcome.FAILED),
        (503, PushOutcome.FAILED),
    ],
)
def test_what_a_status_means(status: int, outcome: PushOutcome) -> None:
    assert outcome_of(status) is outcome


# Back-off


@given(st.integers(1, 200), st.integers(1, 10_000), st.integers(0, 1_000_000), DRAWS)
def test_a_delay_is_between_half_and_all_of_what_doubling_gives(
    deliveries: int, least: int, more: int, draw: float
) -> None:
    ceiling = min(least + more, least * 2 ** (deliveries - 1))
    assert ceiling / 2 - 1 <= retry_delay_ms(deliveries, least, least + more, draw) <= ceiling


def test_delays_double_until_the_most() -> None:
    assert [retry_delay_ms(n, 1_000, 6_000, 0.999999) for n in range(1, 6)] == [1_000, 2_000, 4_000, 6_000, 6_000]


def test_messages_that_failed_together_come_back_at_different_times() -> None:
    assert len({retry_delay_ms(3, 1_000, 60_000, draw / 100) for draw in range(100)}) == 100


def test_a_subscription_that_says_nothing_does_not_hammer_its_endpoint() -> None:
    assert retry_delay_ms(1, 0, 600_000, 0.0) == RETRY_MIN_MS / 2
    assert retry_delay_ms(9, 0, 0, 0.5) == 0  # it says that it wants no delay at all


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, 0),
        ("", 0),
        ("120", 120_000),
        (" 7 ", 7_000),
        ("-5", 0),
        ("soon", 0),
        ("1e9", 0),
        ("٣", 0),  # a digit, but not HTTP's
        ("9" * 400, RETRY_AFTER_MAX_MS),
        ("Thu, 01 Jan 1970 00:01:00 GMT", 50_000),
        ("Thu, 01 Jan 1970 00:00:01 GMT", 0),
        ("Thu, 01 Jan 9999 00:00:01 GMT", RETRY_AFTER_MAX_MS),
    ],
)
def test_what_an_endpoint_says_of_when_to_come_again(text: str | None, expected: int) -> None:
    assert retry_after_ms(text, now_ms=10_000) == expected


@given(st.text(max_size=60))
def test_no_retry_after_is_too_strange(text: str) -> None:
    assert 0 <= retry_after_ms(text, now_ms=10_000) <= RETRY_AFTER_MAX_MS


# The circuit


def fail(circuit: Circuit, times: int, now_ms: int = 0) -> None:
    for _ in range(times):
        circuit.on_failure(now_ms, is_probe=circuit.begin(now_ms) if circuit.may_send(now_ms) else False)


def test_a_few_failures_in_a_row_open_the_circuit() -> None:
    circuit = Circuit()
    fail(circuit, FAILURES_TO_OPEN - 1)
    assert circuit.may_send(0)
    fail(circuit, 1)
    assert circuit.state is CircuitState.OPEN
    assert not circuit.may_send(REST_MIN_MS - 1)
    assert circuit.opens_in_ms(0) == REST_MIN_MS


def test_one_message_that_fails_among_others_that_do_not_opens_nothing() -> None:
    circuit = Circuit()
    for _ in range(20):
        fail(circuit, FAILURES_TO_OPEN - 1)
        circuit.on_success()
    assert circuit.state is CircuitState.CLOSED


def test_after_its_rest_an_endpoint_gets_one_request_and_no_other_until_that_is_answered() -> None:
    circuit = Circuit()
    fail(circuit, FAILURES_TO_OPEN)
    assert circuit.may_send(REST_MIN_MS)
    assert circuit.begin(REST_MIN_MS)
    assert circuit.state is CircuitState.HALF_OPEN
    assert not circuit.may_send(REST_MIN_MS + 10_000_000)
    assert circuit.opens_in_ms(REST_MIN_MS) is None
    circuit.on_success()
    assert circuit.state is CircuitState.CLOSED
    assert not circuit.begin(REST_MIN_MS)


def test_rests_double_up_to_the_longest_and_begin_short_again_after_a_success() -> None:
    circuit, now, rests = Circuit(), 0, []
    fail(circuit, FAILURES_TO_OPEN)
    for _ in range(9):
        rests.append(circuit.opens_in_ms(now))
        now += rests[-1] or 0
        circuit.on_failure(now, is_probe=circuit.begin(now))
    assert rests[:4] == [REST_MIN_MS * 2**n for n in range(4)]
    assert rests[-1] == REST_MAX_MS
    circuit.on_success()
    fail(circuit, FAILURES_TO_OPEN, now)
    assert circuit.opens_in_ms(now) == REST_MIN_MS


def test_failures_of_requests_that_were_under_way_when_it_opened_do_not_make_the_rest_longer() -> None:
    circuit = Circuit()
    fail(circuit, FAILURES_TO_OPEN)
    for _ in range(30):
        circuit.on_failure(500, is_probe=False)
    assert circuit.opens_in_ms(500) == REST_MIN_MS - 500


def test_a_probe_that_was_given_up_by_us_may_be_made_again_at_once() -> None:
    circuit = Circuit()
    fail(circuit, FAILURES_TO_OPEN)
    is_probe = circuit.begin(REST_MIN_MS)
    circuit.on_abandoned(REST_MIN_MS + 5, is_probe=is_probe)
    assert circuit.may_send(REST_MIN_MS + 5)


def test_an_endpoint_that_wants_to_be_left_alone_is() -> None:
    circuit = Circuit()
    circuit.hold(until_ms=9_000)
    circuit.hold(until_ms=4_000)  # which is no reason to come earlier
    assert not circuit.may_send(8_999)
    assert circuit.opens_in_ms(1_000) == 8_000
    assert circuit.may_send(9_000)


@given(st.lists(st.tuples(st.integers(0, 5_000), st.booleans(), st.integers(0, 3_000)), max_size=60))
def test_whatever_happens_a_circuit_lets_somebody_through_in_the_end(events: list[tuple[int, bool, int]]) -> None:
    circuit, now = Circuit(), 0
    under_way: list[bool] = []
    for step, is_good, hold in events:
        now += step
        if circuit.may_send(now):
            under_way.append(circuit.begin(now))
        assert sum(under_way) <= 1, "there is one probe at a time"
        if under_way:
            is_probe = under_way.pop(0)
            circuit.on_success() if is_good else circuit.on_failure(now, is_probe=is_probe)
        if hold:
            circuit.hold(now + hold)
    wait = circuit.opens_in_ms(now)
    assert wait is not None
    assert circuit.may_send(now + max(0, wait))
    assert wait <= max(REST_MAX_MS, 3_000)


# The window


def rounds(window: Window, count: int, took_ms: float = 10.0, now: float = 0.0) -> float:
    """So many rounds of a full window, each answered in good order."""
    for _ in range(count):
        size = window.size
        for _ in range(size):
            window.on_success(now, now + took_ms, size)
        now += took_ms
    return now


def test_a_window_grows_by_about_one_for_each_round_that_goes_well() -> None:
    window = Window()
    rounds(window, 10)
    assert WINDOW_START + 8 <= window.size <= WINDOW_START + 10
    rounds(window, 500)
    assert window.size == WINDOW_MAX


def test_a_window_that_is_not_used_does_not_grow() -> None:
    window = Window()
    rounds(window, 10)
    before = window.size
    for now in range(1_000):
        window.on_success(now, now + 10, under_way=1)
    assert window.size == before


def test_a_failure_halves_it_once_for_all_that_were_under_way_together() -> None:
    window = Window()
    now = rounds(window, 30)
    before = window.size
    for _ in range(before):
        window.on_failure(now, now + 20)
    assert window.size == before // 2
    window.on_failure(now + 21, now + 30)
    assert window.size == before // 4


def test_answers_that_take_far_longer_than_usual_make_it_smaller_before_anything_fails() -> None:
    window = Window()
    now = rounds(window, 30, took_ms=30)
    before = window.size
    window.on_success(now, now + 200, before)
    assert window.size < before


def test_an_endpoint_that_is_slower_for_good_is_measured_by_what_it_does_now() -> None:
    window = Window()
    now = rounds(window, 30, took_ms=20)
    now = rounds(window, 400, took_ms=100, now=now)
    assert window.size == WINDOW_MAX


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 10_000), st.integers(1, 80)), max_size=200), st.integers(1, 100))
def test_a_window_is_never_closed_and_never_too_large(events: list[tuple[bool, float, int]], most: int) -> None:
    window, now = Window(most), 0.0
    for is_good, took, under_way in events:
        if is_good:
            window.on_success(now, now + took, under_way)
        else:
            window.on_failure(now, now + took)
        now += took
        assert 1 <= window.size <= min(most, WINDOW_MAX)
    window.limit(2)
    assert window.size <= 2


# Lanes


def test_the_later_messages_of_a_key_wait_for_the_earlier_ones() -> None:
    lanes: Lanes[str] = Lanes()
    for message in ("a1", "b1", "a2", "a3"):
        lanes.add(message, message[0])
    first, busy_a = lanes.take(1)
    second, busy_b = lanes.take(1)
    assert (first, second) == (["a1"], ["b1"])
    assert lanes.take(5) == ([], [])
    lanes.finish(busy_b)
    assert not lanes.has_ready
    lanes.finish(busy_a)
    assert lanes.take(5)[0] == ["a2", "a3"]  # in one request, in order


def test_what_waits_behind_a_failure_is_given_up_with_it() -> None:
    lanes: Lanes[str] = Lanes()
    for message in ("a1", "a2", "b1", "a3"):
        lanes.add(message, message[0])
    _, busy = lanes.take(1)
    assert lanes.give_up(busy) == ["a2", "a3"]
    assert lanes.take(9)[0] == ["b1"]
    lanes.add("a1", "a")
    assert lanes.take(9)[0] == ["a1"]


def test_messages_without_a_lane_are_in_nobodys_way() -> None:
    lanes: Lanes[int] = Lanes()
    for number in range(5):
        lanes.add(number, None)
    assert [lanes.take(2)[0] for _ in range(3)] == [[0, 1], [2, 3], [4]]
    assert len(lanes) == 0


@given(
    st.lists(st.integers(0, 3), max_size=60),
    st.lists(st.tuples(st.integers(1, 4), st.booleans(), st.integers(0, 5)), max_size=80),
)
def test_in_every_order_of_events_a_key_is_under_way_once_and_keeps_its_order(
    keys: list[int], steps: list[tuple[int, bool, int]]
) -> None:
    """Key 0 stands for none. What is given up comes again, in order, as from the queue."""
    lanes: Lanes[tuple[int, int]] = Lanes()
    for number, key in enumerate(keys):
        lanes.add((key, number), key or None)
    done: list[tuple[int, int]] = []
    under_way: list[tuple[list[tuple[int, int]], list[object]]] = []

    def check() -> None:
        held = Counter(key for messages, _ in under_way for key in {key for key, _ in messages} if key)
        assert all(count == 1 for count in held.values())

    def end(at: int, is_good: bool) -> None:
        messages, busy = under_way.pop(at % len(under_way))
        if is_good:
            lanes.finish(busy)
            done.extend(messages)
        else:
            again = messages + lanes.give_up(busy)
            for message in sorted(again, key=lambda one: one[1]):
                lanes.add(message, message[0] or None)

    for most, is_good, at in steps:
        if lanes.has_ready:
            under_way.append(lanes.take(most))
        check()
        if under_way and at < 4:
            end(at, is_good)
    while under_way or len(lanes):
        if lanes.has_ready:
            under_way.append(lanes.take(3))
        check()
        end(0, True)
    assert sorted(number for _, number in done) == list(range(len(keys)))
    for key in (1, 2, 3):
        of_key = [number for one, number in done if one == key]
        assert of_key == sorted(of_key)


def test_what_waits_can_be_taken_back_as_a_whole() -> None:
    lanes: Lanes[str] = Lanes()
    for message in ("a1", "a2", "b1"):
        lanes.add(message, message[0])
    _, busy = lanes.take(1)
    assert sorted(lanes.clear()) == ["a2", "b1"]
    lanes.finish(busy)
    assert (len(lanes), lanes.has_ready) == (0, False)


def test_a_message_that_goes_alone_goes_with_nobody_and_in_its_turn() -> None:
    lanes: Lanes[str] = Lanes(str.isupper)
    for message, lane in (("a", "k"), ("B", "k"), ("c", None), ("D", None), ("e", "l"), ("F", "l"), ("g", "l")):
        lanes.add(message, lane)
    taken = []
    while lanes.has_ready:
        messages, used = lanes.take(10)
        taken.append("".join(messages))
        lanes.finish(used)
    assert taken == ["ac", "D", "e", "B", "F", "g"]
    assert len(lanes) == 0
