"""Messages as they come, for a program that blocks: made by `Bus.read`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from clarion.client.arguments import Duration, seconds_of
from clarion.client.message_tray import MessageTray
from clarion.client.queue_source import QueueSource
from clarion.client.received import ReceivedMessage
from clarion.world import boot_seconds

if TYPE_CHECKING:
    from clarion.client.loop_thread import LoopThread


class BlockingSource(Protocol):
    """A stream or a queue. `handed_out` is what the application got last."""

    @property
    def group(self) -> str | None: ...

    def more(self, handed_out: list[ReceivedMessage], seconds: float | None) -> list[ReceivedMessage]: ...

    def flush(self, handed_out: list[ReceivedMessage]) -> None: ...

    def close(self, handed_out: list[ReceivedMessage]) -> None: ...


class MessageReading:
    """Iterate over it. It ends when no message has come for its `timeout`, and can be iterated again; without one it
    goes on until it is closed. Messages may be settled in any thread; they are read by one at a time.
    """

    def __init__(
        self,
        source: BlockingSource,
        tray: MessageTray,
        timeout: Duration | None,
        on_closed: Callable[[BlockingSource], None],
    ) -> None:
        self._source = source
        self._on_closed = on_closed
        self._tray = tray
        self._seconds = seconds_of(timeout)
        self._lock = threading.Lock()
        self.is_closed = False

    def __iter__(self) -> Iterator[ReceivedMessage]:
        while True:
            yield from self._tray.left  # who leaves in the middle finds the rest the next time
            if not self._fill(self._seconds):
                return

    def __next__(self) -> ReceivedMessage:
        message = self.next()
        if message is None:
            raise StopIteration
        return message

    def next(self, timeout: Duration | None = None) -> ReceivedMessage | None:
        """The next message; None when there is none in time. Without a time the reading's own counts."""
        found = self.batch(1, timeout)
        return found[0] if found else None

    def batch(self, count: int = 500, timeout: Duration | None = None) -> list[ReceivedMessage]:
        """Up to so many messages that are there, and at least one, unless none comes in time."""
        found = self._tray.take(count)
        if not found and self._fill(self._seconds if timeout is None else seconds_of(timeout)):
            found = self._tray.take(count)
        return found

    def flush(self) -> None:
        """Returns when what was said of messages is durable; NotAcknowledged tells what did not count."""
        self._source.flush(self._tray.handed_out())

    def close(self) -> None:
        """What was said is durable, and messages of a queue that were not settled go to other readers."""
        if not self.is_closed:
            self.is_closed = True
            self._source.close(self._tray.handed_out())
            self._tray.fill([])
            self._on_closed(self._source)

    def _fill(self, seconds: float | None) -> bool:
        with self._lock:
            if self.is_closed:
                return False
            messages = self._source.more(self._tray.handed_out(), seconds)
            if self.is_closed:
                return False
            self._tray.fill(messages)
            return bool(messages)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class BlockingQueue(QueueSource[threading.Event]):
    """A queue's reader on its event loop, for a thread that waits."""

    def __init__(self, loop: LoopThread) -> None:
        super().__init__(threading.Event())
        self._loop = loop

    def more(self, handed_out: list[ReceivedMessage], seconds: float | None) -> list[ReceivedMessage]:
        deadline = None if seconds is None else boot_seconds() + seconds
        while (found := self.found()) is None:
            left = None if deadline is None else deadline - boot_seconds()
            if left is not None and left <= 0:
                return []
            self._has_news.wait(left)
        return found

    def flush(self, handed_out: list[ReceivedMessage]) -> None:
        self._loop.run(self.reader.flush())

    def close(self, handed_out: list[ReceivedMessage]) -> None:
        self._has_news.set()
        self._loop.run(self.reader.close())
        self._has_news.set()
