"""The messages that came together, as they are handed out one by one."""

from __future__ import annotations

from collections.abc import Iterator
from operator import length_hint

from clarion.client.received import ReceivedMessage


class MessageTray:
    """`left` is read from in any thread; how many are still in it is asked without taking one."""

    def __init__(self) -> None:
        self._messages: list[ReceivedMessage] = []
        self.left: Iterator[ReceivedMessage] = iter(self._messages)

    def fill(self, messages: list[ReceivedMessage]) -> None:
        self._messages = messages
        self.left = iter(messages)

    def unread(self) -> list[ReceivedMessage]:
        messages, count = self._messages, length_hint(self.left)
        return messages[len(messages) - count :] if count else []

    def handed_out(self) -> list[ReceivedMessage]:
        messages = self._messages
        return messages[: len(messages) - length_hint(self.left)]

    def take(self, count: int) -> list[ReceivedMessage]:
        return [message for _, message in zip(range(count), self.left, strict=False)]
