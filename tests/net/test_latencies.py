"""How long requests took: all that a turn answered alike, those that waited each by itself."""

import pytest

from clarion.model.histogram import BOUNDS_SECONDS, Histogram
from clarion.net import Latencies

PRODUCE, FETCH, METADATA = 0, 1, 3


class Watch:
    """A clock that stands still, and counts who looks at it."""

    def __init__(self) -> None:
        self.seconds = 100.0
        self.looks = 0

    def __call__(self) -> float:
        self.looks += 1
        return self.seconds


def bucket(histogram: Histogram) -> dict[float, int]:
    bounds = (*BOUNDS_SECONDS, float("inf"))
    return {bound: count for bound, count in zip(bounds, histogram.counts, strict=True) if count}


def test_a_duration_is_counted_under_the_first_bound_that_it_does_not_exceed() -> None:
    histogram = Histogram()
    for seconds in (0.0, 0.0005, 0.0006, 10.0, 11.0):
        histogram.note(seconds)
    assert bucket(histogram) == {0.0005: 2, 0.001: 1, 10.0: 1, float("inf"): 1}
    assert histogram.seconds_total == pytest.approx(21.0011)


def test_a_copy_does_not_change_with_its_original() -> None:
    histogram = Histogram()
    copied = histogram.copy()
    histogram.note(1.0)
    assert bucket(copied) == {}
    assert copied.seconds_total == 0


def test_what_is_answered_in_one_turn_has_taken_as_long_as_the_turn() -> None:
    watch = Watch()
    latencies = Latencies(watch)
    watch.looks = 0
    for _ in range(50):  # connections that were read in the same turn
        latencies.begin_turn(7.0)
        latencies.produces.total += 1
    latencies.fetches.total += 1
    watch.seconds += 0.004
    latencies.end_turn()
    assert bucket(latencies.produces.histogram) == {0.005: 50}
    assert bucket(latencies.fetches.histogram) == {0.005: 1}
    assert watch.looks == 2, "the clock is looked at twice in a turn, however many requests it served"
    latencies.end_turn()
    assert bucket(latencies.produces.histogram) == {0.005: 50}, "each is counted once"


def test_a_turn_begins_anew_when_the_one_before_has_ended_even_in_the_same_millisecond() -> None:
    watch = Watch()
    latencies = Latencies(watch)
    for _ in range(2):
        latencies.begin_turn(7.0)
        latencies.produces.total += 1
        latencies.end_turn()
        watch.seconds += 0.3
    assert bucket(latencies.produces.histogram) == {0.0005: 2}


def test_one_that_waits_has_taken_as_long_as_its_client_waited() -> None:
    watch = Watch()
    latencies = Latencies(watch)
    latencies.begin_turn(7.0)
    latencies.produces.total += 1
    latencies.produces.set_apart()
    came = latencies.began
    for now in (8.0, 9.0):
        watch.seconds += 0.9
        latencies.begin_turn(now)
        latencies.end_turn()
    assert bucket(latencies.produces.histogram) == {}
    latencies.note_answered(latencies.produces.histogram, came)
    assert bucket(latencies.produces.histogram) == {2.5: 1}
    latencies.end_turn()
    assert bucket(latencies.produces.histogram) == {2.5: 1}


def test_every_api_has_a_histogram_of_its_own() -> None:
    latencies = Latencies(Watch())
    latencies.note_answered(latencies.of(METADATA), latencies.began)
    found = latencies.histograms(PRODUCE, FETCH)
    assert {key: sum(one.counts) for key, one in found.items()} == {PRODUCE: 0, FETCH: 0, METADATA: 1}
