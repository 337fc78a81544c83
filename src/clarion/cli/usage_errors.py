"""What was wrong with the words of a command line, in one sentence. (Click's exceptions say it for programmers.)"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_NO_COMMAND = re.compile(r"No such command '(.*?)'")
_NUMBERS = {"int": "a whole number, e.g. 10", "float": "a number, e.g. 2.5"}


def sentence(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "clarion"
    return f"{_what(error, context).rstrip('.')} (see `{path} --help`)"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` (did you mean orders?)`, where something known is spelt nearly like it."""
    from difflib import get_close_matches

    close = get_close_matches(name[:100], list(known), n=1, cutoff=0.7)
    return f" (did you mean {close[0]}?)" if close else ""


def _what(error: Exception, context: Any) -> str:
    message: str = error.format_message() if hasattr(error, "format_message") else str(error)
    commands = [*getattr(context.command, "commands", ())] if context is not None else []
    if type(error).__name__ == "NoArgsIsHelpError" or message.startswith("Missing command"):
        return f"a command is missing: {', '.join(commands)}"
    if found := _NO_COMMAND.match(message):
        return f"there is no command {found[1]}{did_you_mean(found[1], commands)}"
    if (option := getattr(error, "option_name", None)) and message.startswith("No such option"):
        if context is not None and option in _options(context.find_root()):
            return f"{option} comes before the command: clarion {option} … {context.command_path.partition(' ')[2]}"
        return f"there is no option {option}{did_you_mean(option, _options(context))}"
    return _bad_number(error) or message


def _options(context: Any) -> list[str]:
    params = context.command.params if context is not None else []
    return [name for each in params if each.param_type_name == "option" for name in each.opts]


def _bad_number(error: Exception) -> str:
    """The parser tells programmers of integers and strings; who typed it wants to know what to write."""
    parameter, reasons = getattr(error, "param", None), getattr(error.__cause__, "errors", None)
    if parameter is None or reasons is None:
        return ""
    reason = reasons()[0]
    wanted = _NUMBERS.get(str(reason["type"]).partition("_")[0])
    return f"{max(parameter.opts, key=len)} {reason['input']}: write {wanted}" if wanted else ""
