"""`clarion serve --brokers N`: a cluster of N brokers on this machine, each a process of its own.

This process owns the store in which they agree, unless `--cluster` names another; it starts them, starts anew what
dies, and stops all of them. It serves no client. Broker 1 listens where one broker would, the others on the ports after
it; their folders are `broker-1`, `broker-2` … in the data directory, beside the store. One whose supervisor is gone
stops cleanly by itself: it finds its standard input closed.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any, Final

from clarion.broker.config import BrokerConfig, ListenerConfig
from clarion.cli import service_manager
from clarion.cli.errors import CliError, UsageError
from clarion.cli.flags import FLAGS, REPEATABLE, SWITCHES, parameter
from clarion.cli.listeners import HostPort
from clarion.cli.serve import SUPERVISED
from clarion.cluster.opening import open_store
from clarion.log.data_directory import STORE_FOLDER, holds_single_broker
from clarion.world import RealDisk, event_log, make_lasting_folder
from clarion.world.lock import FolderLock, FolderTakenError
from clarion.world.tasks import start_task

log = event_log("cli")

_PORT_MAX: Final = 65_535
BROKERS_MAX: Final = 100  # each is a process with its own memory, ports and files
_OURS: Final = frozenset({"--data-dir", "--listen", "--advertise", "--node-id", "--cluster", "--http", "--metrics"})
_READY: Final = re.compile(
    r"clarion listens on (?P<places>.+?), data in .*?"
    r"(, metrics at (?P<http>http://[^/\s]+)/metrics(, HTTP API at \S+)?)?$"
)
_STOP_SECONDS: Final = 20.0  # a broker takes less than ten, and is killed after this
_PAUSE_SECONDS: Final = 0.2  # before a broker that died is started anew; twice as long each time it dies again
_PAUSE_SECONDS_MAX: Final = 5.0
_STEADY_SECONDS: Final = 30.0  # a life of this length is no sign of trouble


def run(flags: dict[str, Any], config: BrokerConfig) -> None:
    import uvloop

    count = _count(flags["brokers"])
    _check_flags(flags, config, count)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(Supervisor(flags, config, count).run())


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= BROKERS_MAX):
        raise UsageError(f"--brokers {text}: a number from 1 to {BROKERS_MAX}")
    return int(text)


def _check_flags(flags: Mapping[str, Any], config: BrokerConfig, count: int) -> None:
    """What makes no sense for several brokers, said once and not by each of them."""
    if flags.get("node_id") is not None:
        raise UsageError(f"--node-id does not go with --brokers: they are numbered from 1 to {count}")
    for listener in config.listeners:
        if listener.port + count - 1 > _PORT_MAX:
            place = HostPort(listener.host, listener.port)
            raise UsageError(
                f"--listen {place}: {count} brokers need the ports from there on, and the last is {_PORT_MAX}"
            )


@dataclass(slots=True)
class Child:
    number: int
    listeners: tuple[ListenerConfig, ...]
    process: asyncio.subprocess.Process | None = None
    places: tuple[str, ...] = ()  # where it listens, once it does
    http: str = ""  # where it serves HTTP, if it does


class Supervisor:
    def __init__(self, flags: Mapping[str, Any], config: BrokerConfig, count: int) -> None:
        self._flags = flags
        self._config = config
        self._children = [Child(number, _shifted(config.listeners, number - 1)) for number in range(1, count + 1)]
        self._stopping = asyncio.Event()
        self._failure: Exception | None = None

    async def run(self) -> None:
        lock = self._claim_folder()
        try:
            async with AsyncExitStack() as taken:
                if not self._config.cluster:
                    store = await open_store(self._store_address(), self._fail)
                    taken.push_async_callback(store.close)
                await self._run_children()
        finally:
            lock.release()
        if self._failure is not None:
            raise CliError(str(self._failure))

    def _claim_folder(self) -> FolderLock:
        folder = self._config.data_dir
        try:
            make_lasting_folder(RealDisk(), folder)
            if holds_single_broker(RealDisk(), folder):
                raise CliError(
                    f"{folder} is that of a single broker; `clarion cluster adopt` makes it the first of a cluster"
                )
            return FolderLock(folder)
        except FolderTakenError as error:
            raise CliError(str(error)) from error
        except OSError as error:
            raise CliError(f"cannot start with {folder}: {error.strerror or error}") from error

    def _store_address(self) -> str:
        return self._config.cluster or f"file:{os.path.join(self._config.data_dir, STORE_FOLDER)}"

    def _fail(self, error: Exception) -> None:
        self._failure = CliError(f"the store of {self._config.data_dir} cannot be written any longer: {error}")
        self._stopping.set()

    async def _run_children(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        keeping: list[asyncio.Task[None]] = []
        try:
            if await self._start_all():
                line = self._ready_line()
                print(line, flush=True)
                service_manager.ready(line)
                service_manager.feed_watchdog(loop)
                keeping = [start_task(self._keep(child), "keeping a broker running") for child in self._children]
                await self._stopping.wait()
        finally:
            self._stopping.set()
            service_manager.stopping()
            await asyncio.gather(*(self._stop(child) for child in self._children))
            await asyncio.gather(*keeping)

    def _reload(self) -> None:
        """Each reads the settings anew, and says what becomes of it."""
        service_manager.reloading()
        for child in self._children:
            if child.places and child.process is not None and child.process.returncode is None:
                with suppress(ProcessLookupError):
                    child.process.send_signal(signal.SIGHUP)
        service_manager.ready(self._ready_line())

    async def _start_all(self) -> bool:
        """False if somebody wants all to stop before all have started."""
        starting = asyncio.gather(*(self._start(child) for child in self._children))
        stopping = asyncio.get_running_loop().create_task(self._stopping.wait())  # awaited below
        either: list[asyncio.Future[Any]] = [starting, stopping]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not starting.done():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            return False
        for number, is_ready in enumerate(starting.result(), start=1):
            if not is_ready:
                raise CliError(f"broker {number} did not start; what it says is above")
        return True

    def _ready_line(self) -> str:
        places = ",".join(child.places[0] for child in self._children)
        count = len(self._children)
        listen = "1 broker listens" if count == 1 else f"{count} brokers listen"
        http = ", ".join(child.http for child in self._children if child.http)
        shown = f", HTTP at {http}" if http else ""
        return f"clarion: {listen} on {places}, data in {self._config.data_dir}{shown}"

    # One broker

    async def _start(self, child: Child) -> bool:
        """Whether clients can connect to it."""
        child.process = process = await asyncio.create_subprocess_exec(
            *self._command(child),
            env={**_environment(), SUPERVISED: str(child.number)},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        while line := (await process.stdout.readline()).decode(errors="replace"):
            if ready := _READY.match(line.rstrip()):
                child.places = tuple(place.removesuffix(" (TLS)") for place in ready["places"].split(" and "))
                child.http = ready["http"] or ""
                child.listeners = _settled(child.listeners, child.places)
                return True
        await process.wait()
        return False

    async def _keep(self, child: Child) -> None:
        """Start it anew when it dies, until all stop."""
        pause, loop = _PAUSE_SECONDS, asyncio.get_running_loop()
        started = loop.time()
        while True:
            assert child.process is not None
            code = await child.process.wait()
            if self._stopping.is_set():
                return
            pause = _PAUSE_SECONDS if loop.time() - started > _STEADY_SECONDS else pause
            log.warning("broker_died", broker=child.number, code=code, again_in_seconds=pause)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
                    return
            pause = min(2 * pause, _PAUSE_SECONDS_MAX)
            started = loop.time()
            if await self._start(child):
                log.info("broker_started", broker=child.number)

    async def _stop(self, child: Child) -> None:
        process = child.process
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            log.error("broker_killed", broker=child.number, reason=f"it did not stop within {_STOP_SECONDS:.0f} s")
            process.kill()
            await process.wait()

    def _command(self, child: Child) -> list[str]:
        config = self._config
        ours = [
            f"--data-dir={os.path.join(config.data_dir, f'broker-{child.number}')}",
            f"--cluster={self._store_address()}",
            f"--node-id={child.number}",
        ]
        ours += [f"--listen={HostPort(listener.host, listener.port)}" for listener in child.listeners]
        if any(listener.advertised_host for listener in child.listeners):
            ours += [f"--advertise={_advertised(listener)}" for listener in child.listeners]
        if config.metrics_port is not None and not config.http_is_auto:
            port = config.metrics_port and config.metrics_port + child.number - 1
            ours.append(f"--http={HostPort(config.metrics_host, port)}")
        return [sys.executable, "-m", "clarion.cli.main", "serve", *self._given(), *ours]

    def _given(self) -> list[str]:
        """What was said on our own command line, and holds for every broker."""
        words = [f"--config={self._flags['config']}"] if self._flags.get("config") else []
        words += [f"--set={one}" for one in self._flags.get("set") or ()]
        for flag in FLAGS:
            said = self._flags.get(parameter(flag))
            if flag in _OURS or not said:
                continue
            if flag in SWITCHES:
                words.append(flag)
            else:
                words += [f"{flag}={one}" for one in (said if flag in REPEATABLE else [said])]
        return words


def _environment() -> dict[str, str]:
    """Who manages us hears of us alone: a broker that says it is ready, or stops, is no news of the whole."""
    return {name: value for name, value in os.environ.items() if name != service_manager.SOCKET}


def _shifted(listeners: tuple[ListenerConfig, ...], by: int) -> tuple[ListenerConfig, ...]:
    """The same, so many ports further on; a port that is picked stays picked."""
    return tuple(
        ListenerConfig(
            one.host,
            one.port and one.port + by,
            one.advertised_host,
            one.advertised_port and one.advertised_port + by,
            one.tls,
        )
        for one in listeners
    )


def _settled(listeners: tuple[ListenerConfig, ...], places: tuple[str, ...]) -> tuple[ListenerConfig, ...]:
    """With the ports that were picked: clients find it there again when it is started anew."""
    ports = [int(place.rpartition(":")[2]) for place in places]
    return tuple(
        ListenerConfig(one.host, port, one.advertised_host, one.advertised_port, one.tls)
        for one, port in zip(listeners, ports, strict=True)
    )


def _advertised(listener: ListenerConfig) -> HostPort:
    return HostPort(listener.advertised_host or listener.host, listener.advertised_port or listener.port)
