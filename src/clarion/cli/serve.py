"""`clarion serve`: a broker in this process, from its settings to its last flush."""

from __future__ import annotations

import errno
import inspect
import logging
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clarion.cli.errors import CliError
from clarion.cli.setting_kinds import ADDRESSES, SWITCH, HostPort
from clarion.cli.setting_table import SETTINGS, Setting

if TYPE_CHECKING:
    from clarion.broker.server import BrokerServer
    from clarion.cli.settings import ServeSettings


def add_to(app: typer.Typer) -> None:
    """The flags come from the table of settings, so that each is declared once."""

    def serve(**flags: Any) -> None:
        """Run a broker until SIGTERM or Ctrl-C.

        Settings come from --config, then CLARION_* variables, then flags; docs/configuration.md lists them.
        """
        run(flags)

    parameters = [_config_parameter(), *map(_parameter, filter(lambda each: each.flag, SETTINGS)), _set_parameter()]
    serve.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    serve.__annotations__ = {each.name: each.annotation for each in parameters}
    app.command()(serve)


def run(flags: dict[str, Any]) -> None:
    from clarion.cli.settings import load

    settings = load(flags.get("config"), os.environ, flags)
    _set_up_log(settings)
    _run_loop(settings)


def _run_loop(settings: ServeSettings) -> None:
    import asyncio

    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings))


async def _serve(settings: ServeSettings) -> None:
    """Start, say where, wait to be told to stop, drain."""
    import asyncio
    import signal

    from clarion.broker.server import BrokerServer

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    server = BrokerServer(settings.config)
    await _start(server)
    print(_ready_line(server), flush=True)
    await stopping.wait()
    await server.stop()


async def _start(server: BrokerServer) -> None:
    """What can go wrong before the first client, in plain words."""
    import ssl

    from clarion.broker.identity import WrongFolderError
    from clarion.world.lock import FolderTakenError

    data_dir = server.config.data_dir
    try:
        await server.start()
    except FolderTakenError as error:
        raise CliError(f"{data_dir} is in use by another broker; stop it, or choose another --data-dir") from error
    except WrongFolderError as error:
        raise CliError(f"{error}; choose another --data-dir, or the right --node-id") from error
    except ssl.SSLError as error:
        raise CliError(f"the TLS certificate, key or client CA cannot be used: {error.reason or error}") from error
    except OSError as error:
        raise CliError(_os_error(error, server)) from error


def _os_error(error: OSError, server: BrokerServer) -> str:
    listeners = ", ".join(str(HostPort(each.host, each.port)) for each in server.config.listeners)
    if error.errno == errno.EADDRINUSE:
        return f"the port is taken: {error.strerror or listeners}; stop what listens there, or choose another --listen"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"this machine does not have that address: {error.strerror or listeners}; choose another --listen"
    where = error.filename or server.config.data_dir
    return f"cannot start with {where}: {error.strerror or error}"


def _ready_line(server: BrokerServer) -> str:
    places = " and ".join(
        str(HostPort(address.host, address.port)) + (" (TLS)" if listener.tls else "")
        for address, listener in zip(server.addresses, server.config.listeners, strict=True)
    )
    metrics = server.metrics_address
    shown = f", metrics at http://{HostPort(metrics.host, metrics.port)}/metrics" if metrics else ""
    return f"clarion listens on {places}, data in {server.config.data_dir}{shown}"


def _set_up_log(settings: ServeSettings) -> None:
    from clarion.world.events import JsonFormatter, TextFormatter

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else TextFormatter())
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)


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
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )
