"""`clarion serve` as Typer shows it in help and completion: the flags, in the words of their settings."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer

from clarion.broker.settings import BROKER_SETTINGS
from clarion.cli import completion
from clarion.cli.flags import FLAGS, REPEATABLE, SWITCHES, parameter
from clarion.cli.serve import run


def add_to(app: typer.Typer) -> None:
    def serve(**flags: Any) -> None:
        """Run a broker until SIGTERM or Ctrl-C.

        Settings come from --config, then CLARION_* variables, then flags; docs/configuration.md lists them. SIGHUP
        reads them, and the certificates, anew.

        Examples:

            clarion serve
            clarion serve --data-dir cluster --brokers 3
            clarion serve --durability page-cache --set log.retention.ms=1d
            clarion serve --data-dir data --log-level info,net=debug
        """
        run(flags)

    parameters = [
        _config_parameter(),
        _brokers_parameter(),
        *(_parameter(flag, name) for flag, name in FLAGS.items()),
        _set_parameter(),
    ]
    serve.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    serve.__annotations__ = {each.name: each.annotation for each in parameters}
    app.command()(serve)


def _parameter(flag: str, name: str) -> inspect.Parameter:
    declared = BROKER_SETTINGS[name]
    words = declared.doc.replace("`", "")
    if flag in SWITCHES:
        return _option(parameter(flag), bool, typer.Option(flag, help=words, show_default=False), False)
    words += "" if declared.default in ("", None) else f" Default: {declared.default}."
    if flag in REPEATABLE:
        option = typer.Option(flag, metavar="HOST:PORT", help=words + " Repeatable.", show_default=False)
        return _option(parameter(flag), list[str] | None, option, None)
    choices = getattr(declared.check, "words", "").replace("`", "").split(" or ")
    metavar = "|".join(choices) if len(choices) > 1 else None
    option = typer.Option(
        flag,
        metavar=metavar,
        help=words,
        show_default=False,
        autocompletion=completion.values_of(name) if metavar else None,
    )
    return _option(parameter(flag), str | None, option, None)


def _config_parameter() -> inspect.Parameter:
    option = typer.Option("--config", metavar="FILE", help="Settings as TOML.", show_default=False)
    return _option("config", str | None, option, None)


def _brokers_parameter() -> inspect.Parameter:
    words = "Run a cluster of so many brokers on this machine, each a process with its own port and folder."
    return _option("brokers", str | None, typer.Option("--brokers", metavar="N", help=words, show_default=False), None)


def _set_parameter() -> inspect.Parameter:
    words = "Any other setting, by name, e.g. max.connections=100 or log.retention.ms=1d. Repeatable."
    return _option(
        "set",
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help=words, autocompletion=completion.broker_setting),
        None,
    )


def _option(name: str, kind: Any, option: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])
