"""Messages that come by themselves: server-sent events of a topic or a queue, and a queue over a WebSocket.

Nothing piles up for who does not read: the next messages are read when those before have left, a few at a time, and
what was taken from a queue for somebody who has gone is given back. Streams wait while HTTP is over its share.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, MutableMapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from pydantic import ValidationError
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from clarion.broker.queues import Delivery
from clarion.cluster import Topic
from clarion.gateway import schemas
from clarion.gateway.bodies import encoded
from clarion.gateway.brokers import Brokers
from clarion.gateway.identity import principal
from clarion.gateway.loop_share import LoopShare, Metered
from clarion.gateway.message_forms import parse_json
from clarion.gateway.problems import HttpProblem, problem_of
from clarion.gateway.reading import MessageReader, Place, told_message, write_place
from clarion.gateway.settling import settle_all, told_delivery
from clarion.model.errors import ErrorCode, KafkaError
from clarion.wire.records import Record

STREAMS_MAX: Final = 500  # at a time: each may hold some hundred kilobytes on their way
MESSAGES_AT_A_TIME: Final = 100
_BYTES_AT_A_TIME: Final = 128 * 1024  # but for one message
_HEARTBEAT_SECONDS: Final = 15.0  # more often than proxies lose patience
_OVER_SECONDS: Final = 0.1  # between two looks whether HTTP is still over its share
_CREDIT_MAX: Final = 10_000  # the largest window
_SETTLED_AT_A_TIME: Final = 1_000

Result = TypeVar("Result")


class Streams:
    def __init__(self, brokers: Brokers, reader: MessageReader, share: LoopShare) -> None:
        self._brokers = brokers
        self._reader = reader
        self._share = share
        self._open = 0

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        if self._open >= STREAMS_MAX:
            raise HttpProblem(
                429, f"{STREAMS_MAX} streams are open at this broker: close some, or poll with wait_ms", kind="too-busy"
            )
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    async def breathe(self) -> None:
        while self._share.is_over:  # noqa: ASYNC110  # nothing tells when time has passed
            await asyncio.sleep(_OVER_SECONDS)

    # Server-sent events

    def of_topic(self, topic: Topic, place: Place, encoding: str) -> Response:
        async def send_events(send: Callable[[bytes], Awaitable[None]], leaving: asyncio.Future[None]) -> None:
            now, at = topic, place
            while not leaving.done():
                await self.breathe()
                now, at = await self._reader.grown(principal(), now, at)
                reading = self._reader.read(
                    principal(),
                    now,
                    at,
                    messages_max=MESSAGES_AT_A_TIME,
                    wait_seconds=_HEARTBEAT_SECONDS,
                    bytes_max=_BYTES_AT_A_TIME,
                )
                try:
                    result = await self.unless_left(leaving, reading)
                except KafkaError as error:
                    at = await self._behind_the_gap(error, now, at)
                    await send(_event(write_place(at), problem_of(error).to_json(), "problem"))
                    continue
                if result is None:
                    return
                following = dict(at)
                for one in result.found:
                    following[one.partition] = one.record.offset + 1
                    await send(
                        await self._event(one.record, write_place(following), told_message, topic, one, encoding)
                    )
                at = result.place
                if not result.found:
                    await send(b": still here\n\n")

        return _EventStream(send_events, self._place)

    async def _behind_the_gap(self, error: KafkaError, topic: Topic, place: Place) -> Place:
        """A browser connects again with the id that it has, and would be refused for ever if what is there is gone. So
        it is told, and goes on with what there is."""
        if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
            raise error
        there = await self._reader.nearest(principal(), topic, place)
        if there == place:
            raise error
        return there

    def of_queue(self, name: str, consumer: str, encoding: str) -> Response:
        async def send_events(send: Callable[[bytes], Awaitable[None]], leaving: asyncio.Future[None]) -> None:
            while not leaving.done():
                await self.breathe()
                found = await self.pull(leaving, name, consumer, MESSAGES_AT_A_TIME, _HEARTBEAT_SECONDS)
                for number, one in enumerate(found):
                    if leaving.done():
                        self._brokers.broker.queues.give_back(name, found[number:])
                        return
                    await send(await self._event(one, one.receipt, told_delivery, one, encoding))
                if not found:
                    await send(b": still here\n\n")

        return _EventStream(send_events, self._place)

    async def _event(self, message: Record | Delivery, event_id: str, tell: Callable[..., Any], *args: Any) -> bytes:
        turns = self._brokers.broker.turns
        return await encoded(turns, [message], lambda: _event(event_id, tell(*args)))

    async def pull(
        self, leaving: asyncio.Future[Any], name: str, consumer: str, messages_max: int, seconds: float
    ) -> list[Delivery]:
        queues = self._brokers.broker.queues
        pulling = queues.pull(
            principal(),
            name,
            consumer=consumer,
            messages_max=messages_max,
            wait_ms=int(seconds * 1000),
            bytes_max=_BYTES_AT_A_TIME,
        )
        return await self.unless_left(leaving, pulling) or []

    async def unless_left(self, leaving: asyncio.Future[Any], work: Coroutine[Any, Any, Result]) -> Result | None:
        """None if the client has gone: then it is not done."""
        return await unless(leaving, work, self._share)

    # WebSocket

    async def serve_socket(self, socket: WebSocket, name: str, consumer: str, encoding: str) -> None:
        """The client says how many messages it can take (`credit`), and what became of them (`settle`)."""
        async with self._place():
            self._brokers.broker.subscriptions.known(name)
            await socket.accept()
            conversation = _Conversation(self, self._brokers, socket, name, consumer, encoding)
            hearing = asyncio.ensure_future(Metered(conversation.hear(), self._share))  # awaited below
            try:
                await conversation.deliver(hearing)
            finally:
                hearing.cancel()
                await asyncio.gather(hearing, return_exceptions=True)


class _Conversation:
    def __init__(
        self, streams: Streams, brokers: Brokers, socket: WebSocket, name: str, consumer: str, encoding: str
    ) -> None:
        self._streams = streams
        self._brokers = brokers
        self._socket = socket
        self._name = name
        self._consumer = consumer
        self._encoding = encoding
        self._credit = 0
        self._has_credit = asyncio.Event()
        self._sending = asyncio.Lock()

    async def deliver(self, hearing: asyncio.Future[None]) -> None:
        while not hearing.done():
            await self._streams.unless_left(hearing, self._has_credit.wait())
            await self._streams.breathe()
            wanted = min(self._credit, MESSAGES_AT_A_TIME)
            if hearing.done() or not wanted:
                continue
            try:
                found = await self._streams.pull(hearing, self._name, self._consumer, wanted, _HEARTBEAT_SECONDS)
            except KafkaError as error:
                await self._say_problem(problem_of(error))
                await self._socket.close(1011)
                return
            for number, one in enumerate(found):
                if hearing.done():
                    self._brokers.broker.queues.give_back(self._name, found[number:])
                    return
                self._spend_credit()
                await self._say_message(one)

    async def hear(self) -> None:
        """Until the client leaves."""
        try:
            while True:
                await self._answer(await self._socket.receive_text())
        except (WebSocketDisconnect, KeyError):  # the second: it sent bytes where text was asked for
            return

    async def _answer(self, text: str) -> None:
        try:
            told = parse_json(text)
            match told.get("type") if isinstance(told, dict) else None:
                case "credit":
                    self._add_credit(told.get("messages"))
                case "settle":
                    asked = schemas.SettleRequest(settlements=told.get("settlements"))
                    if len(asked.settlements) > _SETTLED_AT_A_TIME:
                        raise HttpProblem(413, f"at most {_SETTLED_AT_A_TIME} settlements in one message")
                    results = await settle_all(self._brokers, self._name, asked.settlements)
                    await self._say({"type": "settled", "results": [one.model_dump() for one in results]})
                case _:
                    raise HttpProblem(422, 'say {"type": "credit", "messages": 10} or {"type": "settle", …}')
        except ValidationError as error:
            await self._say_problem(HttpProblem(422, str(error)[:1000]))
        except ValueError as error:
            await self._say_problem(HttpProblem(400, f"this is no JSON: {error}"))
        except HttpProblem as problem:
            await self._say_problem(problem)
        except KafkaError as error:
            await self._say_problem(problem_of(error))

    def _add_credit(self, told: object) -> None:
        if isinstance(told, bool) or not isinstance(told, int) or not 0 < told <= _CREDIT_MAX:
            raise HttpProblem(422, f"messages is a number from 1 to {_CREDIT_MAX}")
        self._credit = min(self._credit + told, _CREDIT_MAX)
        self._has_credit.set()

    def _spend_credit(self) -> None:
        self._credit -= 1
        if not self._credit:
            self._has_credit.clear()

    async def _say_problem(self, problem: HttpProblem) -> None:
        await self._say({"type": "problem", "problem": problem.to_json()})

    async def _say_message(self, one: Delivery) -> None:
        def tell() -> str:
            return json.dumps({"type": "message", **told_delivery(one, self._encoding)})

        await self._say_text(await encoded(self._brokers.broker.turns, [one], tell))

    async def _say(self, told: MutableMapping[str, Any]) -> None:
        await self._say_text(json.dumps(told))

    async def _say_text(self, text: str) -> None:
        async with self._sending:
            await self._socket.send_text(text)


async def unless(leaving: asyncio.Future[Any], work: Coroutine[Any, Any, Result], share: LoopShare) -> Result | None:
    """The work's result; None, and the work cancelled, if `leaving` ends first."""
    working: asyncio.Future[Result] = asyncio.ensure_future(Metered(work, share))  # awaited below
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        return await working if working.done() else None
    finally:
        if not working.done():
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)


class _EventStream(Response):
    """In the request's own coroutine, so that its steps are counted as HTTP's."""

    media_type = "text/event-stream"

    def __init__(
        self,
        send_events: Callable[[Callable[[bytes], Awaitable[None]], asyncio.Future[None]], Awaitable[None]],
        place: Callable[[], Any],
    ) -> None:
        self.status_code = 200
        self.background = None
        self.body = b""
        self.init_headers({"X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._send_events = send_events
        self._place = place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_part(part: bytes) -> None:
            await send({"type": "http.response.body", "body": part, "more_body": True})

        async with self._place():
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send_part(b": welcome\n\n")  # at once, so that the client knows that it is there
            leaving = asyncio.ensure_future(_left(receive))  # which raises nothing
            try:
                await self._send_events(send_part, leaving)
            except KafkaError as error:  # too late for another status
                await send_part(b"event: problem\ndata: " + problem_of(error).body() + b"\n\n")
            finally:
                leaving.cancel()
            await send({"type": "http.response.body", "body": b""})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _event(event_id: str, told: dict[str, Any], kind: str = "message") -> bytes:
    return f"id: {event_id}\nevent: {kind}\ndata: {json.dumps(told)}\n\n".encode()
