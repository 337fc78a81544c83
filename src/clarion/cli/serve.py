"""`clarion serve`: a broker in this process, from its settings to its last flush."""

from __future__ import annotations

import errno
import logging
import os
import re
import sys
from socket import gaierror
from typing import TYPE_CHECKING, Any, Final

from clarion.cli.errors import CliError
from clarion.cli.listeners import HostPort
from clarion.world import event_log

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable

    from clarion.broker.config import BrokerConfig
    from clarion.broker.server import BrokerServer
    from clarion.cli.settings import ServeSettings

log = event_log("cli")

SUPERVISED: Final = "CLARION_SUPERVISED"  # in the environment of a broker that `--brokers` started: its number
_ADDRESS = re.compile(r"\('([^']+)', (\d+)")


def run(flags: dict[str, Any]) -> None:
    import gc

    gc.disable()  # a start makes much and throws little away: the collector would look at it again and again
    from clarion.cli.settings import load

    def load_settings() -> ServeSettings:
        return load(flags.get("config"), os.environ, flags)

    settings = load_settings()
    _set_up_log(settings.config)
    for old, new in settings.renamed.items():
        log.warning("setting_renamed", old=old, new=new, reason="the old name may go with a later version")
    _raise_descriptor_limit()
    if flags.get("brokers") is not None:
        from clarion.cli import serve_brokers

        serve_brokers.run(flags, settings.config)
    else:
        _run_loop(settings, lambda: load_settings().config)


def _raise_descriptor_limit() -> None:
    """The soft limit is a default for programs that know nothing of it; a server takes what it may have."""
    import resource

    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _run_loop(settings: ServeSettings, load_again: Callable[[], BrokerConfig]) -> None:
    import asyncio

    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, load_again))


async def _serve(settings: ServeSettings, load_again: Callable[[], BrokerConfig]) -> None:
    """Start, say where, wait to be told to stop, drain."""
    import asyncio
    import signal

    from clarion.broker.server import BrokerServer
    from clarion.cli import service_manager
    from clarion.cli.reload import Reloader
    from clarion.gateway.director import Director
    from clarion.gateway.door import Gateway

    loop = asyncio.get_running_loop()
    stopping: asyncio.Future[str] = loop.create_future()  # why

    def stop(reason: str) -> None:
        if not stopping.done():
            stopping.set_result(reason)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number.name)
    if SUPERVISED in os.environ:
        _stop_with_supervisor(loop, lambda: stop("its supervisor is gone"))
    loop.add_signal_handler(signal.SIGHUP, lambda: log.info("reload_put_off", reason="the broker is still starting"))
    server = BrokerServer(settings.config, on_failure=lambda: stop("a failure"), gateway=Gateway)
    began = loop.time()
    await _start(server)
    director = Director(server.broker)
    director.start()
    server.on_stop(director.stop)
    _follow_log_level(server)
    _settle_memory()
    _share_the_interpreter()
    line = _ready_line(server)
    loop.add_signal_handler(signal.SIGHUP, Reloader(server, load_again, line).ask)
    print(line, flush=True)
    service_manager.ready(line)
    service_manager.feed_watchdog(loop)
    log.info("started", seconds=round(loop.time() - began, 3), **_what_started(server))
    log.info("stopping", reason=await stopping)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)  # too late
    service_manager.stopping()
    began = loop.time()
    await server.stop()
    log.info("stopped", seconds=round(loop.time() - began, 3))
    if server.failure is not None:
        raise CliError(f"the registry of {settings.config.data_dir} cannot be written any longer: {server.failure}")


def _what_started(server: BrokerServer) -> dict[str, object]:
    from clarion import __version__, compiled

    topics = len(server.broker.image.topics)
    return {"version": __version__, "runs": compiled.in_words(), "broker": server.config.node_id, "topics": topics}


def _follow_log_level(server: BrokerServer) -> None:
    """Only where it has changed: Kafka's tools may have said something else of single loggers meanwhile."""
    from clarion.world.log_levels import apply_levels

    in_force = ""

    def follow(config: BrokerConfig) -> None:
        nonlocal in_force
        if config.log_level != in_force:
            in_force = config.log_level
            apply_levels(in_force)

    server.on_change(follow)


