"""Whether brokers are still there, sooner than by the end of their leases: the controller holds a connection to each.

When a process dies its kernel closes the connection, and refuses the next one: then nobody listens there any more, and
its lease can be ended. Only both together are a proof. Silence, an unreachable network, refusals where there never was
a connection, or one that is closed and opened again prove nothing, and are left to the lease. Where something else than
the broker's own machine answers for it (address translation, a firewall that rejects), this has to be switched off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final

from clarion.cluster.schema import BrokerRegistration
from clarion.world import event_log
from clarion.world.tasks import start_task

log = event_log("cluster")

_AGAIN_SECONDS: Final = 0.05  # between two attempts that are refused: two of them count
_PAUSE_SECONDS: Final = 1.0  # after what proves nothing, and after a lease was ended
_REFUSALS: Final = 2


class Probes:
    def __init__(self, on_gone: Callable[[BrokerRegistration], Awaitable[None]]) -> None:
        self._on_gone = on_gone
        self._watching: dict[tuple[int, int], asyncio.Task[None]] = {}  # by broker and its epoch

    def watch(self, brokers: Mapping[int, BrokerRegistration]) -> None:
        """These, and no others any more."""
        wanted = {(one.id, one.epoch): one for one in brokers.values()}
        for key in [key for key in self._watching if key not in wanted]:
            self._watching.pop(key).cancel()
        for key, one in wanted.items():
            if key not in self._watching:
                self._watching[key] = start_task(self._watch(one), "probe of a broker")

    async def close(self) -> None:
        tasks = list(self._watching.values())
        self._watching.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, broker: BrokerRegistration) -> None:
        was_there, refusals = False, 0
        while True:
            try:
                await self._hold_connection(broker)
                was_there, refusals = True, 0
            except ConnectionRefusedError:
                refusals += 1
                if was_there and refusals == _REFUSALS:
                    log.warning("broker_refuses_connections", broker=broker.id, consequence="its lease is ended")
                    await self._on_gone(broker)
                await asyncio.sleep(_AGAIN_SECONDS if refusals < _REFUSALS else _PAUSE_SECONDS)
            except OSError:
                refusals = 0
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _hold_connection(self, broker: BrokerRegistration) -> None:
        """Returns when the other side has closed it."""
        reader, writer = await asyncio.open_connection(*broker.endpoint(0))
        try:
            with suppress(OSError):
                await reader.read(1)  # nobody asks anything here, so nothing is answered
        finally:
            writer.close()
