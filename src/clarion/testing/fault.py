"""One fault: begun when it is made, over when it is used up, ended, or its `with` block is left."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self


class Fault:
    """What `broker.faults.<something>()` returns.

    `hits` says how often it has struck. Faults are used from the test's threads and the broker's: a lock keeps count.
    """

    def __init__(self, name: str, *, times: int | None = None) -> None:
        if times is not None and times < 1:
            raise ValueError(f"a fault strikes at least once, not {times} times; None means until it is ended")
        self.name = name
        self.times = times
        self.hits = 0
        self.is_ended = False
        self.on_over: Callable[[Fault], None] | None = None  # called once, when it cannot strike any more
        self._lock = threading.Lock()

    @property
    def is_over(self) -> bool:
        return self.is_ended or (self.times is not None and self.hits >= self.times)

    def strike(self) -> bool:
        """Count one hit; False if the fault is over."""
        with self._lock:
            if self.is_over:
                return False
            self.hits += 1
            is_last = self.is_over
        if is_last:
            self._tell_over()
        return True

    def end(self) -> None:
        """Stop striking; what it holds back goes on. A second call does nothing."""
        with self._lock:
            was_over, was_ended, self.is_ended = self.is_over, self.is_ended, True
        if was_ended:
            return
        if not was_over:
            self._tell_over()
        self._let_go()

    def _tell_over(self) -> None:
        if self.on_over is not None:
            self.on_over(self)

    def _let_go(self) -> None:
        """For faults that hold something back."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()

    def __repr__(self) -> str:
        state = "over" if self.is_over else "active"
        return f"<Fault {self.name}: {state}, {self.hits} hit{'s' * (self.hits != 1)}>"
