"""Numbers as people read and write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.cli.errors import CliError
from clarion.cli.units import (
    bytes_text,
    duration_text,
    parse_duration_ms,
    parse_time_ms,
    plural,
    time_text,
    utc_text,
)

NOW = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("250ms", 250), ("90s", 90_000), ("1h30m", 5_400_000), ("2d", 172_800_000), ("0.5s", 500), ("1w", 604_800_000)],
)
def test_durations_are_read(text, milliseconds):
    assert parse_duration_ms(text) == milliseconds


@pytest.mark.parametrize("text", ["", "5", "m", "5 m", "-5m", "5m!", "five"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(CliError, match="is not a duration"):
        parse_duration_ms(text)


def test_moments_are_read():
    assert parse_time_ms("now", NOW) == NOW
    assert parse_time_ms("-5m", NOW) == NOW - 300_000
    assert parse_time_ms("1700000000000", NOW) == 1_700_000_000_000
    assert parse_time_ms("2023-11-14T22:13:20+00:00", NOW) == 1_700_000_000_000


@given(st.text())
def test_any_text_is_a_moment_or_refused(text):
    try:
        assert isinstance(parse_time_ms(text, NOW), int)
    except CliError:
        pass


@given(st.integers(min_value=-(2**63), max_value=2**63 - 1))
def test_any_timestamp_can_be_shown(timestamp):
    assert time_text(timestamp)
    utc_text(timestamp)


@given(st.integers(min_value=0, max_value=10**15))
def test_a_shown_duration_has_at_most_two_units(milliseconds):
    assert 1 <= len(duration_text(milliseconds).split()) <= 2


def test_sizes_and_durations_read_well():
    assert bytes_text(999) == "999 B"
    assert bytes_text(1_048_588) == "1.0 MB"
    assert duration_text(0.25) == "0.25 ms"
    assert duration_text(5_400_000) == "1h 30m"
    assert duration_text(86_400_000) == "1d"
    assert plural(1, "message") == "1 message"
    assert plural(2_000, "message") == "2,000 messages"
