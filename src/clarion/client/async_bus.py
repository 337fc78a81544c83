"""`connect_async`: the six verbs for asyncio, with the same names."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, overload
from weakref import finalize

from clarion.client.arguments import Content, Duration, Headers, Moment
from clarion.client.async_reading import AsyncQueue, AsyncReading, AsyncSource, AsyncStream
from clarion.client.broker_links import LedTopic
from clarion.client.bus_core import BusCore, check_read, check_whole_queue, subscription_fields
from clarion.client.bus_settings import BusSettings
from clarion.client.errors import ClarionError, ClosedError
from clarion.client.message_tray import MessageTray
from clarion.client.new_messages import Draft, drafts_of, last_partition, new_message
from clarion.client.partitioners import Partitioner, partitioner_of
from clarion.client.queue_reader import PREFETCH_DEFAULT
from clarion.client.stream_source import open_stream
from clarion.client.topics import CreatedTopic
from clarion.client.writer import (
    BufferFullError,
    MessageWriter,
    NewMessage,
    OnWritten,
    StaleTopicError,
    WriteBatch,
    Written,
)
from clarion.model.subscription import QUEUE, Subscription
from clarion.world.tasks import start_task

_FULL_PAUSE_SECONDS = 0.005  # until it is tried again whether there is room for a message


def connect_async(
    bootstrap: str = "127.0.0.1:9092",
    *,
    client_id: str = "clarion-python",
    timeout: Duration = "30s",
    partitioner: str | int | Mapping[int, float] | Partitioner = "key",
    settings: Mapping[str, Any] | None = None,
) -> AsyncBus:
    """The asyncio twin of `connect`: `async with connect_async(…) as bus`, or `bus = await connect_async(…)`."""
    return AsyncBus(BusSettings.of(bootstrap, client_id, timeout, settings), partitioner_of(partitioner))


class AsyncBus:
    """Made by `connect_async`, and used on one event loop. What its methods do is said at those of `Bus`."""

    def __init__(self, settings: BusSettings, partitioner: Partitioner) -> None:
        self._settings = settings
        self._partitioner = partitioner
        self._core = BusCore(settings)
        self._writer: MessageWriter | None = None
        self._open: dict[int, tuple[AsyncSource, MessageTray, asyncio.AbstractEventLoop]] = {}  # as of `Bus`
        self._closing: set[asyncio.Task[None]] = set()
        self._is_closed = False

    # Topics

    async def create(
        self,
        topic_id: str,
        topic_name: str | None = None,
        *,
        partitions: int | None = None,
        replication: int | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> CreatedTopic:
        return await self._live().create(topic_id, topic_name, partitions, replication, settings)

    async def delete_topic(self, topic_id: str) -> None:
        await self._live().topics.delete(topic_id)

    # Writing

    @overload
    async def write(
        self,
        topic_id: str,
        message: Content,
        *,
        key: Content = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: Moment | None = None,
    ) -> Written: ...

    @overload
    async def write(
        self,
        topic_id: str,
        partition_id: int,
        message: Content,
        *,
        key: Content = None,
        headers: Headers | None = None,
        timestamp: Moment | None = None,
    ) -> Written: ...

    async def write(self, topic_id: str, *what: Any, **more: Any) -> Written:
        (written,) = await self._write([new_message(*what, **more)], topic_id)
        return written

    async def write_soon(self, topic_id: str, *what: Any, **more: Any) -> asyncio.Future[Written]:
        """Waits only until there is room for it."""
        draft = new_message(*what, **more)
        topic = await self._live().find(topic_id, draft.partition)
        found, on_written = self._writing().pending(topic, draft)
        await self._post(topic, draft, on_written)
        return asyncio.wrap_future(found)

    async def write_many(self, topic_id: str, messages: Iterable[Draft]) -> list[Written]:
        return await self._write(drafts_of(messages), topic_id)

    async def flush(self) -> None:
        if self._writer is not None:
            await asyncio.to_thread(self._writer.flush)

    async def _write(self, drafts: list[NewMessage], topic_id: str) -> list[Written]:
        topic = await self._live().find(topic_id, last_partition(drafts))
        batch = WriteBatch(len(drafts))
        for number, draft in enumerate(drafts):
            try:
                await self._post(topic, draft, batch.reporter(number, topic.name, draft))
            except ClarionError as error:
                batch.abandon(len(drafts) - number, error)
                break
        return await asyncio.wrap_future(batch.done)

    async def _post(self, topic: LedTopic, draft: NewMessage, on_written: OnWritten) -> None:
        writer, has_looked = self._writing(), False
        while True:
            try:
                writer.post(topic, draft, on_written, has_looked=has_looked)
                return
            except BufferFullError:
                await asyncio.sleep(_FULL_PAUSE_SECONDS)
            except StaleTopicError:
                await asyncio.to_thread(writer.look_at, topic)
                has_looked = True

    # Reading

    def read(
        self,
        topic_id: str,
        *,
        subscription: str | None = None,
        start: str | Moment | timedelta = "earliest",
        partition: int | None = None,
        offset: int | None = None,
        timeout: Duration | None = None,
        mode: str | None = None,
        prefetch: int = PREFETCH_DEFAULT,
        renew: bool = False,
    ) -> AsyncReading:
        """`async for message in bus.read(…)`, or `async with bus.read(…) as reading`."""
        check_read(subscription, timeout, mode, prefetch, partition)
        core = self._live()

        async def begin() -> tuple[AsyncSource, MessageTray]:
            topic, tray = await core.find(topic_id), MessageTray()
            if subscription is not None and (mode or await core.mode_of(subscription, topic)) == QUEUE:
                check_whole_queue(subscription, start, partition, offset)
                queue = AsyncQueue()
                queue.begin(await core.open_queue(topic, subscription, prefetch, renew, queue.on_news), tray)
                return queue, tray
            asked = self._settings, topic, subscription, start, partition, offset
            return AsyncStream(await asyncio.to_thread(open_stream, *asked)), tray

        reading = AsyncReading(begin, timeout, self._opened, self._forget)
        finalize(reading, self._abandon, reading.number).atexit = False
        return reading

    def _opened(self, number: int, source: AsyncSource, tray: MessageTray) -> None:
        self._open[number] = source, tray, asyncio.get_running_loop()

    def _forget(self, number: int) -> None:
        self._open.pop(number, None)

    def _abandon(self, number: int) -> None:
        """Nobody holds the reading any more: a loop that was left, for example. In any thread, and without waiting."""
        if number in self._open and not self._is_closed and not self._open[number][2].is_closed():
            self._open[number][2].call_soon_threadsafe(self._close_soon, number)

    def _close_soon(self, number: int) -> None:
        self._closing = {task for task in self._closing if not task.done()}
        self._closing.add(start_task(self._close_source(number), "closing of a reading"))

    async def _close_source(self, number: int) -> None:
        if number in self._open:
            source, tray, _ = self._open[number]
            await source.close(tray.handed_out())
            self._forget(number)

    # Subscriptions

    async def subscribe(
        self,
        topic_id: str,
        name: str | None = None,
        *,
        mode: str = QUEUE,
        retention: Duration | None = None,
        ack_timeout: Duration = "30s",
        dead_letter_after: int = 5,
        dead_letter_topic: str | None = None,
        backoff: Duration | tuple[Duration, Duration] | None = None,
        filter: str | None = None,
        start: str | timedelta = "earliest",
        per_key_order: bool = False,
        window: int = 1_000,
        message_ttl: Duration | None = None,
        push: Mapping[str, Any] | str | None = None,
        guarantee: str = "at-least-once",
    ) -> Subscription:
        told = subscription_fields(
            mode=mode,
            retention=retention,
            ack_timeout=ack_timeout,
            dead_letter_after=dead_letter_after,
            dead_letter_topic=dead_letter_topic,
            backoff=backoff,
            filter=filter,
            start=start,
            per_key_order=per_key_order,
            window=window,
            message_ttl=message_ttl,
            push=push,
            guarantee=guarantee,
        )
        return await self._live().subscribe(topic_id, name, told)

    async def unsubscribe(self, name: str) -> None:
        """End a subscription, by its name: what only it needed can be deleted. Readings of it on this bus end first."""
        core = self._live()
        called = await core.subscription_called(name)
        for number in [number for number, (source, *_) in list(self._open.items()) if source.group == called]:
            await self._close_source(number)
        await core.unsubscribe(called)

    async def subscription(self, name: str) -> Subscription:
        return await self._live().subscription(name)

    async def subscriptions(self) -> list[str]:
        return await self._live().subscriptions()

    # Life

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            for number in list(self._open):
                await self._close_source(number)
            await asyncio.gather(*self._closing)
            if self._writer is not None:
                await asyncio.to_thread(self._writer.close)
        finally:
            await self._core.close()

    def __await__(self) -> Generator[Any, None, Self]:
        yield from self._core.open().__await__()
        return self

    async def __aenter__(self) -> Self:
        await self._core.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    def _live(self) -> BusCore:
        if self._is_closed:
            raise ClosedError("the connection is closed; connect again")
        return self._core

    def _writing(self) -> MessageWriter:
        self._live()
        if self._writer is None:
            self._writer = MessageWriter(self._settings, self._partitioner)
        return self._writer
