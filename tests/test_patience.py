"""Tests wait long, and never take a time for a fault: a machine with other things to do is slow, not broken.

A bound on a wait costs nothing while it is not reached, so every one is at least ten seconds; and no test fails because
less than that has passed on the wall's clock. What must be quick is counted, or measured in the processor's time
(`time.thread_time`, `tests/loop_turns.py`).
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SECONDS_MIN = 10
BOUNDED = {"wait_for", "timeout", "wait", "until", "settimeout", "result", "create_connection"}
WALL_CLOCKS = {"monotonic", "perf_counter"}
FILES = sorted(path for path in TESTS.rglob("*.py") if "sim" not in path.parts)  # time there is virtual


def impatient(source: str) -> list[int]:
    """The lines that give up, or fail, within less than ten seconds."""
    return sorted({node.lineno for node in ast.walk(ast.parse(source)) if _is_short_wait(node) or _is_stopwatch(node)})


def _is_short_wait(node: ast.AST) -> bool:
    """`asyncio.wait_for(reply, 5)`, `asyncio.timeout(2)`, `event.wait(5)` in an assertion or on the way to one.

    Those who wait for the bound to be reached (`with pytest.raises(TimeoutError)`) name it or say `timeout=`.
    """
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute | ast.Name):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
    given = [*node.args[-1:], *(one.value for one in node.keywords if one.arg == "seconds")]
    return name in BOUNDED and any(_is_number(one, 1, SECONDS_MIN) for one in given)


def _is_stopwatch(node: ast.AST) -> bool:
    """`assert time.monotonic() - began < 2`."""
    if not isinstance(node, ast.Assert):
        return False
    return any(
        isinstance(operator, ast.Lt | ast.LtE) and _is_number(limit, 0, SECONDS_MIN) and _reads_a_clock(before)
        for compare in ast.walk(node.test)
        if isinstance(compare, ast.Compare)
        for before, operator, limit in _comparisons(compare)
    )


def _comparisons(compare: ast.Compare) -> Iterator[tuple[ast.expr, ast.cmpop, ast.expr]]:
    return zip([compare.left, *compare.comparators], compare.ops, compare.comparators, strict=False)


def _is_number(node: ast.expr, least: float, below: float) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and least <= node.value < below


def _reads_a_clock(node: ast.expr) -> bool:
    names = (one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute))
    return bool(WALL_CLOCKS & set(names))


def test_no_test_gives_up_soon_or_fails_by_a_clock_on_the_wall() -> None:
    assert [f"{path.relative_to(TESTS)}:{line}" for path in FILES for line in impatient(path.read_text())] == []


@pytest.mark.parametrize(
    "source",
    [
        "await asyncio.wait_for(reader.read(), 5)",
        "async with asyncio.timeout(2):\n    pass",
        "wait_for(done, seconds=3)",
        "assert event.wait(5)",
        "assert time.monotonic() - began < 2",
        "assert 0.1 < time.perf_counter() - began < 3.0",
    ],
)
def test_impatience_is_found(source: str) -> None:
    assert impatient(source) == [1]


@pytest.mark.parametrize(
    "source",
    [
        "await asyncio.wait_for(reader.read(), 60)",
        "assert time.thread_time() - began < 2",
        "assert time.monotonic() - began > 2",
        "broker.wait_for(never, timeout=0.01)",
    ],
)
def test_patience_and_expected_ends_of_it_are_not(source: str) -> None:
    assert impatient(source) == []
