"""Filters of subscriptions: an expression in CEL, compiled once and asked of every message. Never Python's `eval`.

    billing = compile_filter('value.total > 100 && headers["region"] == "eu"')
    billing.matches(key=b"42", headers=[("region", b"eu")], value=b'{"total": 250}')

It sees `key` (a text, or null), `headers` (texts by name), `value` (decoded from JSON, only where it is named),
`topic`, `partition` and `timestamp` (milliseconds). A message about which it cannot be answered, for example because a
field is missing, does not match; how many there were is counted.

What one answer costs is bounded, whoever wrote the expression and the message: expressions are short and call only
functions that are known here, patterns are fixed and small, and of macros, which go through a list, none is inside
another, none searches for a pattern, and they do not see lists of more than `ELEMENTS_MAX`. Where a message is so large
that the expression could still do too much with it (`filter_costs`), it is not asked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from clarion.consumers.filter_costs import WORK_MAX, FilterShape, Size, shape_of, size_of_json, size_of_text
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.subscription import FILTER_LENGTH_MAX

VALUE_BYTES_MAX: Final = 64 * 1024  # decoded for every message that is looked at: a millisecond of one core
ELEMENTS_MAX: Final = 200  # a macro may compare each with all others: 40,000 comparisons are five milliseconds
PATTERN_LENGTH_MAX: Final = 200
PATTERNS_PROGRAM_MAX: Final = 6_000  # of all, in RE2's measure: compiled anew for every message, that takes 1.5 ms
CALLS_MAX: Final = 50

VARIABLES: Final = ("key", "headers", "value", "topic", "partition", "timestamp")
MACROS: Final = frozenset({"all", "exists", "exists_one", "map", "filter"})
FUNCTIONS: Final = frozenset(
    ("has", "size", "contains", "startsWith", "endsWith", "matches", "int", "uint", "double", "string", "bool", "type")
)
_SYNTAX_ERROR: Final = re.compile(
    r"<input>:(?P<line>\d+):(?P<character>\d+): Syntax error: (?P<what>.*?)(?: expecting .*)?$"
)
_OF_ALL_SCRIPTS: Final = {"w": r"\pL", "d": r"\pN", "s": r"\pZ", "W": r"\PL", "D": r"\PN", "S": r"\PZ"}
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_TOKEN: Final = re.compile(
    r"""(?P<text>[rR]?(?:\"\"\"(?:\\.|[^\\])*?\"\"\"|'''(?:\\.|[^\\])*?'''|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))"""
    r"""|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<comment>//[^\n]*)|(?P<space>\s+)|(?P<other>.)""",
    re.DOTALL,
)


class Token(NamedTuple):
    kind: str
    text: str


class Filter:
    """Made by `compile_filter`. Safe in any thread."""

    def __init__(self, text: str, program: Any, shape: FilterShape) -> None:
        self.text = text
        self.errors = 0  # messages about which it could not be answered
        self._program = program
        self._shape = shape
        self._names = frozenset(program.variables())

    def matches(
        self,
        key: bytes | None,
        headers: Iterable[tuple[str, bytes | None]],
        value: bytes | None,
        *,
        topic: str = "",
        partition: int = 0,
        timestamp_ms: int = 0,
    ) -> bool:
        try:
            known = self._seen(key, headers, value)
            known |= {"topic": topic, "partition": partition, "timestamp": timestamp_ms}
            answer = self._program.execute(known)
        except _UNANSWERED:
            answer = None
        except BaseException as error:  # the library's own mistake passes over one message, and ends no thread
            if type(error).__module__ != _PANICS:
                raise
            answer = None
        if not isinstance(answer, bool):
            self.errors += 1
            return False
        return answer

    def _seen(
        self, key: bytes | None, headers: Iterable[tuple[str, bytes | None]], value: bytes | None
    ) -> dict[str, Any]:
        """What it names of these. ValueError where it could do too much with them."""
        seen: dict[str, Any] = {}
        elements = longest = 0
        if "key" in self._names:
            seen["key"] = _decoded(key)
            elements += size_of_text(key)
        if "headers" in self._names:
            listed = list(headers)
            seen["headers"] = {name: _decoded(each) for name, each in listed}
            elements += sum([1 + size_of_text(each) for _, each in listed])
            longest = len(listed)
        if "value" in self._names:
            seen["value"] = found = _read(value)
            size = self._size_of(found, value)
            elements, longest = elements + size.elements, max(longest, size.longest)
        if self._shape.work(Size(elements, longest)) > WORK_MAX:
            raise ValueError("too much work")
        return seen

    def _size_of(self, found: object, value: bytes | None) -> Size:
        """Counted only where it matters: in JSON each element takes two bytes at least, or it is the only one."""
        at_most = Size(len(value or b"") // 2 + 1, 0)
        if not self._shape.has_macros and self._shape.work(at_most) <= WORK_MAX // 2:
            return at_most
        size = size_of_json(found)
        if self._shape.has_macros and size.longest > ELEMENTS_MAX:
            raise ValueError("too many elements")
        return size


def _read(value: bytes | None) -> Any:
    if value is not None and len(value) > VALUE_BYTES_MAX:
        raise ValueError("too large")
    return None if value is None else json.loads(value)


_PANICS: Final = "pyo3_runtime"  # where what a library in Rust raises by its own mistake lives; it is no Exception
_UNANSWERED: Final = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)  # of CEL, JSON and odd values


def compile_filter(text: str) -> Filter:
    """KafkaError, which says what to write instead, where it is none."""
    if not 0 < len(text) <= FILTER_LENGTH_MAX:
        raise _refused(f"it has 1 to {FILTER_LENGTH_MAX} characters")
    tokens = _tokens(text)
    bound = _check_calls(tokens)
    program = _compiled(text)
    for name in program.variables():
        if name not in VARIABLES and name not in bound:
            raise _refused(f"there is no {name[:100]!r}; it can use {', '.join(VARIABLES)}")
    return Filter(text, program, shape_of(tokens, MACROS, VARIABLES))


def _compiled(text: str) -> Any:
    import cel  # most brokers have no filters, and then it is never loaded

    try:
        return cel.compile(text)
    except (ValueError, RuntimeError) as error:
        raise _refused(_reason(error)) from error


def _tokens(text: str) -> list[Token]:
    found = (Token(str(one.lastgroup), one[0]) for one in _TOKEN.finditer(text))
    return [one for one in found if one.kind not in ("space", "comment")]


def _check_calls(tokens: list[Token]) -> set[str]:
    """The names that macros bind, if all that it calls is known and small enough."""
    open_macros: list[bool] = []  # by parenthesis
    bound: set[str] = set()
    calls = program_size = 0
    for at, token in enumerate(tokens):
        if token.text == "(" and token.kind == "other":
            name = tokens[at - 1].text if at and tokens[at - 1].kind == "name" else ""
            calls += bool(name)
            is_macro = name in MACROS
            if is_macro:
                bound.add(_bound_name(tokens, at, name))
            _check_call(name, is_inside=any(open_macros))
            program_size += _pattern_size(tokens[at + 1 : at + 3]) if name == "matches" else 0
            open_macros.append(is_macro)
        elif token.text == ")" and token.kind == "other" and open_macros:
            open_macros.pop()
    if calls > CALLS_MAX:
        raise _refused(f"it calls more than {CALLS_MAX} functions")
    if program_size > PATTERNS_PROGRAM_MAX:
        raise _refused(
            "its patterns are too complicated; where \\w or \\d is repeated, [A-Za-z] and [0-9] are far simpler"
        )
    return bound


def _check_call(name: str, *, is_inside: bool) -> None:
    if name and name not in _OPERATORS and name not in FUNCTIONS | MACROS:
        raise _refused(f"there is no function {name[:100]!r}; it can call {', '.join(sorted(FUNCTIONS | MACROS))}")
    if is_inside and name in MACROS | {"matches"}:
        raise _refused(f"{name} cannot be used inside all, exists, exists_one, map or filter")


_OPERATORS: Final = frozenset({"in"})  # a word before a parenthesis that is no call


def _bound_name(tokens: list[Token], at: int, macro: str) -> str:
    following = tokens[at + 1 : at + 3]
    if [one.kind for one in following] != ["name", "other"] or following[1].text != ",":
        raise _refused(f"{macro} is written with a name for each element: value.items.{macro}(item, item.price > 10)")
    if following[0].text in VARIABLES:
        raise _refused(f"{following[0].text} is the message's; give the elements in {macro} another name")
    return following[0].text


def _pattern_size(argument: list[Token]) -> int:
    """Of a fixed text, since CEL compiles it anew for every message."""
    if [one.kind for one in argument] != ["text", "other"] or argument[1].text != ")":
        raise _refused('matches takes one fixed text: key.matches("^eu-[0-9]+$")')
    pattern = _pattern(argument[0].text)
    if len(pattern) > PATTERN_LENGTH_MAX:
        raise _refused(f"a pattern has at most {PATTERN_LENGTH_MAX} characters")
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        re2.compile(pattern, options)
        return int(re2.compile(_ESCAPE.sub(_of_all_scripts, pattern), options).programsize)
    except re2.error:
        raise _refused(f"{pattern!r} is not a regular expression, or is too complicated") from None


def _pattern(written: str) -> str:
    """What CEL reads there. Of its escapes those alone that are the same to everybody: \\x7b would be another brace."""
    is_raw = written[0] in "rR"
    text = written.lstrip("rR")
    quotes = 3 if text[:3] in ('"""', "'''") else 1
    text = text[quotes:-quotes]
    if is_raw:
        return text
    if any(one[1] not in "\\\"'" for one in _ESCAPE.finditer(text)):
        raise _refused(f'in a pattern, write backslashes twice, or r before it: key.matches(r"{text[:50]}")')
    return _ESCAPE.sub(r"\1", text)


def _of_all_scripts(found: re.Match[str]) -> str:
    """For the measure: CEL's classes are of all scripts, RE2's of ASCII's letters and digits alone."""
    return _OF_ALL_SCRIPTS.get(found[1], found[0])


def _decoded(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode(errors="replace")


def _reason(error: Exception) -> str:
    """The part of the library's sentence that says what is wrong and where, in a reader's words, not a parser's."""
    lines = str(error).splitlines() or [""]
    said = lines[0].rpartition("ERROR: ")[2]
    found = _SYNTAX_ERROR.match(said)
    if found is None:
        return said[:300] or "it cannot be read"
    what = "it ends too early" if found["what"].startswith("mismatched input '<EOF>'") else found["what"]
    what = what.replace("'<EOF>'", "its end").replace("token recognition error", "it cannot be read")
    return f"syntax error in line {found['line']} at character {found['character']}: {what[:200]}"


def _refused(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, f"filter: {reason}")
