"""The event journal: a log line is an event with fields, one per decision, none per record.

    log = event_log("log")
    log.info("tail_cut", partition=tp, bytes=173, reason="torn batch")

Lines go through the standard `logging` module under `clarion.<component>`; the composition root chooses text or JSON.
"""

from __future__ import annotations

import json
import logging
from base64 import urlsafe_b64encode
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

FIELDS: Final = "clarion_fields"  # where a log record keeps its event's fields


def event_log(component: str) -> EventLog:
    return EventLog(logging.getLogger(f"clarion.{component}"))


class EventLog:
    __slots__ = ("_logger",)

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, event: str, **fields: object) -> None:
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, *, error: BaseException | None = None, **fields: object) -> None:
        """An event that somebody should look at; with `error`, its traceback is kept."""
        self._write(logging.ERROR, event, fields, error)

    def _write(self, level: int, event: str, fields: dict[str, object], error: BaseException | None = None) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, event, extra={FIELDS: fields}, exc_info=error)


class Repeats:
    """Keeps one kind of line from filling the log: some in every while, and the next one tells what was left out."""

    __slots__ = ("_lines_max", "_seconds", "_since", "_written", "left_out")

    def __init__(self, lines_max: int = 10, seconds: float = 10.0) -> None:
        self._lines_max = lines_max
        self._seconds = seconds
        self._since = float("-inf")
        self._written = 0
        self.left_out = 0

    def allow(self, now: float) -> bool:
        """Whether a line may be written now."""
        if now - self._since >= self._seconds:
            self._since, self._written = now, 0
        if self._written >= self._lines_max:
            self.left_out += 1
            return False
        self._written += 1
        return True

    def take_left_out(self) -> dict[str, int]:
        """A field for the line that is written now; none if nothing was left out."""
        left_out, self.left_out = self.left_out, 0
        return {"left_out": left_out} if left_out else {}


class FloodFilter(logging.Filter):
    """For a handler: of one event, so many warnings in every while, whoever writes them and however fast.

    What strangers can cause at will is held back where it is written, and sooner (`Repeats`).
    """

    def __init__(self, lines_max: int = 100, seconds: float = 10.0) -> None:
        super().__init__()
        self._lines_max = lines_max
        self._seconds = seconds
        self._repeats: dict[tuple[str, str], Repeats] = {}  # as many as there are events in the sources

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING or not hasattr(record, FIELDS):
            return True
        repeats = self._repeats.setdefault((record.name, record.msg), Repeats(self._lines_max, self._seconds))
        if not repeats.allow(record.created):
            return False
        getattr(record, FIELDS).update(repeats.take_left_out())
        return True


class TextFormatter(logging.Formatter):
    """`2026-11-15 11:20:01.123 INFO log tail_cut partition=t-0 bytes=173`"""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, FIELDS, {})
        words = " ".join(f"{name}={_one_line(value)}" for name, value in fields.items())
        stamp = f"{self.formatTime(record, '%Y-%m-%d %H:%M:%S')}.{int(record.msecs):03d}"
        component = record.name.removeprefix("clarion.")
        line = f"{stamp} {record.levelname} {component} {record.getMessage()} {words}".rstrip()
        return line + ("\n" + self.formatException(record.exc_info) if record.exc_info else "")


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)  # whoever collects lines does not know our time zone
        line: dict[str, object] = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "component": record.name.removeprefix("clarion."),
            "event": record.getMessage(),
            **getattr(record, FIELDS, {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=_text)


def _one_line(value: object) -> str:
    """A peer's text must not be able to forge a line of its own."""
    text = _text(value)
    if text.isprintable() and " " not in text and text:
        return text
    return json.dumps(text)


def _text(value: object) -> str:
    """Ids as Kafka's tools spell them, so that a line can be found by what `topic describe` shows."""
    return urlsafe_b64encode(value.bytes).decode().rstrip("=") if isinstance(value, UUID) else str(value)
