"""What a broker says while a test runs: its events, told apart from those of other brokers, and its failures.

Events of level INFO and above are kept, whatever the test's logging shows. What reaches the test's own handlers does
not change by that: a record goes on only if it would have gone on without us.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from clarion.model.errors import KafkaError
from clarion.testing.errors import is_injected
from clarion.world.events import FIELDS, TextFormatter

EVENTS_MAX: Final = 5_000  # the newest; a test that needs more of them looks for something else
_ROOT: Final = "clarion"


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the broker's journal."""

    seconds: float  # since 1970, as `time.time()` says
    level: str
    component: str
    name: str
    fields: Mapping[str, object]
    text: str  # the whole line, as `clarion serve` would write it

    def __str__(self) -> str:
        return self.text


class Journal:
    """Everything that threads called `name`, or `name-…`, log while it is open."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._events: deque[Event] = deque(maxlen=EVENTS_MAX)
        self.failures: list[BaseException] = []

    @property
    def events(self) -> list[Event]:
        return list(self._events)

    def open(self) -> None:
        _recorder.add(self)

    def close(self) -> None:
        _recorder.remove(self)

    def is_about(self, record: logging.LogRecord) -> bool:
        thread = record.threadName or ""
        return thread == self._name or thread.startswith(f"{self._name}-")

    def note(self, record: logging.LogRecord) -> None:
        self._events.append(_event(record))
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and record.levelno >= logging.ERROR:
            self.note_failure(error)

    def note_failure(self, error: BaseException) -> None:
        """Keep what nobody has asked for: neither a refusal of a client's mistake nor an ordered fault."""
        if not isinstance(error, KafkaError) and not is_injected(error):
            self.failures.append(error)


def _event(record: logging.LogRecord) -> Event:
    return Event(
        record.created,
        record.levelname,
        record.name.removeprefix(f"{_ROOT}."),
        record.getMessage(),
        getattr(record, FIELDS, {}),
        _formatter.format(record),
    )


class _Recorder(logging.Filter):
    """Hangs on each of Clarion's loggers while a journal is open."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._journals: tuple[Journal, ...] = ()
        self._quiet: list[logging.Logger] = []  # loggers that had no level of their own

    def add(self, journal: Journal) -> None:
        with self._lock:
            self._journals = (*self._journals, journal)
            self._attach()

    def remove(self, journal: Journal) -> None:
        with self._lock:
            self._journals = tuple(one for one in self._journals if one is not journal)
            if not self._journals:
                self._detach()

    def _attach(self) -> None:
        for name in [one for one in logging.root.manager.loggerDict if one.startswith(f"{_ROOT}.")]:
            logger = logging.getLogger(name)
            if logger.level == logging.NOTSET and logger not in self._quiet:
                logger.setLevel(logging.INFO)
                logger.addFilter(self)
                self._quiet.append(logger)

    def _detach(self) -> None:
        for logger in self._quiet:
            logger.removeFilter(self)
            logger.setLevel(logging.NOTSET)
        self._quiet.clear()

    def filter(self, record: logging.LogRecord) -> bool:
        for journal in self._journals:
            if journal.is_about(record):
                journal.note(record)
        return record.levelno >= logging.getLogger(_ROOT).getEffectiveLevel()


_recorder: Final = _Recorder()
_formatter: Final = TextFormatter()
