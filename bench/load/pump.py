"""One epoll loop that keeps many connections busy: writers with a window of frames in flight, readers that ask again.

Plain non-blocking sockets and prebuilt bytes: per frame one send and its share of a recv, so that one core of Python
outruns the servers it loads (the raw rows prove it).
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Sequence

from bench.load.dialects import Readings, Replies, Shots

RECEIVE_BYTES = 1024 * 1024
DRAIN_WITHIN_S = 30.0  # after the last frame is sent; a server that needs longer has hung
_SWEEP_EVERY_S = 0.1
_IN, _IN_OUT = select.EPOLLIN, select.EPOLLIN | select.EPOLLOUT


class Line:
    """One non-blocking connection with bytes still to be sent."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.unsent: memoryview | None = None
        self.wants = _IN

    def send(self, data: bytes | memoryview) -> bool:
        """False when the socket is full: the rest goes out with `flush`, before anything else."""
        try:
            sent = self.connection.send(data)
        except BlockingIOError:
            sent = 0
        if sent == len(data):
            self.unsent = None
            return True
        self.unsent = memoryview(data)[sent:]
        return False

    def flush(self) -> bool:
        return self.unsent is None or self.send(self.unsent)

    def on_writable(self) -> None:
        self.flush()

    def on_data(self, data: memoryview) -> None:
        raise NotImplementedError

    def is_done(self) -> bool:
        raise NotImplementedError


class Writer(Line):
    """Keeps `window` frames in flight until the deadline or its share of frames is reached, then drains."""

    def __init__(
        self,
        connection: socket.socket,
        shots: Shots,
        replies: Replies,
        *,
        window: int,
        frames_max: int,
        deadline: float,
    ) -> None:
        super().__init__(connection)
        self._frames = shots.frames
        self._replies = replies
        self._window = window
        self._frames_max = frames_max
        self._deadline = deadline
        self._next = 0
        self.sent = 0
        self.acked = 0

    def on_data(self, data: memoryview) -> None:
        self.acked += self._replies.feed(data)
        self.fill()

    def on_writable(self) -> None:
        if self.flush():
            self.fill()

    def fill(self) -> None:
        while self.unsent is None and self.sent - self.acked < self._window and not self._is_over():
            frame = self._frames[self._next]
            self._next = self._next + 1 if self._next + 1 < len(self._frames) else 0
            self.sent += 1
            self.send(frame)

    def is_done(self) -> bool:
        return self.acked == self.sent and self._is_over()

    def _is_over(self) -> bool:
        return self.sent >= self._frames_max or time.perf_counter() >= self._deadline


class Reader(Line):
    """Asks, skips what comes, asks again, until it has seen enough messages or time is up."""

    def __init__(self, connection: socket.socket, readings: Readings, *, messages_max: int, deadline: float) -> None:
        super().__init__(connection)
        self.readings = readings
        self._messages_max = messages_max
        self._deadline = deadline

    def begin(self) -> None:
        self.send(self.readings.first_request())

    def on_data(self, data: memoryview) -> None:
        request = self.readings.feed(data)
        if request is not None and not self.is_done():
            self.flush()
            self.send(request)

    def is_done(self) -> bool:
        return self.readings.messages >= self._messages_max or time.perf_counter() >= self._deadline


def pump(lines: Sequence[Line], give_up_at: float) -> float:
    """Runs until every line is done; returns the moment the last one was."""
    view = memoryview(bytearray(RECEIVE_BYTES))
    busy = {line.connection.fileno(): line for line in lines}
    with select.epoll() as epoll:
        for fd, line in busy.items():
            line.wants = _IN if line.unsent is None else _IN_OUT
            epoll.register(fd, line.wants)
        sweep_at = 0.0
        while busy:
            events = epoll.poll(_SWEEP_EVERY_S)
            for fd, event in events:
                _serve(epoll, fd, event, busy, view)
            now = time.perf_counter()
            if now > sweep_at:  # lines that wait for nothing any more get no event
                _drop_finished(epoll, busy)
                sweep_at = now + _SWEEP_EVERY_S
            if now > give_up_at:
                raise TimeoutError(f"{len(busy)} connections still wait for the server")
    return time.perf_counter()


def _serve(epoll: select.epoll, fd: int, event: int, busy: dict[int, Line], view: memoryview) -> None:
    line = busy[fd]
    if event & select.EPOLLIN:
        got = line.connection.recv_into(view)
        if not got:
            raise ConnectionError("the server closed a connection under load")
        line.on_data(view[:got])
    elif event & (select.EPOLLHUP | select.EPOLLERR):
        raise ConnectionError("the server reset a connection under load")
    if event & select.EPOLLOUT:
        line.on_writable()
    if line.is_done():
        epoll.unregister(fd)
        del busy[fd]
    elif (line.unsent is not None) != (line.wants == _IN_OUT):
        line.wants = _IN if line.unsent is None else _IN_OUT
        epoll.modify(fd, line.wants)


def _drop_finished(epoll: select.epoll, busy: dict[int, Line]) -> None:
    for fd in [fd for fd, line in busy.items() if line.is_done()]:
        epoll.unregister(fd)
        del busy[fd]
