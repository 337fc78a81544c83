"""Leader epochs: where each began, and what a follower is told about them."""

from __future__ import annotations

from clarion.log.epochs import LeaderEpochs


def epochs(*entries: tuple[int, int], end: int = 100) -> LeaderEpochs:
    return LeaderEpochs(entries, lambda: end)


def test_an_epoch_ends_where_the_next_one_begins() -> None:
    known = epochs((1, 10), (3, 20), (5, 40))
    assert known.end_offset_for(1) == (1, 20)
    assert known.end_offset_for(3) == (3, 40)
    assert known.end_offset_for(5) == (5, 100)


def test_an_epoch_without_batches_is_answered_with_the_one_before_it() -> None:
    assert epochs((1, 10), (3, 20)).end_offset_for(2) == (1, 20)


def test_an_epoch_before_all_others_ended_where_they_begin() -> None:
    assert epochs((3, 20)).end_offset_for(1) == (1, 20)


def test_an_epoch_from_the_future_is_unknown() -> None:
    assert epochs((3, 20)).end_offset_for(4) == (-1, -1)
    assert epochs().end_offset_for(0) == (-1, -1)
    assert epochs((3, 20)).end_offset_for(-1) == (-1, -1)


def test_assigning_again_changes_nothing_and_a_contradiction_drops_what_it_contradicts() -> None:
    known = epochs((1, 10), (3, 20))
    known.assign(3, 30)
    assert known.entries == [(1, 10), (3, 20)]
    assert known.changes == 0
    known.assign(4, 20)  # epoch 3 wrote nothing
    assert known.entries == [(1, 10), (4, 20)]


def test_the_start_and_the_end_move_over_epochs() -> None:
    known = epochs((1, 10), (3, 20), (5, 40))
    known.advance_start(30)
    assert known.entries == [(3, 30), (5, 40)]
    known.truncate_to(40)
    assert known.entries == [(3, 30)]
    assert [known.epoch_at(offset) for offset in (29, 30, 99)] == [-1, 3, 3]
