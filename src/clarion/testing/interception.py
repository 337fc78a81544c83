"""Between the sockets and the broker: requests that a fault concerns are held back, refused, or lose their reply.

Requests of one connection stay in order, as on a real broker: while one is held back, those behind it wait in the same
lane. What nobody has ordered a fault for goes straight through.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from clarion.model.errors import ErrorCode, MalformedError
from clarion.net import Connection, PendingReply, Reply, Service
from clarion.testing.fault import Fault
from clarion.testing.refusals import expects_reply, refuse
from clarion.testing.relay import Relay
from clarion.wire.apis import APIS
from clarion.wire.frames import RequestHeader, parse_request_header, reply_head

if TYPE_CHECKING:
    from clarion.broker.broker import Broker


class RequestFault(Fault):
    """Concerns the requests of one API, of all clients or of one."""

    def __init__(self, name: str, api_key: int, *, times: int | None, client_id: str | None) -> None:
        super().__init__(name, times=times)
        self._api_key = api_key
        self._client_id = client_id

    def concerns(self, header: RequestHeader) -> bool:
        return header.api_key == self._api_key and self._client_id in (None, header.client_id)


class Delay(RequestFault):
    """The request is held back, then performed."""

    seconds = 0.0
    on_end: Callable[[Fault], None] | None = None

    def _let_go(self) -> None:
        if self.on_end is not None:
            self.on_end(self)


class RefusedRequest(RequestFault):
    """The request is not performed; the reply carries this error."""

    code = ErrorCode.UNKNOWN_SERVER_ERROR


class LostReply(RequestFault):
    """The request is performed, and the connection ends instead of the reply."""


class Held:
    """A request that a fault concerns, or that waits behind one."""

    __slots__ = ("fault", "frame", "header", "refusal", "reply", "timer")

    def __init__(self, header: RequestHeader, frame: memoryview, reply: PendingReply) -> None:
        self.header = header
        self.frame = bytearray(frame)  # the view is valid during the call only
        self.reply = reply
        self.fault: RequestFault | None = None
        self.refusal: bytes | None = None
        self.timer: asyncio.TimerHandle | None = None


class Interceptor:
    """The service that a broker's sockets talk to. One per life of the broker; the faults outlive it."""

    def __init__(self, service: Service, broker: Callable[[], Broker], faults: list[RequestFault]) -> None:
        self._service = service
        self._broker = broker
        self._faults = faults
        self._lanes: dict[Connection, deque[Held]] = {}
        self.is_dead = False  # the broker is being killed: what arrives now nobody will ever know of
        self._loop = asyncio.get_running_loop()

    def __call__(self, connection: Connection, frame: memoryview) -> Reply | PendingReply | None:
        if self.is_dead:
            return None
        if not self._faults and not self._lanes:
            return self._service(connection, frame)
        header = parse_request_header(frame)
        lane = self._lanes.get(connection)
        held = Held(header, frame, PendingReply(connection))
        self._find_fault(connection, held)
        if held.fault is None and lane is None:
            return self._service(connection, frame)
        if lane is not None:
            lane.append(held)
        elif isinstance(held.fault, Delay):
            self._lanes[connection] = deque([held])
            self._wait(connection, held)
        else:
            self._perform(connection, held)
        return held.reply

    def _find_fault(self, connection: Connection, held: Held) -> None:
        """One fault at most for each request, the one that was ordered first."""
        header = held.header
        if header.api_key not in APIS or not APIS[header.api_key].speaks(header.api_version):
            return
        for fault in list(self._faults):
            if not fault.concerns(header) or fault.is_over:
                continue
            if isinstance(fault, RefusedRequest):
                held.refusal = self._refusal(fault, connection, held)
                if held.refusal is None:
                    continue  # there is no place for the error in this answer
            if fault.strike():
                held.fault = fault
                return

    def _refusal(self, fault: RefusedRequest, connection: Connection, held: Held) -> bytes | None:
        key, version, correlation_id, _, body_at = held.header
        request = memoryview(held.frame)[body_at:]
        body = refuse(self._broker(), key, version, request, fault.code, connection.listener)
        return None if body is None else reply_head(key, version, correlation_id, len(body)) + body

    # Waiting

    def _wait(self, connection: Connection, held: Held) -> None:
        assert isinstance(held.fault, Delay)
        held.timer = self._loop.call_later(held.fault.seconds, self._go_on, connection)

    def _go_on(self, connection: Connection) -> None:
        """The head of the lane has waited long enough: it, and all that need not wait themselves, are performed."""
        lane = self._lanes[connection]
        self._perform(connection, lane.popleft())
        while lane:
            if isinstance(lane[0].fault, Delay) and not lane[0].fault.is_ended:
                self._wait(connection, lane[0])
                return
            self._perform(connection, lane.popleft())
        del self._lanes[connection]

    def release(self, fault: Fault) -> None:
        """A delay has been ended: whom it held back need not wait any longer."""
        for connection, lane in list(self._lanes.items()):
            head = lane[0]
            if head.fault is fault and head.timer is not None:
                head.timer.cancel()
                self._go_on(connection)

    # Performing

    def _perform(self, connection: Connection, held: Held) -> None:
        fault, frame = held.fault, memoryview(held.frame)
        if isinstance(fault, RefusedRequest):
            if held.refusal is not None and expects_reply(*held.header[:2], frame[held.header.body_at :]):
                held.reply.resolve([held.refusal])
            else:
                connection.close()  # the only way to tell a producer that wants no reply
            return
        connection.client_id = held.header.client_id or ""
        relay = Relay(connection, held.reply, loses_reply=isinstance(fault, LostReply))
        try:
            relay.take(self._service(relay, frame))
        except MalformedError as error:
            connection.refuse_later(held.reply, error)
