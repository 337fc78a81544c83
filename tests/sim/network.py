"""TCP between simulated processes: bytes arrive in order, late, and in other pieces than they were sent.

What does not fit into the receiver's window waits at the sender, who is told to pause. When a process dies, its peers
get a reset, sooner or later. A link that is cut carries nothing, in one direction or in both, until it is mended: what
was sent meanwhile arrives then, for TCP sends it again.
"""

from __future__ import annotations

import asyncio
import contextvars
import zlib
from collections import deque
from collections.abc import Callable
from typing import Any

from tests.sim.loop import PROCESS, SimLoop

WINDOW_BYTES = 64 * 1024  # what may be under way before the sender's transport begins to hold bytes back
FIFO_SECONDS = 1e-9  # timers of equal time have no order, so that no two segments may have one


class Network:
    def __init__(self, loop: SimLoop, latency_seconds: tuple[float, float]) -> None:
        self.loop = loop
        self.latency_seconds = latency_seconds
        self._listeners: dict[int, tuple[Callable[[], Any], contextvars.Context]] = {}
        self._ends: list[End] = []
        self._connections = 0
        self._cuts: set[tuple[str, str]] = set()  # from a host, to a host
        self.behind_cuts: dict[End, None] = {}  # those with something to send, also when they are closed themselves
        loop.network = self

    def listen(self, factory: Callable[[], Any], port: int) -> Listener:
        self._listeners[port] = (factory, contextvars.copy_context())
        return Listener(self, port)

    def unlisten(self, port: int) -> None:
        self._listeners.pop(port, None)

    async def connect(self, factory: Callable[[], Any], port: int) -> tuple[End, Any]:
        await asyncio.sleep(self.delay())
        listener = self._listeners.get(port)
        if listener is None or not _is_alive(listener[1]):
            raise ConnectionRefusedError(f"nobody listens on {port}")
        await self._until_reached(_host(contextvars.copy_context()), _host(listener[1]))
        self._connections += 1
        ours = End(self, f"c{self._connections}", contextvars.copy_context())
        theirs = End(self, f"s{self._connections}", listener[1].copy())
        ours.peer, theirs.peer = theirs, ours
        self._ends += (ours, theirs)
        protocol = factory()
        ours.open(protocol)
        self.loop.call_soon(lambda: theirs.open(listener[0]()), context=theirs.context)
        return ours, protocol

    def delay(self) -> float:
        least, most = self.latency_seconds
        return least + (most - least) * self.loop.random.random()

    # Links between hosts

    def cut(self, source: str, target: str) -> None:
        """Nothing comes through from one host to another any more. The other direction is a link of its own."""
        self._cuts.add((source, target))

    def mend(self) -> None:
        self._cuts.clear()
        waiting, self.behind_cuts = self.behind_cuts, {}
        for end in waiting:
            end.send_held()

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cuts

    async def _until_reached(self, source: str, target: str) -> None:
        """A connection needs both directions; whoever asks for one waits, as long as he likes."""
        while self.is_cut(source, target) or self.is_cut(target, source):
            await asyncio.sleep(0.05)

    # Connections

    def reset_connections(self) -> None:
        """Every connection breaks."""
        for end in [end for end in self._ends if end.name.startswith("c")]:
            end.abort()
            end.peer.abort()

    def hold(self, end_number: int, seconds: float) -> None:
        """One direction of one connection delivers nothing for a while; what was sent arrives afterwards."""
        if self._ends:
            self._ends[end_number % len(self._ends)].hold(seconds)

    def forget(self, process: object, *, sends_on: bool = True) -> None:
        """The process has died: whoever talked to it will notice. `sends_on`: its machine has not, and still sends what
        the process had written."""
        for port, (_, context) in list(self._listeners.items()):
            if context.get(PROCESS) is process:
                del self._listeners[port]
        for end in list(self._ends):
            if end.context.get(PROCESS) is process:
                end.vanish(sends_on=sends_on)

    def gone(self, end: End) -> None:
        if end in self._ends:
            self._ends.remove(end)


class Listener:
    """What `create_server` returns."""

    sockets: tuple[()] = ()

    def __init__(self, network: Network, port: int) -> None:
        self._network = network
        self._port = port

    def close(self) -> None:
        self._network.unlisten(self._port)

    async def wait_closed(self) -> None: ...