def _stop_with_supervisor(loop: AbstractEventLoop, stop: Callable[[], None]) -> None:
    """`serve --brokers` holds the other end of our standard input for as long as it lives."""

    def read() -> None:
        if not os.read(0, 1024):
            loop.remove_reader(0)
            stop()

    loop.add_reader(0, read)


def _share_the_interpreter() -> None:
    """Long work of requests is done in threads, which give the interpreter back to the event loop ten times as soon."""
    sys.setswitchinterval(0.0005)  # Python's own 5 ms are waited for several times per request


def _settle_memory() -> None:
    """What was loaded stays: the collector need not look at ten thousand partitions even once, nor at every hiccup."""
    import gc

    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000, 20, 50)  # a request makes few objects in cycles; rarer, longer-lived scans cost less


async def _start(server: BrokerServer) -> None:
    """What can go wrong before the first client, in plain words."""
    from clarion.broker.tls import TlsFilesError
    from clarion.catalog.content import CatalogUnusableError
    from clarion.cluster import StoreError
    from clarion.log.data_directory import WrongFolderError
    from clarion.world.lock import FolderTakenError

    try:
        await server.start()
    except (FolderTakenError, WrongFolderError, CatalogUnusableError) as error:
        raise CliError(str(error)) from error
    except StoreError as error:
        raise CliError(f"--cluster {server.config.cluster}: {error}") from error
    except TlsFilesError as error:
        raise CliError(f"TLS: {error}") from error
    except OSError as error:
        raise CliError(_os_error(error, server)) from error


def _os_error(error: OSError, server: BrokerServer) -> str:
    listeners = ", ".join(str(HostPort(each.host, each.port)) for each in server.config.listeners)
    named = _ADDRESS.search(str(error))  # the event loop puts it into its words
    address = str(HostPort(named[1], int(named[2]))) if named else listeners
    metrics = HostPort(server.config.metrics_host, server.config.metrics_port or 0)
    flag = "--http" if address == str(metrics) else "--listen"
    if error.errno == errno.EADDRINUSE:
        return f"{address} is taken; stop what listens there, or choose another {flag}"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"this machine does not have the address {address}; choose another {flag}"
    if error.errno == errno.EACCES and named:
        return f"only root may listen on {address}; choose a {flag} port from 1024 on"
    if isinstance(error, gaierror):
        places = (
            listeners
            if server.config.metrics_port is None or server.config.http_is_auto
            else f"{listeners} or {metrics}"
        )
        return f"cannot listen on {places}: {error.strerror}"
    where = error.filename or server.config.data_dir
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        part = "" if error.errno == errno.EEXIST else ": a part of that path"
        return f"--data-dir {server.config.data_dir}{part} is a file, not a directory"
    return f"cannot start with {where}: {error.strerror or error}"


def _ready_line(server: BrokerServer) -> str:
    places = " and ".join(
        str(HostPort(address.host, address.port)) + (" (TLS)" if listener.tls else "")
        for address, listener in zip(server.addresses, server.config.listeners, strict=True)
    )
    metrics = server.metrics_address
    shown = f", metrics at http://{HostPort(metrics.host, metrics.port)}/metrics" if metrics else ""
    if metrics and server.config.serves_http_api:
        shown += f", HTTP API at http://{HostPort(metrics.host, metrics.port)}/docs"
    return f"clarion listens on {places}, data in {server.config.data_dir}{shown}"


def _set_up_log(config: BrokerConfig) -> None:
    from clarion.world.events import FloodFilter, JsonFormatter, TextFormatter
    from clarion.world.log_levels import apply_levels

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if config.log_format == "json" else TextFormatter())
    handler.addFilter(FloodFilter())
    if number := os.environ.get(SUPERVISED):
        handler.terminator = f"  [broker {number}]\n"
    logging.basicConfig(handlers=[handler], force=True)
    apply_levels(config.log_level)
