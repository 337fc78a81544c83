"""The way to another broker: a connection on which several requests may be under way, and one that comes back.

`Channel` is one connection: opened with TLS where wanted and with a look at what the other side speaks, of no use any
more when a request is not answered in time or something comes that is no answer. `LastingChannel` opens another one
when it is needed, after a pause that grows. What is said is decided by `net.dialogue`; sockets and time are the loop's.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from clarion.model.errors import MalformedError
from clarion.net.dialogue import (
    Answer,
    Backoff,
    ChannelUnusableError,
    Dialogue,
    PeerVersions,
    greeting,
    read_answer,
    read_greeting,
)
from clarion.wire import bridge
from clarion.wire.apis import API_VERSIONS, APIS
from clarion.world import Randomness

__all__ = ["Channel", "ChannelLostError", "ChannelSettings", "ChannelUnusableError", "LastingChannel"]


class ChannelLostError(Exception):
    """The other side is gone, silent, or was never there: another try may find it back."""


@dataclass(frozen=True, slots=True)
class ChannelSettings:
    host: str
    port: int
    client_id: str
    tls: ssl.SSLContext | None = None
    connect_seconds: float = 10.0  # for the connection, TLS, and what the other side speaks
    request_seconds: float = 30.0  # Kafka's request.timeout.ms
    in_flight_max: int = 16  # a handful hides the way there and back; the others wait for their turn
    backoff_seconds: float = 0.05  # Kafka's reconnect.backoff.ms
    backoff_seconds_max: float = 1.0  # and reconnect.backoff.max.ms

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


class Posted(NamedTuple):
    on_answer: Callable[[memoryview], None]
    deadline: float


class Channel(asyncio.BufferedProtocol):
    def __init__(self, settings: ChannelSettings) -> None:
        self._settings = settings
        self._dialogue = Dialogue(settings.client_id)
        self._answers: dict[int, asyncio.Future[Answer]] = {}
        self._posted: dict[int, Posted] = {}  # in the order in which they are answered
        self._loop = asyncio.get_running_loop()
        self._watch: asyncio.TimerHandle | None = None  # over what is posted: one for all, since almost none is late
        self._turns = asyncio.Semaphore(settings.in_flight_max)  # given back by answers, also of those who have left
        self._transport: asyncio.Transport | None = None
        self._lost: Exception | None = None
        self.on_lost: Callable[[Exception], None] | None = None
        self.versions = PeerVersions({})

    @classmethod
    async def open(cls, settings: ChannelSettings) -> Channel:
        options: dict[str, Any] = {} if settings.tls is None else {"ssl": settings.tls}
        channel = cls(settings)
        try:
            async with asyncio.timeout(settings.connect_seconds):
                await channel._loop.create_connection(lambda: channel, settings.host, settings.port, **options)
                await channel._greet()
        except BaseException as error:
            channel.close()
            if isinstance(error, ssl.SSLError | ssl.CertificateError) and not isinstance(error, ssl.SSLEOFError):
                raise ChannelUnusableError(f"TLS with {settings.address}: {error}") from error
            if isinstance(error, TimeoutError):
                raise ChannelLostError(f"{settings.address} did not answer while connecting") from error
            if isinstance(error, OSError):
                reason = str(error) or "the connection was closed"  # by who does not speak TLS, for example
                raise ChannelLostError(f"{settings.address} cannot be reached: {reason}") from error
            raise
        return channel

    @property
    def is_open(self) -> bool:
        return self._transport is not None and self._lost is None

    async def ask(
        self, api_key: int, request: Any, *, newest: int | None = None, timeout_seconds: float | None = None
    ) -> Any:
        """The answer to `request`, in the newest version that both sides speak.

        `timeout_seconds` counts from now on, also while others have their turn. When it is over nobody can tell how
        long the broker is busy with it, and answers come in order: the connection is given up.
        """
        version = self.versions.choose(APIS[api_key], newest)
        body = bridge.encode(request, api_key, version, "request")
        return self._understood(read_answer, await self._answer(api_key, version, body, timeout_seconds))

    async def ask_encoded(
        self, api_key: int, newest: int, body: bytes, *, timeout_seconds: float | None = None
    ) -> memoryview:
        """For who encodes and decodes by hand, the same in all versions up to `newest`."""
        version = self.versions.choose(APIS[api_key], newest)
        return (await self._answer(api_key, version, body, timeout_seconds)).body

    def post(self, api_key: int, newest: int, body: bytes, on_answer: Callable[[memoryview], None]) -> None:
        """For who asks a thousand times per second: without a task, and answered in the turn in which the answer comes.

        The caller encodes and decodes the body itself, the same in all versions up to `newest`, and sees to it that
        only a few are under way. `on_answer` raises nothing; when the connection is lost, `on_lost` is called instead.
        """
        if self._lost is not None or self._transport is None:
            raise ChannelLostError(f"there is no connection to {self._settings.address}") from self._lost
        number, frame = self._dialogue.ask(api_key, self.versions.choose(APIS[api_key], newest), body)
        deadline = self._loop.time() + self._settings.request_seconds
        self._posted[number] = Posted(on_answer, deadline)
        if self._watch is None:
            self._watch = self._loop.call_at(deadline, self._look_for_overdue)
        self._transport.write(frame)

    def _look_for_overdue(self) -> None:
        self._watch = None
        for oldest in self._posted.values():
            if oldest.deadline <= self._loop.time():
                self._give_up(ChannelLostError(f"{self._settings.address} did not answer in time"))
            else:
                self._watch = self._loop.call_at(oldest.deadline, self._look_for_overdue)
            return

    async def _answer(self, api_key: int, version: int, body: bytes, timeout_seconds: float | None) -> Answer:
        try:
            async with asyncio.timeout(self._settings.request_seconds if timeout_seconds is None else timeout_seconds):
                return await self._exchange(api_key, version, body)
        except TimeoutError as error:
            silent = ChannelLostError(f"{self._settings.address} did not answer {APIS[api_key].name} in time")
            self._give_up(silent)
            raise silent from error

    def close(self) -> None:
        self._give_up(ChannelLostError(f"the connection to {self._settings.address} was closed"))

    async def _greet(self) -> None:
        version = APIS[API_VERSIONS].max_version
        while True:
            answer = await self._exchange(API_VERSIONS, version, greeting(version))
            found = self._understood(read_greeting, answer)
            if isinstance(found, PeerVersions):
                self.versions = found
                return
            version = found

    async def _exchange(self, api_key: int, version: int, body: bytes) -> Answer:
        await self._turns.acquire()
        if self._lost is not None or self._transport is None:
            self._turns.release()
            raise ChannelLostError(f"there is no connection to {self._settings.address}") from self._lost
        number, frame = self._dialogue.ask(api_key, version, body)
        self._answers[number] = self._loop.create_future()
        self._transport.write(frame)
        # Who is cancelled here leaves an answer behind, which is dropped when it comes.
        return await self._answers[number]

    def _understood(self, read: Any, answer: Answer) -> Any:
        try:
            return read(answer)
        except MalformedError as error:
            unusable = ChannelUnusableError(
                f"{self._settings.address} answered {APIS[answer.api_key].name} with: {error}"
            )
            self._give_up(unusable)
            raise unusable from error

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._lost is not None:
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._dialogue.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for answer in self._dialogue.received(nbytes):
                posted = self._posted.pop(answer.correlation_id, None)
                if posted is not None:
                    posted.on_answer(answer.body)
                    continue
                if self._lost is not None:
                    return  # given up by who got the answer before
                self._turns.release()
                waiting = self._answers.pop(answer.correlation_id)
                if not waiting.done():
                    waiting.set_result(answer)
        except MalformedError as error:
            self._give_up(ChannelUnusableError(f"{self._settings.address}: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._give_up(ChannelLostError(f"{self._settings.address} closed the connection" + (f": {exc}" if exc else "")))

    def _give_up(self, reason: Exception) -> None:
        """Everybody who waits is told why; once."""
        if self._lost is not None:
            return
        self._lost = reason
        if self._transport is not None:
            self._transport.abort()
        for waiting in self._answers.values():
            self._turns.release()
            if not waiting.done():
                waiting.set_exception(reason)
                waiting.exception()  # those who were cancelled no longer look
        self._answers.clear()
        self._posted.clear()
        if self._watch is not None:
            self._watch.cancel()
        if self.on_lost is not None:
            self.on_lost(reason)


class LastingChannel:
    """A channel to one broker that is opened when it is needed, and again when it was lost."""

    def __init__(self, settings: ChannelSettings, randomness: Randomness) -> None:
        self._settings = settings
        self._backoff = Backoff(settings.backoff_seconds, settings.backoff_seconds_max, randomness)
        self._channel: Channel | None = None
        self._opening = asyncio.Lock()
        self._not_before = 0.0
        self._is_closed = False

    async def ask(
        self, api_key: int, request: Any, *, newest: int | None = None, timeout_seconds: float | None = None
    ) -> Any:
        """As `Channel.ask`; a connection is opened first where there is none. Nothing is asked twice."""
        channel = await self.open()
        return await channel.ask(api_key, request, newest=newest, timeout_seconds=timeout_seconds)

    def close(self) -> None:
        self._is_closed = True
        if self._channel is not None:
            self._channel.close()

    async def open(self) -> Channel:
        """The connection there is, or another one. Whoever comes while it is being opened waits for the same one."""
        async with self._opening:
            if self._is_closed:
                raise ChannelLostError(f"the channel to {self._settings.address} was closed")
            if self._channel is not None and self._channel.is_open:
                return self._channel
            loop = asyncio.get_running_loop()
            if self._channel is not None:  # it was lost: the other side may be starting, and others come too
                self._channel = None
                self._not_before = loop.time() + self._backoff.failed()
            await asyncio.sleep(max(0.0, self._not_before - loop.time()))
            try:
                opened = await Channel.open(self._settings)
            except (ChannelLostError, ChannelUnusableError):
                self._not_before = loop.time() + self._backoff.failed()
                raise
            self._backoff.succeeded()
            self._channel = opened
            if self._is_closed:
                opened.close()
            return opened
