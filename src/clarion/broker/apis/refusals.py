"""Why one item of a request is refused, while the others go on."""

from __future__ import annotations

from typing import NamedTuple

from clarion.model.errors import ErrorCode, KafkaError
from clarion.world import event_log

log = event_log("broker")

REFUSALS = (KafkaError, OSError)
"""What an item may end with: the peer's mistake, or a disk that does not do what it should."""


class Refusal(NamedTuple):
    code: ErrorCode
    message: str


def refusal_of(error: KafkaError | OSError, item: object) -> Refusal:
    if isinstance(error, KafkaError):
        return Refusal(error.code, error.message or error.code.name)
    log.error("disk_error", item=item, reason=str(error))
    return Refusal(ErrorCode.KAFKA_STORAGE_ERROR, f"the disk refused: {error.strerror or error}")
