"""Filters: what they see, what they refuse, and that no expression and no message gets out of bounds."""

import json
import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.consumers.filters import (
    ELEMENTS_MAX,
    FUNCTIONS,
    MACROS,
    VALUE_BYTES_MAX,
    VARIABLES,
    Filter,
    compile_filter,
)
from clarion.model.errors import KafkaError


def matches(text: str, value: object = None, *, key: bytes | None = b"42", **more: object) -> bool:
    headers = more.pop("headers", [("region", b"eu")])
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return compile_filter(text).matches(key, headers, raw, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "true",
        'key == "42"',
        'headers["region"] == "eu"',
        'headers.region == "eu"',
        '"region" in headers',
        "!has(headers.colour)",
        "value.total > 100",
        "value.total > 100.5",
        'value.items.exists(item, item.sku == "b")',
        "value.items.all(item, size(item.sku) == 1)",
        'value.items.map(item, item.sku) == ["a", "b"]',
        'key.matches("^[0-9]+$")',
        'key.startsWith("4") && key.endsWith("2") && key.contains("42")',
        'topic == "orders" && partition == 3',
        "timestamp >= 1700000000000",
        'int(key) in [41, 42] // a comment with "a quote',
        "has(value.total) ? value.total > 1 : false",
        "value.nothing == null",
    ],
)
def test_what_an_expression_sees(text):
    value = {"total": 250, "items": [{"sku": "a"}, {"sku": "b"}], "nothing": None}
    assert matches(text, value, topic="orders", partition=3, timestamp_ms=1_700_000_000_000)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("value.total > 1", {}),
        ("value.total > 1", b"no JSON"),
        ("value.total > 1", b"\xff\xfe"),
        ("value.total", {"total": 7}),
        ("1 / (value.total - 7) == 1", {"total": 7}),
        ("value.total > 1", {"total": "many"}),
        ('value == ""', b'"' + b"x" * VALUE_BYTES_MAX + b'"'),
        ("value.all(item, true)", [0] * (ELEMENTS_MAX + 1)),
        ("value.a == 1", b"[" * 30_000 + b"]" * 30_000),
        ("(value.l + value.l + value.l + value.l).all(x, x in (value.l + value.l + value.l))", {"l": [1] * 200}),
        ("value.l.all(x, size(value.s + value.s + value.s) > 0)", {"l": [1] * 200, "s": "x" * 60_000}),
        ("size(value.l.map(x, value.m)) > 0", {"l": [1] * 200, "m": [[1] * 50] * 200}),
        ("size(value.m.filter(x, true)) > 0", {"m": [[1] * 100] * 150}),
        ("value.l.all(x, value == value)", {"l": [1] * 200, "m": [[1] * 50] * 200}),
        ("size(value.l.map(x, [x, x, x, x, x, x, x, x])) > 0", {"l": [[1] * 20] * 200}),
        (" && ".join(["value == value"] * 200), {"m": [[1] * 50] * 200}),
    ],
)
def test_what_cannot_be_answered_does_not_match_and_is_counted(text, value):
    made = compile_filter(text)
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    assert not made.matches(None, [], raw)
    assert made.errors == 1


def test_a_value_is_decoded_only_where_it_is_named():
    made = compile_filter('key == "a"')
    assert made.matches(b"a", [], b"no JSON")
    assert made.errors == 0


def test_keys_and_headers_that_are_no_text_do_no_harm():
    assert matches('headers["a"] == "\ufffd"', headers=[("a", b"\xff")])
    assert matches('key == null && headers["a"] == null', key=None, headers=[("a", None)])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "1 to 4096 characters"),
        ("x" * 4_097, "1 to 4096 characters"),
        ("key ==", "syntax error in line 1 at character 7: it ends too early$"),
        ("(key", r"at character 5: missing '\)' at its end$"),
        ("key == 1 2", "at character 10: extraneous input '2'$"),
        ('colour == "red"', "there is no 'colour'; it can use key, headers"),
        ("__import__('os')", "there is no function '__import__'"),
        ("key.matches(value.pattern)", "one fixed text"),
        ('key.matches("a" + "b")', "one fixed text"),
        ('key.matches("(")', "is not a regular expression"),
        ('key.matches("((a{100}){100}){10}")', "too complicated|is not a regular expression"),
        (f'key.matches("{"a" * 201}")', "at most 200"),
        (r'key.matches(r"\w{50}")', "too complicated"),
        (" && ".join([r'key.matches(r"\w+")'] * 6), "too complicated"),
        (r'key.matches("(a\x7b100\x7d)\x7b100\x7d")', "write backslashes twice, or r before it"),
        (r'key.matches("a\u007b100\u007d")', "write backslashes twice, or r before it"),
        ("value.a.exists(x, value.b.exists(y, x == y))", "cannot be used inside"),
        ("value.a.map(x, value.b.map(y, y))", "cannot be used inside"),
        ('value.a.exists(x, x.matches("a"))', "cannot be used inside"),
        ("value.a.exists(value, value > 1)", "another name"),
        ("value.exists()", "with a name for each element"),
        (" && ".join(["size(key) > 0"] * 51), "more than 50 functions"),
        ("(" * 2_000 + "true" + ")" * 2_000, "filter"),
        ("{1:" * 1_000 + "1" + "}" * 1_000, "filter"),
    ],
)
def test_a_refusal_says_what_to_write(text, says):
    with pytest.raises(KafkaError, match=says):
        compile_filter(text)


