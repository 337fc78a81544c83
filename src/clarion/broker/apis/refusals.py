"""Why one item of a request is refused, while the others go on."""

from __future__ import annotations

from typing import NamedTuple

from clarion.cluster import StoreError
from clarion.model.errors import ErrorCode, KafkaError
from clarion.world import event_log

log = event_log("broker")

REFUSALS = (KafkaError, OSError, StoreError)
"""What an item may end with: the peer's mistake, or a disk or a store that does not do what it should."""


class Refusal(NamedTuple):
    code: ErrorCode
    message: str


def refusal_of(error: KafkaError | OSError | StoreError, item: object) -> Refusal:
    if isinstance(error, OSError):
        log.error("disk_error", item=item, reason=str(error))
    elif isinstance(error, StoreError):
        log.warning("store_not_answering", item=item, reason=str(error))
    return refusal_without_line(error)


def refusal_without_line(error: KafkaError | OSError | StoreError) -> Refusal:
    """For what clients ask for again and again by themselves."""
    if isinstance(error, KafkaError):
        return Refusal(error.code, error.message or error.code.name)
    if isinstance(error, StoreError):  # what was asked may have happened: clients look, or ask again
        return Refusal(ErrorCode.REQUEST_TIMED_OUT, f"the cluster's store did not answer: {error}")
    return Refusal(ErrorCode.KAFKA_STORAGE_ERROR, f"the disk refused: {error.strerror or error}")
