"""Messages on their way into answers: so many reads at a time hold memory, and the others wait for their turn.

An answer is up to a megabyte of batches, what comes out of them, and its text: some megabytes for each of a thousand
connections would be more than a broker may have for all it does. Who waits for messages to come holds nothing, and
streams have a bound of their own.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final, Self

from clarion.gateway.problems import HttpProblem

READS_MAX: Final = 32  # at a time, of four megabytes: as much as bodies may have; more would be no quicker
_TURN_SECONDS: Final = 10.0  # that a read waits for its turn; a read takes some milliseconds, or as long as a disk


class ReadRoom:
    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(READS_MAX)

    def turn(self) -> ReadTurn:
        return ReadTurn(self._turns)


class ReadTurn:
    """Of one request: taken before something is read, given back when there was nothing, or when the answer is made."""

    def __init__(self, turns: asyncio.Semaphore) -> None:
        self._turns = turns
        self._is_taken = False

    async def take(self) -> None:
        if self._is_taken:
            return
        try:
            async with asyncio.timeout(_TURN_SECONDS):
                await self._turns.acquire()
        except TimeoutError as error:
            detail = "too many messages are being read from this broker over HTTP: ask again in a second, or for less"
            raise HttpProblem(503, detail, kind="too-busy") from error
        self._is_taken = True

    def give_back(self) -> None:
        if self._is_taken:
            self._is_taken = False
            self._turns.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.give_back()
