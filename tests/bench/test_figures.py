"""How rounds become figures, and who goes first."""

import pytest
from bench.figures import Kind, of_rounds, order_of_round, percentile, ratio
from hypothesis import given
from hypothesis import strategies as st


def test_a_rate_is_the_best_of_its_rounds_a_cost_the_lowest_and_a_tail_the_median():
    rounds = [3.0, 9.0, 5.0]
    assert of_rounds(Kind.RATE, rounds) == 9.0
    assert of_rounds(Kind.COST, rounds) == 3.0
    assert of_rounds(Kind.TAIL, rounds) == 5.0


def test_percentiles_are_values_that_were_seen():
    ordered = [float(number) for number in range(1, 1001)]
    assert percentile(ordered, 50) == 500.0
    assert percentile(ordered, 99) == 990.0
    assert percentile(ordered, 99.9) == 999.0
    assert percentile([7.0], 99.9) == 7.0


def test_no_values_have_no_percentile():
    with pytest.raises(ValueError):
        percentile([], 50)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.1, 100))
def test_at_least_that_share_of_the_values_does_not_exceed_a_percentile(values, percent):
    ordered = sorted(values)
    found = percentile(ordered, percent)
    assert sum(value <= found for value in ordered) >= len(ordered) * percent / 100 - 1e-9


def test_who_goes_first_alternates():
    names = ["clarion", "kafka", "nats"]
    assert [order_of_round(names, number)[0] for number in range(4)] == ["clarion", "nats", "clarion", "nats"]
    assert sorted(order_of_round(names, 1)) == names


def test_nothing_to_compare_with_gives_no_ratio():
    assert ratio(3.0, 2.0) == 1.5
    assert ratio(3.0, 0.0) is None
