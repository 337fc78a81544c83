"""What a stretch of load cost: wall time, the broker's CPU and memory, and the load generator's own CPU."""

from __future__ import annotations

import os
import time
from types import TracebackType
from typing import Self

from bench.peers.process import cpu_seconds_of, rss_bytes_of


class Meter:
    """A context manager around the measured stretch; `pids` are those of the broker, or of all brokers of a cluster."""

    def __init__(self, *pids: int) -> None:
        self.pids = pids
        self.seconds = 0.0
        self.broker_cpu_s = 0.0
        self.load_cpu_s = 0.0
        self.rss_bytes = 0

    def __enter__(self) -> Self:
        self._broker_before = self._broker_cpu_seconds()
        self._own_before = _own_cpu_seconds()
        self._began = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds = time.perf_counter() - self._began
        self.load_cpu_s = _own_cpu_seconds() - self._own_before
        self.broker_cpu_s = self._broker_cpu_seconds() - self._broker_before
        self.rss_bytes = sum(map(rss_bytes_of, self.pids))

    def figures(self) -> dict[str, float]:
        return {
            "seconds": self.seconds,
            "broker_cpu_s": self.broker_cpu_s,
            "load_cpu_share": self.load_cpu_s / self.seconds,
            "rss_mb": self.rss_bytes / 1e6,
        }

    def _broker_cpu_seconds(self) -> float:
        return sum(map(cpu_seconds_of, self.pids))


def _own_cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system
