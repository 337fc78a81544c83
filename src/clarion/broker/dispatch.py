"""From a frame to a handler, and from whatever the handler did to a reply.

Produce and Fetch are served inside the call, on views of the socket's buffer. Everything else is decoded by the bridge
and handled by a coroutine of its own, `handle(broker, request, context)` in the API's module. Long requests and long
replies are decoded and encoded in a thread. A connection with a long request under way takes no other, and of all
connections a few are under way at a time; large replies are made when those before them have left room
(`net/reply_room`). Loops in handlers go through `Turns.each`, so that no request keeps the others waiting. A KafkaError
that a handler lets through becomes a reply here, and only here; any other exception is our own mistake: it is logged
with its traceback, the client's connection ends, and everybody else goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import MISSING, fields
from importlib import import_module
from typing import Any, Final

from clarion.broker.apis import k00_produce, k01_fetch
from clarion.broker.broker import Broker, RequestContext
from clarion.broker.request_limits import decoded_at_once_bytes, frame_bytes_max, is_answered_alone
from clarion.broker.session import Session
from clarion.model.errors import ErrorCode, KafkaError, MalformedError
from clarion.net import Connection, Latencies, PendingReply, Quick, Reply
from clarion.wire.apis import API_VERSIONS, APIS, FETCH, JOIN_GROUP, PRODUCE, SYNC_GROUP, Api
from clarion.wire.bridge import decode, encode_around, has_more_elements
from clarion.wire.frames import RequestHeader, parse_request_header, reply_head
from clarion.wire.left_out import LeftOut
from clarion.world import event_log

log = event_log("broker")

Handler = Callable[[Broker, Any, RequestContext], Awaitable[Any]]

_ENCODED_AT_ONCE_ELEMENTS: Final = 500  # about a millisecond
_JOINED_BYTES_MAX: Final = 1024 * 1024  # a longer reply is not copied once more only to get its head
_WAITS_FOR_OTHERS: Final = frozenset({JOIN_GROUP, SYNC_GROUP})  # a held connection could not send a heartbeat
_LONG_AT_A_TIME: Final = 8  # requests with thousands of names, and what is found about them: tens of megabytes each
_FALLBACK_VERSION: Final = 0  # of ApiVersions, for clients that ask in a version we do not know


class Dispatch:
    """The service of a `net.Server`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._handlers: dict[int, Handler] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._limits = broker.config.limits
        self._long = asyncio.Semaphore(_LONG_AT_A_TIME)
        self._others_total: dict[int, int] = dict.fromkeys(APIS, 0)  # requests of all APIs but the quick ones
        self.errors_total = 0
        self.latencies = Latencies()

    def __call__(self, connection: Connection, frame: memoryview) -> Reply | PendingReply | None:
        session: Session | None = connection.session
        if session is None:
            session = connection.session = self._broker.clients.open()
        if session.template_at:
            reply = k00_produce.serve_again(self._broker, connection, session, frame)
            if reply is not None:
                return self._counted(self.latencies.produces, reply)
        header = parse_request_header(frame)
        key = header.api_key
        if not connection.client_id:
            connection.client_id = header.client_id or ""
        if key == PRODUCE and header.api_version >= 3:
            if header.api_version > APIS[PRODUCE].max_version:
                raise MalformedError(f"Produce v{header.api_version} is not supported")
            return self._counted(
                self.latencies.produces, k00_produce.serve(self._broker, connection, session, header, frame)
            )
        if key == FETCH and APIS[FETCH].speaks(header.api_version):
            body = frame[header.body_at :]
            return self._counted(
                self.latencies.fetches, k01_fetch.serve(self._broker, connection, session, header, body)
            )
        return self._dispatch(connection, session, header, frame)

    def _counted(self, quick: Quick, reply: Reply | PendingReply | None) -> Reply | PendingReply | None:
        quick.total += 1
        if type(reply) is bytes:
            return reply
        if isinstance(reply, PendingReply):
            if reply.parts is None:
                quick.set_apart()
                reply.time_in(quick.histogram, self.latencies)
        elif reply is None:
            quick.set_apart()  # nobody waits for an answer
        return reply

    def requests_total(self) -> dict[int, int]:
        """By API."""
        return {**self._others_total, PRODUCE: self.latencies.produces.total, FETCH: self.latencies.fetches.total}

    def _dispatch(
        self, connection: Connection, session: Session, header: RequestHeader, frame: memoryview
    ) -> Reply | PendingReply:
        api = APIS.get(header.api_key)
        if api is None:
            raise MalformedError(f"API {header.api_key} is not supported")
        if not api.speaks(header.api_version):
            return _answer_unknown_version(api, header)
        bytes_max = frame_bytes_max(api.key, self._limits.small_frame_bytes_max, self._limits.frame_bytes_max)
        if len(frame) > bytes_max:
            raise MalformedError(f"{api.name} of {len(frame)} bytes; at most {bytes_max} are taken")
        self._others_total[api.key] += 1
        body = frame[header.body_at :]
        is_long = len(body) > decoded_at_once_bytes(api.key)
        request = bytes(body) if is_long else decode(api.request, api.key, header.api_version, "request", body)
        connection.client_id = header.client_id or ""
        client_id, has_left = header.client_id or "", connection.has_left
        context = RequestContext(
            header.api_version, client_id, connection.peer, connection.listener, session.principal, has_left
        )
        pending = PendingReply(connection)
        pending.time_in(self.latencies.of(api.key), self.latencies)
        if is_long:
            connection.hold(pending, len(request))
            handling = self._handle_long(connection, api, header, request, context, pending)
        else:
            handling = self._handle(connection, api, header, request, context, pending)
        task = asyncio.get_running_loop().create_task(handling)  # which lets no error out
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        if is_answered_alone(api.key):
            connection.hold(pending)
            task.add_done_callback(lambda _: connection.release(pending))
        return pending

    async def _handle_long(
        self,
        connection: Connection,
        api: Api,
        header: RequestHeader,
        body: bytes,
        context: RequestContext,
        pending: PendingReply,
    ) -> None:
        """One such request at a time from each connection."""
        try:
            async with self._long if is_answered_alone(api.key) else nullcontext():
                message = await self._broker.turns.aside(
                    decode, api.request, api.key, header.api_version, "request", body
                )
                if api.key in _WAITS_FOR_OTHERS:
                    connection.release(pending)
                await self._handle(connection, api, header, message, context, pending)
        except MalformedError as error:
            connection.refuse_later(pending, error)
        finally:
            connection.release(pending)

    async def _handle(
        self,
        connection: Connection,
        api: Api,
        header: RequestHeader,
        request: Any,
        context: RequestContext,
        pending: PendingReply,
    ) -> None:
        """The boundary of one request: whatever goes wrong inside ends here."""
        try:
            response = await self._respond(api, request, context)
            if isinstance(response, bytes) or not has_more_elements(response, _ENCODED_AT_ONCE_ELEMENTS):
                _reply(api, header, pending, _encoded(api, header, response))
                return
            async with connection.reply_room:
                if not connection.is_closed:
                    body = await self._broker.turns.aside(_encoded, api, header, response)
                    _reply(api, header, pending, body)
        except Exception as error:
            # The boundary of a request: our own mistake costs whoever asked an answer, and nobody else.
            self.errors_total += 1
            log.error("request_failed", api=api.name, version=header.api_version, client=context.client_id, error=error)
            if pending.parts is None:
                pending.fail()

    async def _respond(self, api: Api, request: Any, context: RequestContext) -> Any:
        try:
            return await self._handler(api)(self._broker, request, context)
        except KafkaError as error:
            response = _refusal(api, error)
            if response is None:
                raise  # nowhere in the reply could it be told
            return response

    def _handler(self, api: Api) -> Handler:
        handler = self._handlers.get(api.key)
        if handler is None:
            module = import_module(f"clarion.broker.apis.k{api.key:02d}_{api.snake_name}")
            handler = self._handlers[api.key] = module.handle
        return handler

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _encoded(api: Api, header: RequestHeader, response: Any) -> list[bytes | LeftOut]:
    if isinstance(response, bytes):
        return [response]
    return encode_around(response, api.key, header.api_version, "response")


