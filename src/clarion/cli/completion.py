"""What the shell is offered when somebody presses the Tab key: topics, groups, settings and their values, profiles.

`answer` speaks with bash, zsh and fish as the scripts of `clarion --install-completion` do. What cannot be found out
quickly is not offered: no broker, no names, and never a complaint in the middle of somebody's line.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from struct import error as StructError
from typing import TYPE_CHECKING, Any, Final

import typer

from clarion.cli.errors import CliError

if TYPE_CHECKING:
    from clarion.cli.names_at_broker import Asker
    from clarion.model.setting_kinds import Setting

VARIABLE: Final = "_CLARION_COMPLETE"  # what the shell sets to ask for completions
_SECONDS: Final = 0.2  # for the broker: longer, and whoever typed has gone on typing
_BREAKS: Final = re.compile(r"[=:]+")  # where bash begins a new word
_DURATIONS: Final = ("1h", "1d", "7d", "30d")
_SIZES: Final = ("64MiB", "1GB", "10GB")


# ------------------------------------------------------------------------------------------------ what there is


def topics(context: typer.Context, incomplete: str) -> list[str]:
    return _at_broker(context, incomplete, lambda asker, host, port: asker.metadata(host, port).topics)


def groups(context: typer.Context, incomplete: str) -> list[str]:
    def of_all_brokers(asker: Asker, host: str, port: int) -> Iterable[str]:
        for each in asker.metadata(host, port).brokers:
            with suppress(OSError):  # that one is away
                yield from asker.groups(*each)

    return _at_broker(context, incomplete, of_all_brokers)


def topic_setting(incomplete: str) -> list[str]:
    """NAME=VALUE."""
    from clarion.model.topic_settings import TOPIC_SETTINGS

    return _pairs(incomplete, TOPIC_SETTINGS)


def topic_setting_name(incomplete: str) -> list[str]:
    from clarion.model.topic_settings import TOPIC_SETTINGS

    return [name for name in TOPIC_SETTINGS if name.startswith(incomplete)]


def broker_setting(incomplete: str) -> list[str]:
    """NAME=VALUE."""
    from clarion.broker.settings import BROKER_SETTINGS

    return _pairs(incomplete, BROKER_SETTINGS)


def values_of(name: str) -> Callable[[str], list[str]]:
    """For the flag of `serve` that sets it."""

    def values(incomplete: str) -> list[str]:
        from clarion.broker.settings import BROKER_SETTINGS

        return [value for value in _values(BROKER_SETTINGS[name]) if value.startswith(incomplete)]

    return values


def levels(incomplete: str) -> list[str]:
    from clarion.world.log_levels import COMPONENT_LEVELS, COMPONENTS

    pairs = [f"{component}={level}" for component in COMPONENTS for level in COMPONENT_LEVELS]
    return [each for each in (*COMPONENT_LEVELS, *pairs) if each.startswith(incomplete)]


def profile_names(incomplete: str) -> list[str]:
    from clarion.cli.profiles import profiles_file, read_profiles

    try:
        return [name for name in sorted(read_profiles(profiles_file()).by_name) if name.startswith(incomplete)]
    except CliError:
        return []


def _at_broker(context: Any, incomplete: str, ask: Callable[[Asker, str, int], Iterable[str]]) -> list[str]:
    from clarion.cli.link import Link
    from clarion.cli.names_at_broker import Asker

    root = context.find_root()
    root.obj = {"bootstrap": root.params.get("bootstrap"), "client": root.params.get("client")}
    root.obj["profile"] = root.params.get("profile_name")
    try:
        link = Link.of(context, context.params.get("bootstrap"))
        asker = Asker(link.settings, _SECONDS)
        for host, port in link.places():
            with suppress(OSError):  # the next may answer
                return sorted({name for name in ask(asker, host, port) if name.startswith(incomplete)})
    except (CliError, ValueError, IndexError, StructError):
        pass
    return []


def _pairs(incomplete: str, known: Any) -> list[str]:
    """Names; and where only one is left, that one with values, for a shell puts a space behind a single answer."""
    name, equals, value = incomplete.partition("=")
    if equals:
        values = _values(known[name]) if name in known else ()
        return [f"{name}={each}" for each in values if each.startswith(value)]
    names = [each for each in known if each.startswith(name)]
    if len(names) == 1 or name in names:
        only = name if name in names else names[0]
        return [f"{only}={each}" for each in _values(known[only])]
    return [f"{each}=" for each in names]


def _values(declared: Setting) -> Iterator[str]:
    from clarion.model.setting_kinds import Kind, write_value

    choices = re.findall(r"`([a-z0-9-]+)`", getattr(declared.check, "words", ""))
    if declared.kind is Kind.BOOLEAN:
        choices = ["true", "false"]
    elif declared.name.endswith(".ms"):
        choices = [*_DURATIONS]
    elif declared.name.endswith(".bytes"):
        choices = [*_SIZES]
    default = write_value(declared.default)
    yield from dict.fromkeys(each for each in (*choices, default) if each)


# ------------------------------------------------------------------------------------------------ how shells ask


def answer(command: Any, instruction: str) -> str | None:
    """What to print; None for what Typer does by itself, such as printing the script."""
    shells: dict[str, Callable[[Any], str]] = {
        "complete_bash": _for_bash,
        "complete_zsh": _for_zsh,
        "complete_fish": _for_fish,
    }
    return shells[instruction](command) if instruction in shells else None


def _for_bash(command: Any) -> str:
    words, at = _words(os.environ.get("COMP_WORDS", "")), int(os.environ.get("COMP_CWORD", "0"))
    told = rejoined(words[1:at], words[at] if at < len(words) else "")
    # What lies before the last break stays in the line: bash replaces the rest.
    before = max((found.end() for found in _BREAKS.finditer(told[-1])), default=0)
    return "\n".join(item.value[before:] for item in _items(command, told[:-1], told[-1]))


def rejoined(words: list[str], last: str) -> list[str]:
    """Words as they were typed: bash takes `a=b` apart, and `host:port` too."""
    joined: list[str] = []
    for word in (*words, last):
        is_break = bool(_BREAKS.fullmatch(word))
        follows_break = bool(joined) and joined[-1][-1:] in ("=", ":")
        if joined and (is_break or follows_break):
            joined[-1] += word
        else:
            joined.append(word)
    return joined


def _for_zsh(command: Any) -> str:
    lines = [f'"{_zsh(item.value)}"' + (f':"{_zsh(item.help)}"' if item.help else "") for item in _of_line(command)]
    return "_arguments '*: :((" + "\n".join(lines) + "))'" if lines else "_files"


def _zsh(text: str) -> str:
    """As the script of `--install-completion` wants it."""
    for char, instead in (('"', '""'), ("'", "''"), ("$", "\\$"), ("`", "\\`"), (":", "\\\\:")):
        text = text.replace(char, instead)
    return text


def _for_fish(command: Any) -> str:
    lines = [item.value + (f"\t{' '.join(item.help.split())}" if item.help else "") for item in _of_line(command)]
    if os.environ.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
        raise typer.Exit(0 if lines else 1)
    return "\n".join(lines)


def _of_line(command: Any) -> list[Any]:
    """zsh and fish send the line up to the cursor."""
    line = os.environ.get("_TYPER_COMPLETE_ARGS", "")
    words = _words(line)[1:]
    last = words.pop() if words and not line.endswith(" ") else ""
    return _items(command, words, last)


def _items(command: Any, words: list[str], incomplete: str) -> list[Any]:
    from typer._completion_classes import BashComplete  # how its command line is understood is the same for all shells

    _leave_words_alone()
    return list(BashComplete(command, {}, "clarion", VARIABLE).get_completions(words, incomplete))


class _Untouched:
    """In the place of what makes numbers and paths of words."""

    def coerce(self, value: Any, **_: Any) -> Any:
        return value


def _leave_words_alone() -> None:
    """Typer has Pydantic check what was typed, and loading that takes a third of the whole answer's time."""
    from typer import core

    for kind in (core.TyperArgument, core.TyperOption):
        kind.get_runtime_param = lambda _self: _Untouched()  # type: ignore[assignment, method-assign, return-value]


def _words(line: str) -> list[str]:
    """As far as it goes: a quotation that is not closed yet ends with the line."""
    for closing in ("", "'", '"'):
        with suppress(ValueError):
            return shlex.split(line + closing)
    return line.split()
