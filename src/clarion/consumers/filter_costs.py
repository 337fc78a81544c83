"""What one answer of a filter may cost at most: known before it is asked, from its expression and the message's size.

CEL is evaluated in one go, which nothing can interrupt, and while it lasts the process does nothing else. It copies
what it touches: `value.a.map(x, value.b)` copies the list that it makes, with all that is in it, for each element
again. So what an expression could do at worst is reckoned with what is in the message, in elements that are touched:
each is a tenth of a microsecond. Beyond `WORK_MAX` the message is not asked about.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

WORK_MAX: Final = 250_000  # elements touched: 25 ms of one core, in which nobody else has it
_TEXT_BYTES: Final = 256  # of a text take as long as one element
_COLLECTING: Final = frozenset({"map", "filter"})  # which copy what they have so far for each element


class Size(NamedTuple):
    """Of what an expression sees of a message."""

    elements: int  # all of them, at whatever depth, and texts by their length
    longest: int  # list or object


class FilterShape(NamedTuple):
    """Of an expression: how often it does what can be much work, outside macros and inside."""

    names: int  # of the message, each of which may stand for all of it
    sums: int  # each may be a list that is longer by one more of them
    commas: int  # elements of lists that the expression itself has
    inside_tokens: int
    inside_names: int
    inside_bound: int  # the element that the macro is at
    inside_sums: int
    inside_commas: int
    collecting: int  # macros that do so

    @property
    def has_macros(self) -> bool:
        return self.inside_tokens > 0

    def work(self, size: Size) -> int:
        """At worst. A sum of sums copies the first of them each time."""
        outside = size.elements * (1 + self.names * (1 + self.sums)) + self.commas
        if not self.has_macros:
            return outside
        steps = size.longest * (1 + self.sums) + self.commas + 1
        copies = (1 + self.inside_sums) * (1 + self.inside_commas)
        each = self.inside_tokens + self.inside_commas + size.elements * self.inside_names * copies
        of_elements = size.elements * (1 + self.sums) * self.inside_bound * copies
        inside = steps * each + of_elements
        return outside + (inside * (steps + 1) // 2 if self.collecting else inside)


def shape_of(tokens: Sequence[tuple[str, str]], macros: Iterable[str], variables: Iterable[str]) -> FilterShape:
    """`tokens`: kind and text of each, without spaces and comments."""
    of_macros, of_message = frozenset(macros), frozenset(variables)
    counts = dict.fromkeys(FilterShape._fields, 0)
    open_macros: list[bool] = []  # by parenthesis
    for at, (kind, text) in enumerate(tokens):
        prefix = "inside_" if any(open_macros) else ""
        if prefix:
            counts["inside_tokens"] += 1
        if kind == "name" and not _is_field(tokens, at):
            what = "names" if text in of_message else "bound"
            if prefix or what == "names":
                counts[f"{prefix}{what}"] += 1
        elif kind == "other":
            if text == "(":
                caller = tokens[at - 1] if at else ("", "")
                is_macro = caller[0] == "name" and caller[1] in of_macros
                counts["collecting"] += is_macro and caller[1] in _COLLECTING
                open_macros.append(is_macro)
            elif text == ")" and open_macros:
                open_macros.pop()
            elif text in "+,":
                counts[prefix + ("sums" if text == "+" else "commas")] += 1
    return FilterShape(**counts)


def _is_field(tokens: Sequence[tuple[str, str]], at: int) -> bool:
    return at > 0 and tokens[at - 1] == ("other", ".")


def size_of_text(text: bytes | None) -> int:
    return 1 + len(text or b"") // _TEXT_BYTES


def size_of_json(value: object) -> Size:
    """Of a value that was read from JSON."""
    elements, longest, unread = 0, 0, [value]
    while unread:
        one = unread.pop()
        elements += 1
        if isinstance(one, str):
            elements += len(one) // _TEXT_BYTES
        elif isinstance(one, list):
            longest = max(longest, len(one))
            unread.extend(one)
        elif isinstance(one, dict):
            longest = max(longest, len(one))
            elements += len(one)
            unread.extend(one.values())
    return Size(elements, longest)
