"""A partition is the only door to its log: whoever reads or writes past it would not be fenced with it."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "clarion"


def test_nobody_outside_of_replication_reaches_into_a_partitions_log() -> None:
    paths = [path for room in ("broker", "cluster", "groups", "testing") for path in (SOURCE / room).rglob("*.py")]
    assert [place for path in sorted(paths) for place in _logs_named_in(path)] == []


def _logs_named_in(path: Path) -> list[str]:
    nodes = ast.walk(ast.parse(path.read_text()))
    lines = [one.lineno for one in nodes if isinstance(one, ast.Attribute) and one.attr == "log"]
    return [f"{path.relative_to(SOURCE)}:{line}" for line in lines]
