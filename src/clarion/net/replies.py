"""What a service answers with: bytes, parts of files, or the promise of either."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from clarion.model.histogram import Histogram
from clarion.net.latencies import Latencies
from clarion.world import DiskFile

if TYPE_CHECKING:
    from clarion.net.connection import Connection
    from clarion.net.in_order import Replies


class FilePart(Protocol):
    """A part of a reply that is sent from a file, byte for byte."""

    @property
    def file(self) -> DiskFile: ...
    @property
    def position(self) -> int: ...
    @property
    def length(self) -> int: ...


Part = bytes | FilePart
Reply = bytes | Sequence[Part]
Service = Callable[["Connection", memoryview], "Reply | PendingReply | None"]


def memory_bytes(parts: Reply | Iterable[Part]) -> int:
    """What a reply holds of our memory. Parts of files are where they are."""
    return len(parts) if isinstance(parts, bytes) else sum(len(one) for one in parts if isinstance(one, bytes))


class PendingReply:
    """The place of a reply that is not ready yet. `resolve` is called once, also when the client has gone by then."""

    __slots__ = ("_began", "_connection", "_histogram", "_latencies", "is_end", "on_abandon", "parts", "queued_bytes")

    def __init__(self, connection: Replies) -> None:
        self._connection: Replies | None = connection
        self.parts: Reply | None = None
        self.queued_bytes = 0  # of our memory, while it is ready and those before it are not sent
        self.is_end = False  # there is no reply: when those before it are sent, the connection ends
        self.on_abandon: Callable[[], None] | None = None  # called when the client has gone before the reply came
        self._latencies: Latencies | None = None
        self._histogram: Histogram | None = None
        self._began = 0.0

    def time_in(self, histogram: Histogram, latencies: Latencies) -> None:
        """How long the client waits for it is to be counted there."""
        self._latencies, self._histogram, self._began = latencies, histogram, latencies.began

    def resolve(self, parts: Reply) -> None:
        assert self.parts is None, "a reply is given once"
        self.parts = parts
        self.on_abandon = None
        if self._latencies is not None and self._histogram is not None:
            self._latencies.note_answered(self._histogram, self._began)
        if self._connection is not None:
            self._connection.reply_is_ready(self)

    def fail(self) -> None:
        """There will be no reply: what became of the request is unknown to the client, so the connection ends here."""
        self.is_end = True
        self.resolve(b"")

    def abandon(self) -> None:
        self._connection = None
        if self.on_abandon is not None:
            self.on_abandon()
            self.on_abandon = None


class RestOfFile:
    """What is left of a file part; it keeps the open file alive.

    The file itself and not the part: what a slow reader is sent is left a thousand times, and each rest would hold the
    one before it.
    """

    __slots__ = ("file", "length", "position")

    def __init__(self, file: DiskFile, position: int, length: int) -> None:
        self.file = file
        self.position = position
        self.length = length
