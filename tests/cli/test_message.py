"""The JSON form of a message loses nothing, and templates write what a message holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.cli.errors import CliError, UsageError
from clarion.cli.message import Template, TextMessage, for_terminal, from_json, to_json

MAYBE_BYTES = (
    st.none() | st.binary(max_size=40) | st.text(max_size=20).map(lambda text: text.encode("utf-8", "replace"))
)
MESSAGES = st.builds(
    TextMessage,
    key=MAYBE_BYTES,
    value=MAYBE_BYTES,
    headers=st.lists(st.tuples(st.text(st.characters(codec="utf-8"), max_size=9), MAYBE_BYTES), max_size=3),
    partition=st.integers(0, 2**31 - 1),
    timestamp_ms=st.none() | st.integers(0, 2**63 - 1),
)


@given(MESSAGES)
def test_json_round_trip(message):
    line = to_json(replace(message, topic="t", offset=7)).encode()
    assert b"\n" not in line
    read = from_json(line)
    assert replace(read, headers=list(read.headers)) == message


@given(st.binary(max_size=60))
def test_any_line_is_a_message_or_refused(line):
    try:
        assert isinstance(from_json(line), TextMessage)
    except CliError:
        pass


def test_what_json_knows_but_is_no_text_becomes_json():
    assert from_json(b'{"value": {"a": [1, true]}, "key": 7}') == TextMessage(b"7", b'{"a":[1,true]}')


def test_a_template_writes_every_field():
    message = TextMessage(b"k\xff", None, [("h", b"1"), ("n", None)], 3, 1_700_000_000_000, "orders", 42)
    fields = Template("{topic}-{partition}@{offset} {key}={value} {timestamp} [{headers}] {size}\\t", "~")
    assert fields(message) == b"orders-3@42 k\xff=~ 1700000000000 [h=1,n=] 2\t"


def test_an_unknown_field_is_refused_by_name():
    with pytest.raises(CliError, match=r"unknown field \{vlaue\}"):
        Template("{vlaue}")


@pytest.mark.parametrize("text", ["{value", "value}", "{value} {", "{value!r}", "{value:>9}", "{}"])
def test_a_template_that_is_none_is_refused(text):
    with pytest.raises(UsageError, match="--format"):
        Template(text)


def test_a_brace_is_written_twice():
    assert Template('{{"v": {value}}}')(TextMessage(None, b"1")) == b'{"v": 1}'


def test_a_message_cannot_steer_the_terminal():
    assert for_terminal(b"\x1b[2Jgone\n") == b"\\x1b[2Jgone\n"
    assert for_terminal(b"caf\xc3\xa9 \xff\n") == "café \\xff\n".encode()
    assert for_terminal("naïve".encode()) == "naïve".encode()
