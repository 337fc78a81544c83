"""Durations as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.model.durations import is_duration, parse_duration_ms, write_duration


@given(st.integers(min_value=0, max_value=10**15))
def test_what_is_written_is_read_as_the_same(milliseconds):
    assert parse_duration_ms(write_duration(milliseconds)) == milliseconds


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0, "0s"), (250, "250ms"), (30_000, "30s"), (5_400_000, "1h30m"), (14 * 86_400_000, "14d"), (1_001, "1s1ms")],
)
def test_durations_are_written_in_whole_units(milliseconds, text):
    assert write_duration(milliseconds) == text


@given(st.text())
def test_any_text_is_a_duration_or_refused_with_an_example(text):
    if is_duration(text):
        assert parse_duration_ms(text) >= 0
    else:
        with pytest.raises(ValueError, match="write for example 90s"):
            parse_duration_ms(text)


def test_digits_of_other_scripts_are_no_numbers():
    assert not is_duration("٣s")


def test_a_text_without_end_is_no_duration():
    assert not is_duration("1s" * 1_000_000)
