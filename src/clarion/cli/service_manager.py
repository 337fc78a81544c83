"""What systemd is told of a broker's life (`Type=notify`): one datagram to the socket that `NOTIFY_SOCKET` names.

Where nobody asked for it, nothing is said. Containers and supervisors that copy systemd's protocol are served alike.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

SOCKET: Final = "NOTIFY_SOCKET"
_WATCHDOG_MICROSECONDS: Final = "WATCHDOG_USEC"
_WATCHDOG_PID: Final = "WATCHDOG_PID"
_TIMES: Final = 2  # in each period: systemd's own advice


def ready(status: str) -> None:
    _tell("READY=1", f"STATUS={status}")


def reloading() -> None:
    """`ready` says when it is done."""
    _tell("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000}")


def stopping() -> None:
    _tell("STOPPING=1", "STATUS=stopping")


def feed_watchdog(loop: AbstractEventLoop) -> None:
    """From here on say regularly that the event loop goes round: whoever is stuck is restarted (`WatchdogSec=`)."""
    seconds = watchdog_seconds()
    if seconds is not None:
        _tell("WATCHDOG=1")
        loop.call_later(seconds / _TIMES, feed_watchdog, loop)


def watchdog_seconds() -> float | None:
    """None if nobody watches this process."""
    period, whom = os.environ.get(_WATCHDOG_MICROSECONDS, ""), os.environ.get(_WATCHDOG_PID)
    is_ours = whom is None or whom == str(os.getpid())
    return int(period) / 1_000_000 if is_ours and period.isascii() and period.isdecimal() and int(period) else None


def _tell(*lines: str) -> None:
    """A manager that does not listen any more must not keep a broker from its work."""
    address = os.environ.get(SOCKET, "")
    if not address.startswith(("/", "@")):
        return
    name = f"\0{address[1:]}" if address.startswith("@") else address  # Linux's abstract names
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagram:
        datagram.setblocking(False)
        datagram.sendto("\n".join(lines).encode(), name)
