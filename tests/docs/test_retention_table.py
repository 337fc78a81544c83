"""The truth table of docs/retention.md, row by row."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.consumers.one_message import OneMessage

from clarion.consumers.retention import Need, decide
from clarion.model.durations import parse_duration_ms
from clarion.model.topic_settings import TopicSettings, parse

PAGE = Path(__file__).resolve().parents[2] / "docs/retention.md"
ROWS = re.findall(r"^\| ((?:topic|subscriptions) \| .*) \|$", PAGE.read_text(), re.MULTILINE)
DAY = 86_400_000


class Reader(NamedTuple):
    """A subscription as far as retention looks at it."""

    name: str
    retention_ms: int | None


def milliseconds(text: str) -> int:
    return -1 if text == "-1" else parse_duration_ms(text)


def need(text: str) -> Need:
    who, _, read = text.partition(", ")
    assert read in ("has read it", "has not read it")
    position = 1 if read == "has read it" else 0
    match who.split():
        case ["group"]:
            return Need.of_group("g", position)
        case ["holding", "group"]:
            return Need.of_holding_group("g", position)
        case ["subscription", "until", "consumed"]:
            return Need.of_subscription(Reader("s", -1), position)
        case ["subscription", "of", "the", "topic's"]:
            return Need.of_subscription(Reader("s", None), position)
        case ["subscription", "of", time]:
            return Need.of_subscription(Reader("s", milliseconds(time)), position)
    raise AssertionError(f"nobody knows what {who!r} is")


def test_the_table_is_there() -> None:
    assert len(ROWS) > 25


@pytest.mark.parametrize("row", ROWS)
def test_a_message_goes_when_the_table_says(row: str) -> None:
    by, retention, maximum, readers, when = row.split(" | ")
    settings = parse(
        {
            "clarion.retention.by": by,
            "retention.ms": str(milliseconds(retention)),
            "clarion.retention.max.ms": str(milliseconds(maximum)),
        },
        TopicSettings(),
    )
    needs = [] if readers == "nobody" else [need(one) for one in readers.split("; ")]

    def goes_at(age_ms: int) -> bool:
        return decide(settings, OneMessage(age_ms), needs).start == 1

    if when == "never":
        assert not goes_at(1000 * DAY)
    elif when == "at once":
        assert goes_at(0)
    else:
        after_ms = milliseconds(when.removeprefix("after "))
        assert not goes_at(after_ms)
        assert goes_at(after_ms + 1)
