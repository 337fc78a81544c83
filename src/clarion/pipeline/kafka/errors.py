"""What can go wrong between an executor and a broker, in words for the person who reads the query's error."""

from __future__ import annotations

from typing import Final

from clarion.model.errors import ErrorCode, KafkaError


class CorruptDataError(Exception):
    """Bytes from a partition that are not what they say. Reading them again would not help."""


class ConnectionLostError(Exception):
    """The other side is gone, silent, or was never there. Another try may find it back."""


class TlsError(Exception):
    """One of the two does not trust the other, or does not speak TLS. Trying again would not help."""


class DataLossError(Exception):
    """Messages that were to be read are not in the log any more."""


class RefusedRowError(Exception):
    """A row that cannot become a message."""


# Kafka's own list of what may be different at the next try, as far as the APIs in this room can answer it.
_PASSING: Final = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.REPLICA_NOT_AVAILABLE, ErrorCode.NETWORK_EXCEPTION, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }
)  # fmt: skip


def may_pass(error: Exception) -> bool:
    """Whether the same request may succeed later."""
    return isinstance(error, ConnectionLostError) or (isinstance(error, KafkaError) and error.code in _PASSING)


def refusal(code: int, what: str, message: str | None = None) -> KafkaError:
    """A broker's error code as an exception that says what was asked."""
    try:
        known = ErrorCode(code)
    except ValueError:
        known = ErrorCode.UNKNOWN_SERVER_ERROR
    name = known.name if known is not ErrorCode.UNKNOWN_SERVER_ERROR else f"error {code}"
    return KafkaError(known, f"{what}: {name}" + (f" ({message})" if message else ""))