class End(asyncio.Transport):
    """One end of a connection."""

    peer: End

    def __init__(self, network: Network, name: str, context: contextvars.Context) -> None:
        super().__init__()
        self.name = name
        self.context = context
        self._network = network
        self._loop = network.loop
        self._protocol: Any = None
        self._under_way = 0  # bytes sent and not yet taken by the other side
        self._last_arrival = 0.0
        self._host = _host(context)
        self._held: list[tuple[Callable[..., None], tuple[Any, ...]]] = []  # behind a cut
        self._arrived: deque[bytes] = deque()  # while the protocol does not want to read
        self._is_reading = True
        self._is_paused = False
        self._is_closing = False
        self._is_gone = False
        self._high, self._low = 64 * 1024, 16 * 1024

    def open(self, protocol: Any) -> None:
        self._protocol = protocol
        protocol.connection_made(self)

    # Sending

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing or not data:
            return
        content = bytes(data)
        self._under_way += len(content)
        for piece in self._pieces(content):
            self._at_peer(self.peer.arrive, piece)
        if not self._is_paused and self.get_write_buffer_size() > self._high:
            self._is_paused = True
            self._protocol.pause_writing()

    def _pieces(self, content: bytes) -> list[bytes]:
        """As they might come out of the other socket."""
        chance = self._loop.random.random
        kind = chance()
        if kind < 0.5:
            return [content]
        cuts = sorted(int(chance() * (len(content) + 1)) for _ in range(1 if kind < 0.75 else 2))
        return [content[a:b] for a, b in zip([0, *cuts], [*cuts, len(content)], strict=True) if b > a]

    def _at_peer(self, happen: Callable[..., None], *args: Any) -> None:
        if self._held or self._network.is_cut(self._host, self.peer._host):
            self._held.append((happen, args))
            self._network.behind_cuts[self] = None
            return
        self._last_arrival = max(self._loop.time() + self._network.delay(), self._last_arrival + FIFO_SECONDS)
        self._loop.call_at(self._last_arrival, happen, *args, context=self.peer.context)

    def send_held(self) -> None:
        held, self._held = self._held, []
        for happen, args in held:
            self._at_peer(happen, *args)

    def hold(self, seconds: float) -> None:
        self._last_arrival = max(self._last_arrival, self._loop.time() + seconds)

    def taken(self, count: int) -> None:
        """The other side has read so many bytes."""
        self._under_way -= count
        if self._is_paused and self.get_write_buffer_size() <= self._low:
            self._loop.call_soon(self._go_on, context=self.context)

    def _go_on(self) -> None:
        if self._is_paused and self.get_write_buffer_size() <= self._low and not self._is_gone:
            self._is_paused = False
            self._protocol.resume_writing()

    def get_write_buffer_size(self) -> int:
        return max(0, self._under_way - WINDOW_BYTES)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high, self._low = high or 0, low or 0

    # Receiving

    def arrive(self, data: bytes) -> None:
        self._loop.trace.note("net", self.name, len(data), zlib.crc32(data))
        self._arrived.append(data)
        self._deliver()

    def _deliver(self) -> None:
        while self._arrived and self._is_reading and not self._is_closing:
            data = self._arrived.popleft()
            used = self._feed(data)
            if used < len(data):
                self._arrived.appendleft(data[used:])
            self.peer.taken(used)

    def _feed(self, data: bytes) -> int:
        if not isinstance(self._protocol, asyncio.BufferedProtocol):
            self._protocol.data_received(data)
            return len(data)
        buffer = self._protocol.get_buffer(len(data))
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        self._protocol.buffer_updated(count)
        return count

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self._loop.call_soon(self._deliver, context=self.context)

    # Ending

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._at_peer(self.peer.end)  # behind everything that was sent
            self._loop.call_soon(self._lose, None, context=self.context)

    def abort(self) -> None:
        if not self._is_gone:
            self._is_closing = True
            self._at_peer(self.peer.reset)
            self._loop.call_soon(self._lose, None, context=self.context)

    def vanish(self, *, sends_on: bool) -> None:
        """Its process is dead: only the other side hears of it."""
        if not sends_on:
            self._held.clear()
        self._is_closing = self._is_gone = True
        self._network.gone(self)
        self._at_peer(self.peer.reset)

    def end(self) -> None:
        if not self._is_closing:
            self._protocol.eof_received()
            self.close()

    def reset(self) -> None:
        self._is_closing = True
        self._lose(ConnectionResetError("the peer has gone"))

    def _lose(self, error: Exception | None) -> None:
        if not self._is_gone:
            self._is_gone = True
            self._network.gone(self)
            if self._protocol is not None:
                self._protocol.connection_lost(error)

    @property
    def is_open(self) -> bool:
        """Whether bytes may still arrive here."""
        return not self._is_gone and _is_alive(self.context)

    def is_closing(self) -> bool:
        return self._is_closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("10.0.0.1", 40_000) if name == "peername" else default


def _is_alive(context: contextvars.Context) -> bool:
    process = context.get(PROCESS)
    return process is None or process.is_running


def _host(context: contextvars.Context) -> str:
    """The machine on which a process runs; clients run on one of their own."""
    process = context.get(PROCESS)
    return "client" if process is None else process.host
