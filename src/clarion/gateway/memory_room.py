"""The memory that HTTP's clients hold: bodies that have not all come, and answers that are not read.

A thousand connections with three megabytes each would be more than a broker may have for all it does. So there is room
for so much together, and who finds none is told to come again; one body alone may always be as large as it may be.
"""

from __future__ import annotations

from typing import Final, Protocol

BODIES_BYTES_MAX: Final = 128 * 1024 * 1024
UNREAD_BYTES_MAX: Final = 128 * 1024 * 1024


class Buffered(Protocol):
    def get_write_buffer_size(self) -> int: ...


class MemoryRoom:
    def __init__(self) -> None:
        self.body_bytes = 0
        self._unread: dict[Buffered, None] = {}  # whose clients take less than they are sent

    def take(self, more_bytes: int, own_bytes: int) -> bool:
        """Whether there is room for more of a body, of which there are `own_bytes` already."""
        if self.body_bytes > own_bytes and self.body_bytes + more_bytes > BODIES_BYTES_MAX:
            return False
        self.body_bytes += more_bytes
        return True

    def give_back(self, own_bytes: int) -> None:
        self.body_bytes -= own_bytes

    def note_unread(self, connection: Buffered) -> None:
        self._unread[connection] = None

    def note_read(self, connection: Buffered) -> None:
        self._unread.pop(connection, None)

    @property
    def is_full_of_answers(self) -> bool:
        if not self._unread:
            return False
        return sum([one.get_write_buffer_size() for one in self._unread]) > UNREAD_BYTES_MAX
