"""How long a replica that is being filled waits after a piece: all have a share of the time, who does not gain more."""

from __future__ import annotations

import pytest

from clarion.replication.catch_up import CatchUp, Filling, Throttle, is_listed

SHARE = 0.2
PIECE = 1 << 20
MUCH = 1_000_000  # messages


def no_clock() -> float:
    raise AssertionError("what time it is, is told")


def fill(catch_up: CatchUp, seconds: float, gains: int, rate: float | None = None) -> tuple[int, list[float]]:
    """So long, with pieces that take a millisecond each; returns how many there were, and their pauses."""
    now, lag, pauses = 0.0, MUCH, []
    filling = Filling(now, lag)
    while now < seconds:
        now, lag = now + 0.001, lag - gains
        pauses.append(catch_up.pause_after(filling, now, PIECE, 0.001, lag, rate))
        now += pauses[-1]
    return len(pauses), pauses


def test_filling_takes_its_share_of_the_time() -> None:
    pieces, _ = fill(CatchUp(lambda: SHARE, no_clock), 10.0, gains=100)
    assert 0.9 * SHARE * 10.0 <= pieces * 0.001 <= 1.1 * SHARE * 10.0


def test_a_piece_counts_from_when_it_was_asked_for_not_only_while_it_is_written() -> None:
    catch_up = CatchUp(lambda: SHARE, no_clock)
    assert catch_up.seconds_of(PIECE, asked_at=1.0, began=1.002, now=1.003) == pytest.approx(0.003)


def test_what_pieces_have_waited_for_together_counts_once() -> None:
    catch_up = CatchUp(lambda: SHARE, no_clock)
    assert catch_up.seconds_of(PIECE, asked_at=1.0, began=1.003, now=1.004) == pytest.approx(0.004)
    assert catch_up.seconds_of(PIECE, asked_at=1.0, began=1.004, now=1.005) == pytest.approx(0.001)
    assert catch_up.seconds_of(PIECE, asked_at=1.0045, began=1.006, now=1.007) == pytest.approx(0.002)


def test_a_piece_that_had_to_wait_at_its_leader_does_not_count_for_all_of_that() -> None:
    catch_up = CatchUp(lambda: SHARE, no_clock)
    assert catch_up.seconds_of(PIECE, asked_at=1.0, began=1.5, now=1.501) == pytest.approx(0.005)
    assert catch_up.seconds_of(PIECE, asked_at=2.0, began=2.5, now=2.52) == pytest.approx(0.020), "written slowly"


def test_the_whole_time_is_without_pauses() -> None:
    _, pauses = fill(CatchUp(lambda: 1.0, no_clock), 1.0, gains=100)
    assert not any(pauses)


def test_all_that_are_filled_share_it() -> None:
    catch_up = CatchUp(lambda: SHARE, no_clock)
    replicas = [Filling(0.0, MUCH) for _ in range(10)]
    pauses = [catch_up.pause_after(one, 0.0, PIECE, 0.001, MUCH, None) for one in replicas]
    assert pauses == sorted(pauses)
    assert abs(pauses[-1] - 10 * 0.001 * (1 / SHARE - 1)) < 1e-9


def test_who_does_not_gain_is_held_up_less_and_less_until_it_is_not() -> None:
    _, pauses = fill(CatchUp(lambda: SHARE, no_clock), 30.0, gains=-1)
    assert pauses[0] > 0
    assert pauses[-1] == 0.0
    halves = list(dict.fromkeys(round(each, 9) for each in pauses))
    assert halves == sorted(halves, reverse=True)


def test_a_rate_holds_also_for_who_does_not_gain() -> None:
    pieces, _ = fill(CatchUp(lambda: SHARE, no_clock), 20.0, gains=-1, rate=2.0 * PIECE)
    assert pieces <= 41


def test_a_rate_that_was_corrected_holds_at_once_for_those_who_wait() -> None:
    catch_up, filling = CatchUp(lambda: 1.0, no_clock), Filling(0.0, MUCH)
    assert catch_up.pause_after(filling, 0.0, PIECE, 0.001, MUCH, 1.0) == PIECE
    assert filling.wait_seconds(1.0, 1.0) == PIECE - 1
    assert filling.wait_seconds(1.0, 2.0 * PIECE) == 0.0
    assert catch_up.pause_after(filling, 1.0, PIECE, 0.001, MUCH, 2.0 * PIECE) == 0.5
    assert filling.wait_seconds(1.0, None) == 0.0, "and one that was taken away"


def test_a_throttle_gives_so_many_bytes_per_second_in_the_mean() -> None:
    throttle, now, spent = Throttle(), 5.0, 0
    while now < 15.0:
        assert throttle.wait_seconds(now) == 0.0
        throttle.spend(now, 300 / 1000)
        spent += 300
        now += throttle.wait_seconds(now)
    assert 10_000 <= spent <= 10_300 + 300


def test_a_topic_lists_replicas_or_all() -> None:
    assert is_listed(("0:1", "1:3"), 1, 3)
    assert not is_listed(("0:1", "1:3"), 0, 3)
    assert is_listed(("*",), 7, 7)
    assert not is_listed((), 0, 1)