def _reply(api: Api, header: RequestHeader, pending: PendingReply, body: list[bytes | LeftOut]) -> None:
    first = body[0]
    assert isinstance(first, bytes)
    total = sum([len(one) if isinstance(one, bytes) else one.length for one in body])
    head = reply_head(api.key, header.api_version, header.correlation_id, total)
    if len(first) > _JOINED_BYTES_MAX:
        parts: list[Any] = [head, first]
    elif len(body) == 1:
        pending.resolve(head + first)
        return
    else:
        parts = [head + first]
    for one in body[1:]:
        if isinstance(one, bytes):
            parts.append(one)
        else:
            parts.extend(one.parts)
    pending.resolve(parts)


def _answer_unknown_version(api: Api, header: RequestHeader) -> Reply:
    if api.key != API_VERSIONS:
        raise MalformedError(f"{api.name} v{header.api_version} is not supported")
    # The client learns from a reply in version 0 what it may ask.
    from clarion.wire.api_versions import encode_reply

    body = encode_reply(header.api_version)
    return reply_head(API_VERSIONS, _FALLBACK_VERSION, header.correlation_id, len(body)) + body


def _refusal(api: Api, error: KafkaError) -> Any:
    """A reply that carries nothing but the error, where the API has a place for it at the top."""
    names = {one.name for one in fields(api.response)}
    needed = [one for one in fields(api.response) if one.default is MISSING and one.default_factory is MISSING]
    if "error_code" not in names or any(one.name != "error_code" for one in needed):
        return None
    values: dict[str, object] = {"error_code": int(error.code)}
    if "error_message" in names:
        values["error_message"] = error.message or ErrorCode(error.code).name
    return api.response(**values)
