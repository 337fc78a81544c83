"""Messages as they come, for asyncio: made by `AsyncBus.read`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from clarion.client.arguments import Duration, seconds_of
from clarion.client.message_tray import MessageTray
from clarion.client.queue_source import QueueSource
from clarion.client.received import ReceivedMessage

if TYPE_CHECKING:
    from clarion.client.stream_source import StreamSource


_numbers = count(1)


class AsyncSource(Protocol):
    """A stream or a queue. `handed_out` is what the application got last."""

    @property
    def group(self) -> str | None: ...

    async def more(self, handed_out: list[ReceivedMessage], seconds: float | None) -> list[ReceivedMessage]: ...

    async def flush(self, handed_out: list[ReceivedMessage]) -> None: ...

    async def close(self, handed_out: list[ReceivedMessage]) -> None: ...


class AsyncReading:
    """The asyncio twin of `MessageReading`: `async for message in reading`."""

    def __init__(
        self,
        begin: Callable[[], Awaitable[tuple[AsyncSource, MessageTray]]],
        timeout: Duration | None,
        on_opened: Callable[[int, AsyncSource, MessageTray], None],
        on_closed: Callable[[int], None],
    ) -> None:
        self.number = next(_numbers)
        self._begin = begin
        self._on_opened = on_opened
        self._on_closed = on_closed
        self._source: AsyncSource | None = None
        self._tray = MessageTray()
        self._seconds = seconds_of(timeout)
        self._lock = asyncio.Lock()
        self.is_closed = False

    async def open(self) -> Self:
        """Returns when the first messages may come; iterating does it by itself."""
        async with self._lock:
            if self._source is None and not self.is_closed:
                self._source, self._tray = await self._begin()
                self._on_opened(self.number, self._source, self._tray)
        return self

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        await self.open()
        while True:
            for message in self._tray.left:
                yield message
            if not await self._fill(self._seconds):
                return

    async def __anext__(self) -> ReceivedMessage:
        message = await self.next()
        if message is None:
            raise StopAsyncIteration
        return message

    async def next(self, timeout: Duration | None = None) -> ReceivedMessage | None:  # noqa: ASYNC109 (as its twin)
        """The next message; None when there is none in time. Without a time the reading's own counts."""
        found = await self.batch(1, timeout)
        return found[0] if found else None

    async def batch(
        self,
        count: int = 500,
        timeout: Duration | None = None,  # noqa: ASYNC109 (as its twin)
    ) -> list[ReceivedMessage]:
        """Up to so many messages that are there, and at least one, unless none comes in time."""
        await self.open()
        found = self._tray.take(count)
        if not found and await self._fill(self._seconds if timeout is None else seconds_of(timeout)):
            found = self._tray.take(count)
        return found

    async def flush(self) -> None:
        """Returns when what was said of messages is durable; NotAcknowledged tells what did not count."""
        if self._source is not None:
            await self._source.flush(self._tray.handed_out())

    async def close(self) -> None:
        """What was said is durable, and messages of a queue that were not settled go to other readers."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._source is not None:
            await self._source.close(self._tray.handed_out())
            self._tray.fill([])
            self._on_closed(self.number)

    async def _fill(self, seconds: float | None) -> bool:
        async with self._lock:
            if self.is_closed or self._source is None:
                return False
            messages = await self._source.more(self._tray.handed_out(), seconds)
            if self.is_closed:
                return False
            self._tray.fill(messages)
            return bool(messages)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()


class AsyncQueue(QueueSource[asyncio.Event]):
    """A queue's reader, on the loop of the application."""

    def __init__(self) -> None:
        super().__init__(asyncio.Event())

    async def more(self, handed_out: list[ReceivedMessage], seconds: float | None) -> list[ReceivedMessage]:
        deadline = None if seconds is None else asyncio.get_running_loop().time() + seconds
        while (found := self.found()) is None:
            try:
                async with asyncio.timeout_at(deadline):
                    await self._has_news.wait()
            except TimeoutError:
                return []
        return found

    async def flush(self, handed_out: list[ReceivedMessage]) -> None:
        await self.reader.flush()

    async def close(self, handed_out: list[ReceivedMessage]) -> None:
        self._has_news.set()
        await self.reader.close()
        self._has_news.set()


class AsyncStream:
    """A stream, whose library blocks: read in a thread of its own."""

    def __init__(self, source: StreamSource) -> None:
        self._source = source
        self._thread = ThreadPoolExecutor(1, "clarion-stream")
        self._asked: asyncio.Future[list[ReceivedMessage]] | None = None

    @property
    def group(self) -> str | None:
        return self._source.group

    async def more(self, handed_out: list[ReceivedMessage], seconds: float | None) -> list[ReceivedMessage]:
        if self._asked is None:
            loop = asyncio.get_running_loop()
            self._asked = loop.run_in_executor(self._thread, self._source.more, handed_out, seconds)
        await asyncio.wait((self._asked,), timeout=seconds)  # who is cancelled here finds its messages the next time
        if not self._asked.done():
            return []  # it was asked by somebody who had more time
        asked, self._asked = self._asked, None
        return asked.result()

    async def flush(self, handed_out: list[ReceivedMessage]) -> None:
        await asyncio.to_thread(self._source.flush, handed_out)

    async def close(self, handed_out: list[ReceivedMessage]) -> None:
        await asyncio.to_thread(self._source.close, handed_out)
        self._thread.shutdown(wait=False)
