"""`broker.faults`: everything that can be made to go wrong.

A fault begins when its method is called. It is over when it has struck `times` times, when its `with` block is left, on
`fault.end()`, and on `faults.clear()`. `fault.hits` says how often it has struck.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from difflib import get_close_matches
from typing import Final

from clarion.model.errors import ErrorCode
from clarion.testing.broker_thread import BrokerThread
from clarion.testing.disk import BrokenDisk, DiskFault, DiskFaults, FullDisk, Operation, SlowDisk
from clarion.testing.errors import BrokerDownError
from clarion.testing.fault import Fault
from clarion.testing.interception import Delay, LostReply, RefusedRequest, RequestFault
from clarion.wire.apis import APIS

__tracebackhide__: Final = True  # by pytest, as in embedded_broker

Api = str | int

_FREEZE_SECONDS_MAX: Final = 5.0  # to reach the broker's loop; it takes less than one request does


class Faults:
    """Made by the broker; its methods may be called from any thread."""

    def __init__(self, life: Callable[[], BrokerThread | None]) -> None:
        self._life_if_any = life
        self._lock = threading.RLock()
        self._lasting: list[Fault] = []  # freezes and refused connections: they end with the broker's life
        self.requests: list[RequestFault] = []
        self.disk_faults = DiskFaults()

    def _life(self) -> BrokerThread:
        life = self._life_if_any()
        if life is None:
            raise BrokerDownError("the broker is down: `broker.start()` or `broker.restart()` brings it back")
        return life

    # Connections

    def drop_connections(self, client_id: str | None = None) -> int:
        """Cut every connection, or those of one client; returns how many. Clients may connect again at once."""
        return self._life().call(lambda life: life.drop_connections(client_id))

    def refuse_connections(self) -> Fault:
        """Nobody can connect; who is connected stays so. It is the kernel that refuses, so hits are not counted."""
        fault = _Closed(self._life())
        return self._add_lasting(fault)

    # Requests

    def delay(self, api: Api, seconds: float, times: int | None = 1, *, client_id: str | None = None) -> Fault:
        """Hold back the next requests of an API; each is performed after that time, also if its client has given up."""
        key = _api_key(api)
        fault = Delay(f"delay({APIS[key].name}, {seconds})", key, times=times, client_id=client_id)
        fault.seconds = seconds
        fault.on_end = self._release
        return self._add_request(fault)

    def fail(
        self, api: Api, error: ErrorCode | str | int, times: int | None = 1, *, client_id: str | None = None
    ) -> Fault:
        """Answer the next requests of an API with an error, in each place that the reply has for one; do no more."""
        key, code = _api_key(api), _error_code(error)
        fault = RefusedRequest(f"fail({APIS[key].name}, {code.name})", key, times=times, client_id=client_id)
        fault.code = code
        return self._add_request(fault)

    def drop_replies(self, api: Api, times: int | None = 1, *, client_id: str | None = None) -> Fault:
        """Perform the next requests of an API, but end the connection instead of replying: the client cannot know."""
        key = _api_key(api)
        return self._add_request(LostReply(f"drop_replies({APIS[key].name})", key, times=times, client_id=client_id))

    # The disk

    def disk_full(self, free_bytes: int = 0) -> Fault:
        """No room (ENOSPC) for more than `free_bytes`; the write that does not fit is torn, as on a real disk."""
        return self._add_disk(FullDisk(free_bytes))

    def disk_error(self, kind: Operation = "write", times: int | None = None) -> Fault:
        """EIO on every "write", "sync" or "read". What fails to write or sync is offline until the broker restarts."""
        if kind not in ("read", "write", "sync"):
            raise ValueError(f"disk_error takes 'read', 'write' or 'sync', not {kind!r}")
        return self._add_disk(BrokenDisk(kind, times))

    def slow_disk(self, seconds: float) -> Fault:
        """Every write and every flush takes so much longer. Writes happen in the broker's loop: all clients feel it."""
        return self._add_disk(SlowDisk(seconds))

    # The process

    def freeze(self, seconds: float | None = None) -> Fault:
        """The whole broker stands still, as after SIGSTOP, until the fault ends or `seconds` are over."""
        fault = Freeze(seconds)
        fault.begin(self._life())
        return self._add_lasting(fault)

    @property
    def is_frozen(self) -> bool:
        """Whether the broker stands still with no end in sight."""
        return any(isinstance(one, Freeze) and one.seconds is None and not one.is_over for one in self._lasting)

    # All of them

    @property
    def active(self) -> list[Fault]:
        with self._lock:
            return [*self.requests, *self.disk_faults.faults, *self._lasting]

    def clear(self) -> None:
        """End every fault."""
        for fault in reversed(self.active):
            fault.end()

    def end_with_life(self) -> None:
        """A broker that ends is neither frozen nor closed any longer; what is ordered for requests and disk stays."""
        for fault in list(self._lasting):
            fault.end()

    def _add_request(self, fault: RequestFault) -> Fault:
        with self._lock:
            fault.on_over = self._remove
            self.requests.append(fault)
        return fault

    def _add_disk(self, fault: DiskFault) -> Fault:
        with self._lock:
            fault.on_over = self._remove
            self.disk_faults.faults = (*self.disk_faults.faults, fault)
        return fault

    def _add_lasting(self, fault: Fault) -> Fault:
        with self._lock:
            fault.on_over = self._remove
            self._lasting.append(fault)
        return fault

    def _remove(self, fault: Fault) -> None:
        with self._lock:
            for faults in (self.requests, self._lasting):
                if fault in faults:
                    faults.remove(fault)  # type: ignore[arg-type]
            self.disk_faults.faults = tuple(one for one in self.disk_faults.faults if one is not fault)

    def _release(self, fault: Fault) -> None:
        life = self._life_if_any()
        if life is not None:
            life.soon(lambda: life.release(fault))


