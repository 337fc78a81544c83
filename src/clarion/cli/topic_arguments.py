"""What commands about topics are told: names, and settings as NAME=VALUE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from clarion.cli import completion
from clarion.cli.errors import UsageError
from clarion.model.setting_texts import setting_hint, setting_text

NameArgument = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The topic's name or id.", autocompletion=completion.topics)
]
NamesArgument = Annotated[
    list[str],
    typer.Argument(metavar="TOPIC…", help="One or more topics, by name or id.", autocompletion=completion.topics),
]
ConfigOption = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        "-c",
        metavar="NAME=VALUE",
        help="A topic setting by Kafka's name; repeatable.",
        autocompletion=completion.topic_setting,
    ),
]
UnsetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--unset", metavar="NAME", help="Back to the default; repeatable.", autocompletion=completion.topic_setting_name
    ),
]


def settings_of(config: Sequence[str] | None) -> dict[str, str]:
    """As Kafka writes them: `retention.ms=1d` is told to the broker in milliseconds."""
    pairs = (setting_pair("--config", each) for each in config or ())
    settings = {name: setting_text(name, value) for name, value in pairs}
    for name, text in settings.items():
        if hint := setting_hint(name, text):
            raise UsageError(f"--config {name}={text}: {hint}")
    return settings


def setting_pair(flag: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"{flag} {text}: write NAME=VALUE")
    return name, value