@pytest.mark.parametrize(
    "text",
    [
        r'key.matches(r"^\d{4}-\d{2}-\d{2}$")',
        r'key.matches("^\\d{4}-\\d{2}-\\d{2}$")',
        r"key.matches(r'''^[\w-]+$''')",
        r'key.matches("\\\\|-")',
    ],
)
def test_patterns_that_people_write(text):
    assert matches(text, key=b"2026-01-31")


def test_what_people_ask_of_a_large_message_is_answered():
    orders = {"id": 7, "items": [{"sku": f"s{n}", "price": n, "tags": ["a", "b"]} for n in range(200)]}
    assert matches('value.items.exists(item, item.price > 190 && item.sku.startsWith("s"))', orders)
    assert matches('value.items.all(item, size(item.tags) == 2 && !("c" in item.tags))', orders)
    assert matches("size(value.items.filter(item, item.price < 10)) == 10", {"items": orders["items"][:50]})
    assert matches("value.items.exists(item, item.price == value.id)", {"id": 7, "items": orders["items"][:50]})
    assert matches(" && ".join(["value.id == 7"] * 20), orders)


def test_a_long_key_and_many_headers_count_as_well():
    made = compile_filter(f"size({' + '.join(['key'] * 300)}) > 0")
    assert made.matches(b"k", [], None)
    assert not made.matches(b"k" * 1_000_000, [], None)
    of_headers = compile_filter("headers.all(name, headers == headers)")
    assert of_headers.matches(None, [("a", b"1")], None)
    assert not of_headers.matches(None, [(f"h{n}", b"1") for n in range(20_000)], None)


def test_a_macros_own_name_is_no_variable_of_the_message():
    assert matches('value.exists(colour, colour == "red")', ["red"])


class PanickingProgram:
    """As the library's, with a mistake in it."""

    def variables(self) -> list[str]:
        return []

    def execute(self, known: object) -> bool:
        raise type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})


def test_a_mistake_of_the_library_costs_one_message():
    made = Filter("true", PanickingProgram(), compile_filter("true")._shape)
    assert not made.matches(None, [], None)
    assert made.errors == 1


words = st.sampled_from(
    [*VARIABLES, *MACROS, *FUNCTIONS, *"()[]{}.,+-*/%!?:<>=\"'", "&&", "||", "==", "in", "x", "1", "2.5", '"a"', "null"]
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcx"), inner, max_size=3),
)


@given(st.lists(words, max_size=25).map(" ".join) | st.text(max_size=40), json_values, st.binary(max_size=5))
def test_any_text_is_a_filter_that_answers_or_refused(text, value, key):
    with suppress(KafkaError):
        assert compile_filter(text).matches(key, [("a", key)], json.dumps(value).encode()) in (True, False)


expressions = st.recursive(
    st.sampled_from(["value.a", "value", "key", "headers.a", "1", "2u", "1.5", '"a"', "null", "true", "[1, 2]", "{}"]),
    lambda inner: (
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "%", "==", "<", "&&", "||", "in"]), inner).map(
            lambda each: f"({' '.join(each)})"
        )
        | inner.map(lambda one: f"{one}.exists(x, x == 1)")
        | inner.map(lambda one: f"size({one})")
        | inner.map(lambda one: f"int({one})")
        | inner.map(lambda one: f"-({one})")
        | inner.map(lambda one: f"({one})[0]")
    ),
    max_leaves=8,
)


@given(expressions, json_values | st.integers(-(2**63), 2**64).map(lambda number: {"a": number}))
def test_any_expression_answers_about_any_value(text, value):
    with suppress(KafkaError):
        assert compile_filter(text).matches(b"k", [("a", b"1")], json.dumps(value).encode()) in (True, False)


@given(st.integers(), st.integers())
def test_a_comparison_is_pythons(left, right):
    number = abs(right) % 2**62
    assert matches(f"value.n > {number}", {"n": left % 2**62}) == (left % 2**62 > number)


def test_the_filters_on_the_page_are_filters():
    page = (Path(__file__).parents[2] / "docs/subscriptions.md").read_text()
    examples = re.search(r"\n\n((?:    .*\n)+)\nA message about which", page)
    assert examples is not None
    for line in examples[1].splitlines():
        compile_filter(line.strip())
    assert len(examples[1].splitlines()) == 3
