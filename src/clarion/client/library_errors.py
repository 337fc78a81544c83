"""confluent-kafka's errors and log lines as the client's own."""

from __future__ import annotations

import logging
import re
from functools import cache
from typing import Any, Final

from clarion.client.errors import ClarionError, NotAllowed, NotConnected, Timeout, UnknownTopic, refusal
from clarion.world import boot_seconds

_QUIET_SECONDS: Final = 30.0  # in which a line is not repeated
_LINES_MAX: Final = 1_000  # that are remembered; the library has fewer
_NUMBERS: Final = re.compile(r"\d+")


@cache
def library_log() -> logging.Logger:
    """Where the library's lines go: to whom has asked for them, and not ten times a second while a broker is away.

    What matters of them the application hears as errors, so that nothing is printed where nobody has set up logging.
    """
    log = logging.getLogger("clarion.librdkafka")
    log.addHandler(logging.NullHandler())
    log.addFilter(_Unrepeated())
    return log


class _Unrepeated(logging.Filter):
    """The same line, but for its numbers, once in a while."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        line, now = _NUMBERS.sub("", record.getMessage()), boot_seconds()
        if now - self._last.get(line, -_QUIET_SECONDS) < _QUIET_SECONDS:
            return False
        if len(self._last) >= _LINES_MAX:
            self._last.clear()
        self._last[line] = now
        return True


def library_error(error: Any, what: str) -> ClarionError:
    """`error` is a `confluent_kafka.KafkaError`, the broker's own or, with a code below -1, the library's."""
    from confluent_kafka import KafkaError

    code = error.code()
    if code >= -1:
        return refusal(code, what, _plain(error.str()))
    if code in (KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE):
        return Timeout(f"{what}: no answer in time; it may have happened all the same")
    if code in (KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION):
        return UnknownTopic(f"{what}: there is no such topic or partition any more")
    if code in (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE, KafkaError._SSL):
        return NotConnected(f"{what}: {_plain(error.str())}")
    if code == KafkaError._AUTHENTICATION:
        return NotAllowed(f"{what}: {_plain(error.str())}")
    return ClarionError(f"{what}: {_plain(error.str())}")


def _plain(text: str) -> str:
    words = " ".join(text.replace("Broker: ", "").replace("Local: ", "").split())
    return words[:1].lower() + words[1:]
