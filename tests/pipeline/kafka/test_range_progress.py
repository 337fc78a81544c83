"""Starved, late or lost: decided without a broker."""

from uuid import UUID

import pytest

from clarion.pipeline.kafka.range_progress import OffsetRange, RangeProgress

ID = UUID(int=7)
PATIENCE_S = 60.0


@pytest.fixture
def progress() -> RangeProgress:
    return RangeProgress(OffsetRange("t", ID, 3, 100, 200), 1000)


def nothing(progress: RangeProgress, *, log_end: int, others_came: bool, asked_at: float) -> str | None:
    return progress.on_nothing(log_end=log_end, others_came=others_came, asked_at=asked_at, patience_s=PATIENCE_S)


def test_a_partition_whose_log_goes_on_may_be_starved_for_as_long_as_others_come(progress):
    for hour in range(24):
        assert nothing(progress, log_end=200, others_came=True, asked_at=3600.0 * hour) is None
    assert progress.next_offset == 100


@pytest.mark.parametrize(("log_end", "others_came"), [(100, True), (50, True), (100, False), (200, False)])
def test_a_log_that_ends_early_or_an_answer_without_anything_is_late_and_then_lost(progress, log_end, others_came):
    how = {"log_end": log_end, "others_came": others_came}
    assert nothing(progress, **how, asked_at=10.0) is None
    assert nothing(progress, **how, asked_at=10.0 + PATIENCE_S) is None
    assert nothing(progress, **how, asked_at=10.1 + PATIENCE_S) == "t-3: nothing comes after offset 99, before 200"
    assert progress.is_done


def test_what_comes_after_all_ends_the_lateness(progress):
    assert nothing(progress, log_end=100, others_came=False, asked_at=0.0) is None
    assert progress.on_data(150, 5000)
    assert nothing(progress, log_end=150, others_came=False, asked_at=PATIENCE_S + 1) is None


def test_a_log_that_has_grown_ends_the_lateness(progress):
    assert nothing(progress, log_end=100, others_came=True, asked_at=0.0) is None
    assert nothing(progress, log_end=200, others_came=True, asked_at=PATIENCE_S + 1) is None
    assert nothing(progress, log_end=100, others_came=True, asked_at=PATIENCE_S + 2) is None


def test_a_slow_reader_is_no_silence(progress):
    """The second question was asked at once; that its answer was looked at an hour later changes nothing."""
    assert nothing(progress, log_end=100, others_came=False, asked_at=0.0) is None
    assert nothing(progress, log_end=100, others_came=False, asked_at=0.001) is None


def test_a_part_of_a_batch_makes_the_next_question_larger(progress):
    before = progress.wanted().bytes_max
    assert not progress.on_data(100, 1000)
    assert progress.wanted().bytes_max == 2 * before


def test_the_tail_of_a_range_asks_for_what_is_left(progress):
    progress.fetch_bytes = 1 << 22
    assert progress.on_data(190, 9000)
    assert progress.wanted() == (ID, 3, 190, 1100 + 64 * 1024, -1)


def test_deleted_offsets_are_lost_and_the_rest_is_read(progress):
    assert progress.on_out_of_range(120, 300) == "t-3: offsets 100 to 119 are deleted, the log begins at 120"
    assert progress.next_offset == 120


def test_a_range_that_is_deleted_altogether_names_no_more_than_itself(progress):
    assert progress.on_out_of_range(1000, 2000) == "t-3: offsets 100 to 199 are deleted, the log begins at 1000"
    assert progress.is_done


def test_a_log_that_lost_its_end_is_told(progress):
    assert progress.on_out_of_range(0, 80) == "t-3: the log ends at 80, before offset 100"
    assert progress.is_done


def test_a_leader_that_knows_the_offset_by_now_is_asked_again(progress):
    assert progress.on_out_of_range(0, 100) is None
    assert progress.next_offset == 100


def test_another_topic_of_the_same_name_is_told(progress):
    assert progress.on_topic(ID) is None
    assert "was deleted and made again, with offsets 100 to 199" in str(progress.on_topic(UUID(int=8)))
    assert progress.is_done


def test_a_topic_that_is_gone_is_told(progress):
    assert progress.on_topic(None) == "topic t is deleted, with offsets 100 to 199"
