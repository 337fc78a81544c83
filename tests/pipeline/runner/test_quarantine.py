"""Why a record is bad, in words; and what its copy in the quarantine holds."""

from datetime import UTC, datetime

import pytest

from clarion.pipeline.quarantine import copy_of, reason

TYPES = {"ts": "timestamp", "level": "string", "latency_ms": "double"}


@pytest.mark.parametrize(
    ("value", "empty", "words"),
    [
        (None, ["ts", "level"], "no value"),
        (b"", ["ts"], "not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b"nonsense", ["ts"], "not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b'{"a": 1} {"b": 2}', [], "not JSON: Extra data: line 1 column 10 (char 9)"),
        (b'{"level": "\xff"}', [], "not UTF-8: invalid start byte at byte 11"),
        (b"[1]", ["ts"], "not a JSON object but a list"),
        (b"null", ["ts"], "not a JSON object but null"),
        (b"true", ["ts"], "not a JSON object but a truth value"),
        (b'{"latency_ms": "abc"}', ["ts", "latency_ms"], 'field latency_ms: "abc" is no double'),
        (b'{"level": "x"}', ["ts", "latency_ms"], "field ts is missing"),
        (b'{"level": "x", "ts": null}', ["ts"], "field ts is missing"),
        (b'{"level": "x"}', [], "does not fit the declared JSON"),
    ],
)
def test_the_reason_says_what_was_wrong(value, empty, words):
    assert reason(value, empty, TYPES, ["ts"]) == words


def test_a_reason_is_short_however_long_the_value_is():
    assert len(reason(b'{"ts": "' + b"x" * 10_000 + b'"}', ["ts"], TYPES, [])) <= 300


def test_a_copy_has_the_bytes_as_they_were_and_its_origin_in_headers():
    row = {
        "key": b"\x00\xff", "value": b"nonsense", "topic": "logs", "partition": 3, "offset": 42,
        "timestamp": datetime(2026, 11, 15, tzinfo=UTC), "fields": ["ts"],
    }  # fmt: skip
    key, value, headers = copy_of(row, "errors", TYPES, [])
    assert (key, value) == (b"\x00\xff", b"nonsense")
    assert dict(headers) == {
        "clarion.reason": b"not JSON: Expecting value: line 1 column 1 (char 0)",
        "clarion.topic": b"logs",
        "clarion.partition": b"3",
        "clarion.offset": b"42",
        "clarion.timestamp": b"1794700800000",
        "clarion.pipeline": b"errors",
    }
