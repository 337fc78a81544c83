"""`clarion serve` as Typer shows it in help and completion: its options come from the table of settings."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer

from clarion.cli.serve import run
from clarion.cli.setting_kinds import ADDRESSES, SWITCH
from clarion.cli.setting_table import SETTINGS, Setting


def add_to(app: typer.Typer) -> None:
    def serve(**flags: Any) -> None:
        """Run a broker until SIGTERM or Ctrl-C.

        Settings come from --config, then CLARION_* variables, then flags; docs/configuration.md lists them.
        """
        run(flags)

    parameters = [_config_parameter(), *(_parameter(each) for each in SETTINGS if each.flag), _set_parameter()]
    serve.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    serve.__annotations__ = {each.name: each.annotation for each in parameters}
    app.command()(serve)


def _parameter(setting: Setting) -> inspect.Parameter:
    assert setting.flag is not None
    default = "" if setting.default is None else f" Default: {setting.default}."
    words = setting.doc.replace("`", "") + ("" if setting.kind is SWITCH else default)
    if setting.kind is SWITCH:
        return _option(setting.parameter, bool, typer.Option(setting.flag, help=words, show_default=False), False)
    if setting.kind is ADDRESSES:
        option = typer.Option(setting.flag, metavar="HOST:PORT", help=words + " Repeatable.", show_default=False)
        return _option(setting.parameter, list[str] | None, option, None)
    metavar = setting.kind.words.replace("`", "").replace(" or ", "|") if "or `" in setting.kind.words else None
    option = typer.Option(setting.flag, metavar=metavar, help=words, show_default=False)
    return _option(setting.parameter, str | None, option, None)


def _config_parameter() -> inspect.Parameter:
    option = typer.Option("--config", metavar="FILE", help="Settings as TOML.", show_default=False)
    return _option("config", str | None, option, None)


def _set_parameter() -> inspect.Parameter:
    words = "Any other setting, e.g. limits.connections_max=100 or topic_defaults.retention.ms=60000. Repeatable."
    return _option("set", list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help=words), None)


def _option(name: str, kind: Any, option: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])
