"""What the broker logs in a simulated life."""

from __future__ import annotations

import logging

from tests.sim.loop import SimLoop


class Listening:
    """The broker's own journal goes into the trace; an unexpected error in it is a violation."""

    def __init__(self, loop: SimLoop) -> None:
        self._handler = _Journal(loop)
        self._logger = logging.getLogger("clarion")

    def __enter__(self) -> None:
        self._before = (self._logger.level, self._logger.propagate)
        self._logger.setLevel(logging.INFO)
        self._logger.propagate = False
        self._logger.addHandler(self._handler)

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self._handler)
        self._logger.level, self._logger.propagate = self._before
        logging.getLogger("clarion").manager._clear_cache()


class _Journal(logging.Handler):
    def __init__(self, loop: SimLoop) -> None:
        super().__init__()
        self._loop = loop

    def emit(self, record: logging.LogRecord) -> None:
        fields = getattr(record, "clarion_fields", {})
        self._loop.trace.note("log", record.getMessage(), *(f"{name}={value}" for name, value in fields.items()))
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, Exception) and not isinstance(error, OSError):
            self._loop.errors.append(f"{record.getMessage()} {fields}: {error!r}")
