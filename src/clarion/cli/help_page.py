"""What `--help` shows: plain text that can be read in 80 columns and pasted, one example per line.

Typer's own pages name Python's types and wrap examples. Here an indented paragraph of a command's docstring stays as
it is; everything else is filled.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator
from typing import Any

_WIDTH_MAX = 100  # longer lines are hard to read, however wide the terminal
_WIDTH_MIN = 60
_LEFT_MAX = 30  # an option longer than this has its explanation on the next line


def put_into(command: Any) -> None:
    """Give a command, and all below it, this page."""
    command.get_help = page
    for child in getattr(command, "commands", {}).values():
        put_into(child)


def page(context: Any) -> str:
    """The help of the command that a Click context is about."""
    width = max(min(shutil.get_terminal_size((80, 24)).columns, _WIDTH_MAX), _WIDTH_MIN)
    command = context.command
    lines = [f"Usage: {usage(context.command_path, command)}", "", *paragraphs(command.help or "", width)]
    children = getattr(command, "commands", {})
    shown = [(name, _summary(child)) for name, child in children.items() if not child.hidden]
    arguments = [(_argument(each), each.help or "") for each in _of_kind(command, "argument")]
    options = [(_option(each), _explained(each)) for each in _of_kind(command, "option")]
    for title, rows in (("Commands", shown), ("Arguments", arguments), ("Options", options)):
        if rows:
            lines += ["", f"{title}:", *_rows(rows, width)]
    if children:
        lines += ["", f"`{context.command_path} COMMAND --help` tells more."]
    return "\n".join(lines)


def usage(path: str, command: Any) -> str:
    """`clarion consume TOPIC [OPTIONS]`."""
    words = ["COMMAND"] if getattr(command, "commands", None) else map(_argument, _of_kind(command, "argument"))
    return " ".join([path, *words, "[OPTIONS]"])


def paragraphs(text: str, width: int) -> Iterator[str]:
    """Filled lines of a docstring; what is indented, examples above all, is left alone."""
    for number, paragraph in enumerate(text.strip("\n").split("\n\n")):
        if number:
            yield ""
        if paragraph.startswith("  "):
            yield from textwrap.indent(textwrap.dedent(paragraph), "  ").splitlines()
        else:
            yield from textwrap.wrap(paragraph, width)


def _of_kind(command: Any, kind: str) -> list[Any]:
    return [each for each in command.params if each.param_type_name == kind and not getattr(each, "hidden", False)]


def _summary(command: Any) -> str:
    """The first sentence."""
    first = " ".join((command.help or "").split("\n\n")[0].split())
    return first.partition(". ")[0].rstrip(".")


def _argument(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _option(option: Any) -> str:
    """`-p, --partition N`."""
    names = sorted((*option.opts, *option.secondary_opts), key=len)
    is_switch = option.is_flag or option.count
    return ", ".join(names) + ("" if is_switch else f" {value_name(option)}")


def value_name(option: Any) -> str:
    """What stands for an option's value."""
    if option.metavar:
        return str(option.metavar)
    longest = max(option.opts, key=len)
    return str(longest).lstrip("-").upper().replace("-", "_").rpartition("_")[2]


def _explained(option: Any) -> str:
    default = option.default
    if default in (None, False, (), "") or callable(default) or not option.show_default or option.is_flag:
        return option.help or ""
    return f"{option.help or ''} [default: {default}]".strip()


def _rows(rows: list[tuple[str, str]], width: int) -> Iterator[str]:
    left_width = min(max(len(left) for left, _ in rows), _LEFT_MAX)
    for left, right in rows:
        filled = textwrap.wrap(right, width - left_width - 4) or [""]
        if len(left) > left_width:
            yield f"  {left}"
            left = ""
        yield f"  {left:<{left_width}}  {filled[0]}".rstrip()
        yield from (f"  {'':<{left_width}}  {line}" for line in filled[1:])
