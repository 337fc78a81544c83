"""Which subscriptions this broker pushes for, at any moment: one `Pusher` for each that is there and not paused.

A broker pushes what lies in the partitions that it leads, as their queues do (docs/decisions/0016-who-pushes.md): no
lease has to be taken, kept or lost, and who takes over a partition takes over its deliveries with it.

Nothing is loaded until there is a push subscription, and then in a thread.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Final

from clarion.broker.threads import in_thread
from clarion.model.subscription import Subscription
from clarion.world import event_log
from clarion.world.tasks import start_task

if TYPE_CHECKING:
    from clarion.broker.broker import Broker
    from clarion.gateway.push_room import PushRoom
    from clarion.gateway.pusher import Pusher
    from clarion.gateway.webhooks import NameLookups

log = event_log("gateway")

_SETTLED_SECONDS: Final = 10.0  # for requests under way when a subscription is paused or changed: most are answered


class Director:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._pushers: dict[str, Pusher] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._working: asyncio.Task[None] | None = None
        self._room: PushRoom | None = None
        self._lookups: NameLookups | None = None

    def start(self) -> None:
        self._broker.subscriptions.on_change(self._look)
        self._look()

    async def stop(self, drain_seconds: float) -> None:
        if self._working is not None:
            self._working.cancel()
            await asyncio.gather(self._working, return_exceptions=True)
        pushers, self._pushers = self._pushers, {}
        stopping = [one.stop(drain_seconds) for one in pushers.values()]
        for task in self._ending.values():
            task.cancel()
        await asyncio.gather(*stopping, *self._ending.values(), return_exceptions=True)

    def abandon(self) -> None:
        """As a process does that is killed: nobody is told anything."""
        for task in [self._working, *self._ending.values()]:
            if task is not None:
                task.cancel()
        for pusher in self._pushers.values():
            pusher.abandon()

    def _look(self, name: str = "", now: Subscription | None = None) -> None:
        """Something has changed. The first push subscription of all begins the work."""
        if now is None and name not in self._pushers and name not in self._ending:  # else `_end` does it
            self._broker.endpoints.forget(name)
        self._changed.set()
        if self._working is None and self._wanted():
            self._working = start_task(self._work(), "push director")

    def _wanted(self) -> dict[str, Subscription]:
        return {one.name: one for one in self._broker.subscriptions.all() if one.push is not None and not one.paused}

    async def _work(self) -> None:
        await in_thread(lambda: import_module("clarion.gateway.pusher"))
        from clarion.gateway.loop_share import LoopShare
        from clarion.gateway.push_room import PushRoom
        from clarion.gateway.webhooks import NameLookups

        share = LoopShare(lambda: self._broker.config.http_share, asyncio.get_running_loop())
        self._room, self._lookups = PushRoom(share), NameLookups()
        while True:
            self._changed.clear()
            self._adapt(self._wanted())
            await self._changed.wait()

    def _adapt(self, wanted: dict[str, Subscription]) -> None:
        """One that has changed is stopped first: what it has under way is settled by the rules it was sent by. The
        others do not wait for that."""
        for name in [name for name, one in self._pushers.items() if wanted.get(name) != one.subscription]:
            self._ending[name] = start_task(self._end(name, self._pushers.pop(name)), f"end of push of {name}")
        for name, subscription in wanted.items():
            if name not in self._pushers and name not in self._ending:
                self._begin(subscription)

    async def _end(self, name: str, pusher: Pusher) -> None:
        try:
            await pusher.stop(_SETTLED_SECONDS)
        finally:
            del self._ending[name]
            self._changed.set()
        if self._broker.subscriptions.get(name) is None:
            self._broker.endpoints.forget(name)

    def _begin(self, subscription: Subscription) -> None:
        from clarion.consumers.addresses import read_networks
        from clarion.gateway.pusher import Pusher
        from clarion.gateway.webhooks import WebhookClient

        assert subscription.push is not None
        assert self._room is not None
        assert self._lookups is not None
        health = self._broker.endpoints.of(subscription.name)
        health.stopped = ""
        private = read_networks(self._broker.config.push_private_networks)
        try:
            client = WebhookClient(subscription.push, self._lookups, private)
        except ValueError as error:  # somebody else has written it to the catalog: the others are pushed all the same
            health.stopped = f"nothing can be sent to its endpoint ({error})"
            log.warning("push_stopped", subscription=subscription.name, reason=str(error))
            return
        self._pushers[subscription.name] = Pusher(self._broker, subscription, client, health, self._room)
        log.info("push_begins", subscription=subscription.name, topics=", ".join(subscription.topics))
