"""Rows for people and for programs: a Rich table in a terminal, aligned columns in a pipe, JSON when asked for."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

Row = Mapping[str, Any]


class Column(NamedTuple):
    key: str
    header: str
    text: Callable[[Any], str] = str
    right: bool = False
    style: str = ""


def show_rows(
    rows: Sequence[Row], columns: Sequence[Column], *, as_json: bool, title: str = "", none: str = ""
) -> None:
    """Print rows; `none` is said where there are no rows at all."""
    if as_json:
        show_json(list(rows))
    elif not rows:
        print(none)
    elif sys.stdout.isatty():
        _show_rich(rows, columns, title)
    else:
        _show_plain(rows, columns)


def show_json(value: object) -> None:
    print(json_text(value, indent=2))


def json_text(value: object, indent: int | None = None) -> str:
    """JSON for people: letters as they are. What could steer a terminal is escaped, beyond what JSON itself wants."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=str)
    return "".join(one if one.isprintable() or one == "\n" else f"\\u{ord(one):04x}" for one in text)


def show_notice(text: str) -> None:
    """A remark that is not the command's output: it must not get into a pipe."""
    print("\n".join(map(clean, text.splitlines())), file=sys.stderr, flush=True)


def clean(text: str) -> str:
    """A peer's text must not be able to steer the terminal."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def _show_rich(rows: Sequence[Row], columns: Sequence[Column], title: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left", title_style="bold", header_style="bold", box=_box())
    for column in columns:
        table.add_column(
            column.header, justify="right" if column.right else "left", style=column.style, overflow="fold"
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in _cells(row, columns)))
    Console().print(table)


def _box() -> Any:
    from rich import box

    return box.ROUNDED


def _show_plain(rows: Sequence[Row], columns: Sequence[Column]) -> None:
    lines = [[column.header for column in columns], *(_cells(row, columns) for row in rows)]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(_pad(*each) for each in zip(line, widths, columns, strict=True)).rstrip())


def _pad(cell: str, width: int, column: Column) -> str:
    return cell.rjust(width) if column.right else cell.ljust(width)


def _cells(row: Row, columns: Sequence[Column]) -> list[str]:
    return [_cell(row[column.key], column) for column in columns]


def _cell(value: Any, column: Column) -> str:
    return "-" if value is None else clean(column.text(value))