class Freeze(Fault):
    def __init__(self, seconds: float | None) -> None:
        super().__init__(f"freeze({'' if seconds is None else seconds})")
        self.seconds = seconds
        self._thaw = threading.Event()

    def begin(self, life: BrokerThread) -> None:
        """Returns when the broker's loop has come to a stop."""
        is_frozen = threading.Event()
        life.soon(lambda: self._hold(is_frozen))
        if not is_frozen.wait(_FREEZE_SECONDS_MAX):
            self.end()
            raise TimeoutError("the broker's loop cannot be reached: is it frozen already?")

    def _hold(self, is_frozen: threading.Event) -> None:
        self.hits += 1
        is_frozen.set()
        self._thaw.wait(self.seconds)
        if self.seconds is not None:
            self.end()

    def _let_go(self) -> None:
        self._thaw.set()


class _Closed(Fault):
    def __init__(self, life: BrokerThread) -> None:
        super().__init__("refuse_connections()")
        self._life = life
        life.call(lambda one: one.stop_listening())

    def _let_go(self) -> None:
        self._life.listen_again()


def _api_key(api: Api) -> int:
    if isinstance(api, int):
        if api in APIS:
            return api
        raise ValueError(f"there is no API {api} here; there are {_known_apis()}")
    for key, known in APIS.items():
        if known.name.lower() == api.lower():
            return key
    raise ValueError(f"there is no API {api!r} here{_near(api, [one.name for one in APIS.values()])} {_known_apis()}")


def _known_apis() -> str:
    return ", ".join(f"{api.name} ({key})" for key, api in APIS.items())


def _error_code(error: ErrorCode | str | int) -> ErrorCode:
    try:
        code = ErrorCode[error.upper()] if isinstance(error, str) else ErrorCode(error)
    except (KeyError, ValueError):
        raise ValueError(f"there is no Kafka error {error!r}{_near(str(error), ErrorCode.__members__)}") from None
    if code is ErrorCode.NONE:
        raise ValueError("NONE is not an error")
    return code


def _near(name: str, known: object) -> str:
    close = get_close_matches(name, list(known), n=1, cutoff=0.5)  # type: ignore[call-overload]
    return f"; did you mean {close[0]!r}?" if close else "."
