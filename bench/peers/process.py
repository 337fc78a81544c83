"""One server process: started, watched through /proc, and ended by its pid."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).resolve().parents[2]
READY_WITHIN_S = 60.0  # a JVM on a busy two-core machine has been seen to take 15 s
STOP_WITHIN_S = 20.0  # a clean stop flushes; longer than this is a hang, and SIGKILL follows
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PR_SET_PDEATHSIG = 1
_TRIES_FOR_PORTS = 100
_LIBC = ctypes.CDLL(None, use_errno=True)


class PeerUnavailable(Exception):
    """This peer cannot be had here; the reason is one line for the report's column."""


class ServerProcess:
    """A server on 127.0.0.1: subclasses say how to start it and how to ask whether it is ready."""

    name = "server"

    def __init__(self, data_dir: Path, port: int = 0) -> None:
        self.data_dir = Path(data_dir)
        self.port = port or free_port()
        self.pid = 0
        self.started_at = 0.0
        self.ready_s = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    def prepare(self) -> None:
        """What comes before the first start and is not part of its time (formatting, writing settings)."""

    def command(self) -> Sequence[str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def wait_until_ready(self, deadline: float) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self.prepare()
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Starts the process and returns when it answers; `ready_s` then holds how long that took."""
        self.launch()
        try:
            self.wait_until_ready(time.monotonic() + READY_WITHIN_S)
        except BaseException:
            self.kill()
            raise
        self.ready_s = time.perf_counter() - self.started_at

    def launch(self) -> None:
        """Starts the process and waits for nothing; by the main thread, since a process dies with its starter."""
        self.started_at = time.perf_counter()
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                list(self.command()), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=self.environment(), preexec_fn=die_with_the_harness, cwd=self.data_dir,
            )  # fmt: skip
        self.pid = self._process.pid

    def stop(self) -> None:
        """SIGTERM to our own pid, then SIGKILL if it does not listen."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """kill -9: what the recovery row measures the morning after."""
        self._end(signal.SIGKILL)

    @property
    def log_path(self) -> Path:
        return self.data_dir.parent / f"{self.data_dir.name}.{self.name}.log"

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    @property
    def pids(self) -> list[int]:
        """The roots of its process trees: what it costs is summed over all of them."""
        return [self.pid]

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def cpu_seconds(self) -> float:
        return cpu_seconds_of(self.pid)

    def rss_bytes(self) -> int:
        return rss_bytes_of(self.pid)

    def poll_until(self, is_ready: Callable[[], bool], deadline: float) -> None:
        """Asks every few milliseconds; a start-up time is measured to that precision."""
        while not is_ready():
            if not self.is_running():
                raise PeerUnavailable(f"{self.name} ended while starting: {self._last_words()}")
            if time.monotonic() > deadline:
                raise PeerUnavailable(f"{self.name} was not ready within {READY_WITHIN_S:.0f} s")
            time.sleep(0.005)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _last_words(self) -> str:
        lines = self.log_path.read_text(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else "it said nothing"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def free_ports_in_a_row(count: int) -> int:
    """The first of them. Somebody may take one before it is used, as with `free_port`."""
    for _ in range(_TRIES_FOR_PORTS):
        first = free_port()
        if all(_is_free(port) for port in range(first, first + count)):
            return first
    raise PeerUnavailable(f"there are no {count} free ports in a row")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def cpu_seconds_of(pid: int) -> float:
    """User and system time of the process and its descendants so far, of those that have ended too."""
    return sum(_cpu_seconds(one) for one in process_tree(pid))


def rss_bytes_of(pid: int) -> int:
    return sum(_rss_bytes(one) for one in process_tree(pid))


def process_tree(pid: int) -> list[int]:
    """The process and its descendants, as far as they still live."""
    pids, waiting = [], [pid]
    while waiting:
        one = waiting.pop()
        pids.append(one)
        waiting.extend(child_pids(one))
    return pids


def die_with_the_harness() -> None:
    # A harness that is killed must not leave a JVM behind.
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    raise_file_limit()


def child_pids(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            found.extend(map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split()))
    except OSError:
        pass  # it ended between two looks
    return found


def _cpu_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    own_and_waited_for = map(int, fields[11:15])  # user, system, and the same of children that have ended
    return sum(own_and_waited_for) / _TICKS_PER_SECOND


def _rss_bytes(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def raise_file_limit() -> int:
    """Lifts the soft limit on open files to the hard one; ten thousand connections need it on both sides."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
