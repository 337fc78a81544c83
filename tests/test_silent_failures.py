"""No error of ours is lost: whoever catches everything says why and keeps it, and no task dies in silence."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SOURCES = Path(__file__).parent.parent / "src/clarion"
BROAD = {"Exception", "BaseException"}
STARTS_TASKS = "world/tasks.py"  # which tells of those that fail


def silent_failures(text: str) -> Iterator[tuple[int, str]]:
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ExceptHandler) and _is_broad(node.type) and not _raises(node):
            if not _has_comment(lines, node.lineno, node.body[0].lineno):
                yield node.lineno, "catches everything, and does not say why"
            if node.name is None or node.name not in _names(node.body):
                yield node.lineno, "catches everything, and keeps nothing of it"
        elif isinstance(node, ast.Call) and _called(node) == "suppress" and any(_is_broad(one) for one in node.args):
            yield node.lineno, "suppresses everything"
        elif (
            isinstance(node, ast.Call)
            and _called(node) in ("create_task", "ensure_future")
            and not _has_comment(lines, node.lineno - 1, node.end_lineno or node.lineno)
        ):
            yield node.lineno, "starts a task, and does not say who hears of its errors (`start_task` does)"


def _is_broad(caught: ast.expr | None) -> bool:
    if caught is None:
        return True
    kinds = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(isinstance(one, ast.Name) and one.id in BROAD for one in kinds)


def _raises(handler: ast.ExceptHandler) -> bool:
    return isinstance(handler.body[-1], ast.Raise)


def _names(body: list[ast.stmt]) -> set[str]:
    return {one.id for statement in body for one in ast.walk(statement) if isinstance(one, ast.Name)}


def _called(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _has_comment(lines: list[str], first: int, last: int) -> bool:
    return any(re.search(r"(^|\s)# (?!noqa|type:)", line) for line in lines[first - 1 : last])


def test_no_error_is_lost() -> None:
    found = {
        f"{path.relative_to(SOURCES)}:{line}": complaint
        for path in sorted(SOURCES.rglob("*.py"))
        if not path.match(STARTS_TASKS)
        for line, complaint in silent_failures(path.read_text())
    }
    assert found == {}


def test_what_would_be_lost_is_found() -> None:
    text = """
try:
    work()
except Exception as error:
    pass  # whatever
try:
    work()
except (OSError, BaseException) as error:
    log(error)
with suppress(Exception):
    work()

loop.create_task(work())
try:
    work()
except Exception as error:
    # The boundary of something.
    log(error)
try:
    work()
except BaseException:
    give_back()
    raise
"""
    assert [line for line, _ in sorted(silent_failures(text))] == [4, 8, 10, 13]
