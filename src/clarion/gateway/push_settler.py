"""What became of messages, told to their queue. It is gathered while the last telling is under way, so that a thousand
answers in a moment are a few writes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from clarion.broker.authorizer import Principal
from clarion.broker.queues import Settlement
from clarion.model.errors import ErrorCode, KafkaError
from clarion.world import event_log
from clarion.world.events import Repeats
from clarion.world.tasks import start_task

if TYPE_CHECKING:
    from clarion.broker.broker import Broker

log = event_log("gateway")

_TOGETHER_MAX: Final = 1_000  # in one call, which is a millisecond or two of the loop


class Settler:
    def __init__(self, broker: Broker, subscription: str, who: Principal) -> None:
        self._broker = broker
        self._subscription = subscription
        self._who = who
        self._waiting: list[Settlement] = []
        self._news = asyncio.Event()
        self._turn = asyncio.Lock()
        self._repeats = Repeats()
        self._task = start_task(self._run(), f"settling of {subscription}")

    def add(self, settlements: list[Settlement]) -> None:
        self._waiting += settlements
        self._news.set()

    async def stop(self) -> None:
        """When all that was added is told."""
        await self._tell_all()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def abandon(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            await self._tell_all()

    async def _tell_all(self) -> None:
        async with self._turn:
            while self._waiting:
                some, self._waiting = self._waiting[:_TOGETHER_MAX], self._waiting[_TOGETHER_MAX:]
                await self._tell(some)

    async def _tell(self, some: list[Settlement]) -> None:
        """What cannot be settled comes again, from whoever has it now, and under the same key."""
        try:
            results = await self._broker.queues.settle(self._who, self._subscription, some)
        except KafkaError as error:
            self._say("push_cannot_settle", error.message or error.code.name, len(some))
            return
        lost = [one for one in results if one.code is not ErrorCode.NONE]
        if lost:
            self._say("push_settled_too_late", lost[0].message or lost[0].code.name, len(lost))

    def _say(self, event: str, reason: str, messages: int) -> None:
        if self._repeats.allow(asyncio.get_running_loop().time()):
            left_out = self._repeats.take_left_out()
            log.warning(event, subscription=self._subscription, reason=reason, messages=messages, **left_out)
