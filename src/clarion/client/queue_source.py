"""A queue as its readings see it, whether they block or not: what is there now, and whether to wait for more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from clarion.client.message_tray import MessageTray
from clarion.client.received import ReceivedMessage

if TYPE_CHECKING:
    from clarion.client.queue_reader import QueueReader


class NewsEvent(Protocol):
    """An event, of threads or of asyncio."""

    def set(self) -> None: ...

    def clear(self) -> None: ...


Event = TypeVar("Event", bound=NewsEvent)


class QueueSource(Generic[Event]):
    def __init__(self, has_news: Event) -> None:
        self._has_news = has_news
        self._reader: QueueReader | None = None

    def begin(self, reader: QueueReader, tray: MessageTray) -> None:
        self._reader = reader
        reader.unread = tray.unread

    def on_news(self) -> None:
        self._has_news.set()

    @property
    def reader(self) -> QueueReader:
        assert self._reader is not None
        return self._reader

    @property
    def group(self) -> str:
        return self.reader.group

    def found(self) -> list[ReceivedMessage] | None:
        """What has come, or nothing where it has ended. None: `_has_news` tells when to look again."""
        self._has_news.clear()  # first: what comes from now on tells again
        while (chunk := self.reader.take()) is not None:
            if messages := chunk.messages():
                return messages
        if self.reader.failure is not None:
            raise self.reader.failure
        return [] if self.reader.is_ending else None
