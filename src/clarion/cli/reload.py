"""SIGHUP: the settings are read anew, from where they came, and what can change while the broker runs changes.

The rest is named in one line and left; settings that make no sense change nothing at all. Certificates are read anew
even where no setting has changed: whoever renews them puts the new files in the place of the old ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from clarion.cli import service_manager
from clarion.cli.errors import CliError
from clarion.model.errors import KafkaError
from clarion.world import event_log
from clarion.world.tasks import start_task

if TYPE_CHECKING:
    from clarion.broker.config import BrokerConfig
    from clarion.broker.server import BrokerServer

log = event_log("cli")


class Reloader:
    def __init__(self, server: BrokerServer, load: Callable[[], BrokerConfig], status: str) -> None:
        self._server = server
        self._load = load
        self._status = status
        self._task: asyncio.Task[None] | None = None
        self._is_asked_again = False

    def ask(self) -> None:
        """One at a time; who asks meanwhile is served by one more."""
        if self._task is None or self._task.done():
            self._task = start_task(self._run(), "reading the settings anew")
        else:
            self._is_asked_again = True

    async def _run(self) -> None:
        self._is_asked_again = True
        while self._is_asked_again:
            self._is_asked_again = False
            service_manager.reloading()
            try:
                await self._reload()
            except (CliError, KafkaError, OSError) as error:
                log.error("reload_refused", reason=_why(error), consequence="everything stays as it was")
            finally:
                service_manager.ready(self._status)

    async def _reload(self) -> None:
        done = await self._server.reload(self._load())
        certificates = sum(listener.tls is not None for listener in done.config.listeners)
        log.info("reloaded", changed=",".join(done.changed) or "nothing", certificates=certificates)
        if done.left:
            log.warning("restart_needed", settings=",".join(done.left), reason="these cannot change while it runs")


def _why(error: Exception) -> str:
    return error.message if isinstance(error, KafkaError) else str(error)
