"""What the client raises: one class per thing that an application can do about it, each with Kafka's code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Final

from clarion.model.errors import ErrorCode


class ClarionError(Exception):
    """Something was refused or could not be done; the text says what to do, `code` is Kafka's."""

    usual_code = ErrorCode.UNKNOWN_SERVER_ERROR

    def __init__(self, message: str, code: ErrorCode | None = None) -> None:
        super().__init__(message)
        self.code = self.usual_code if code is None else code


class NotConnected(ClarionError, ConnectionError):
    """No broker answers."""

    usual_code = ErrorCode.NETWORK_EXCEPTION


class Timeout(ClarionError, TimeoutError):
    """No answer in time: it may have happened all the same."""

    usual_code = ErrorCode.REQUEST_TIMED_OUT


class NotAllowed(ClarionError, PermissionError):
    """The broker does not let this user do it."""

    usual_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


class UnknownTopic(ClarionError, LookupError):
    """There is no such topic, or no such partition."""

    usual_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class TopicExists(ClarionError):
    """Another topic has this name."""

    usual_code = ErrorCode.TOPIC_ALREADY_EXISTS


class UnknownSubscription(ClarionError, LookupError):
    """There is no such subscription."""

    usual_code = ErrorCode.GROUP_ID_NOT_FOUND


class SubscriptionExists(ClarionError):
    """A subscription has this name and is another one."""

    usual_code = ErrorCode.DUPLICATE_RESOURCE


class MessageTooLarge(ClarionError, ValueError):
    """The topic takes no message of this size."""

    usual_code = ErrorCode.MESSAGE_TOO_LARGE


class InvalidRequest(ClarionError, ValueError):
    """A name, a number or a setting that cannot be."""

    usual_code = ErrorCode.INVALID_REQUEST


class Unsupported(ClarionError):
    """The broker does not offer it, or offers it elsewhere."""

    usual_code = ErrorCode.UNSUPPORTED_VERSION


class NotAcknowledged(ClarionError):
    """What was said of these messages did not count, since their time was over and others may have them; or a broker
    was lost before it answered, and it may have counted."""

    usual_code = ErrorCode.INVALID_RECORD_STATE

    def __init__(self, message: str, places: Sequence[tuple[str, int, int]]) -> None:
        super().__init__(message)
        self.places = places  # topic, partition, offset


class NotAQueue(ClarionError, TypeError):
    """Messages of a stream are not settled one by one."""

    usual_code = ErrorCode.INVALID_REQUEST


class ClosedError(ClarionError):
    """The connection or the reading was closed before."""

    usual_code = ErrorCode.NETWORK_EXCEPTION


_CLASSES: Final[dict[ErrorCode, type[ClarionError]]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: UnknownTopic,
    ErrorCode.UNKNOWN_TOPIC_ID: UnknownTopic,
    ErrorCode.TOPIC_ALREADY_EXISTS: TopicExists,
    ErrorCode.GROUP_ID_NOT_FOUND: UnknownSubscription,
    ErrorCode.RESOURCE_NOT_FOUND: UnknownSubscription,
    ErrorCode.UNKNOWN_SUBSCRIPTION_ID: UnknownSubscription,
    ErrorCode.DUPLICATE_RESOURCE: SubscriptionExists,
    ErrorCode.MESSAGE_TOO_LARGE: MessageTooLarge,
    ErrorCode.RECORD_LIST_TOO_LARGE: MessageTooLarge,
    ErrorCode.REQUEST_TIMED_OUT: Timeout,
    ErrorCode.UNSUPPORTED_VERSION: Unsupported,
    ErrorCode.NETWORK_EXCEPTION: NotConnected,
    **dict.fromkeys(
        (
            *(ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED),
            *(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.SASL_AUTHENTICATION_FAILED),
        ),
        NotAllowed,
    ),
    **dict.fromkeys(
        (
            *(ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.INVALID_PARTITIONS, ErrorCode.INVALID_REPLICATION_FACTOR),
            *(ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_GROUP_ID),
            *(ErrorCode.POLICY_VIOLATION, ErrorCode.INVALID_TIMESTAMP, ErrorCode.INVALID_RECORD),
        ),
        InvalidRequest,
    ),
}

_WORDS: Final = {
    ErrorCode.TOPIC_ALREADY_EXISTS: "use it as it is, or delete it first",
    ErrorCode.TOPIC_DELETION_DISABLED: "this broker deletes no topics (its setting delete.topic.enable)",
    ErrorCode.INVALID_REPLICATION_FACTOR: "there are not so many brokers",
    ErrorCode.NOT_ENOUGH_REPLICAS: "too few replicas are in sync; try again, or look at `clarion cluster status`",
    ErrorCode.MESSAGE_TOO_LARGE: "make it smaller, or raise the topic's setting max.message.bytes",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "it has as many readers as it may have",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "its name is taken by readers of the other kind (stream or queue)",
}


def refusal(code: int, what: str, reason: str | None = None) -> ClarionError:
    """The error for what a broker has refused: `what` was tried, `reason` is the broker's own text."""
    try:
        known = ErrorCode(code)
    except ValueError:
        return ClarionError(f"{what}: {reason or f'error {code}'}")
    kind = _CLASSES.get(known, ClarionError)
    words = [text.rstrip(".") for text in (reason, _WORDS.get(known)) if text] or [known.name.lower().replace("_", " ")]
    return kind(f"{what}: {'; '.join(words)}", known)


def unknown_topic(topic: str, known: Iterable[str]) -> UnknownTopic:
    """With the name that was probably meant."""
    meant = get_close_matches(topic, [*known], n=1)
    hint = f"did you mean {meant[0]!r}?" if meant else f"bus.create({topic!r}) makes one"
    return UnknownTopic(f"there is no topic {topic!r}; {hint}")


def deleted_topic(what: str, topic: str) -> UnknownTopic:
    """It was there when `what` was begun."""
    return UnknownTopic(f"{what}: the topic was deleted; bus.create({topic!r}) makes it anew")


def not_acknowledged(places: Sequence[tuple[str, int, int]]) -> NotAcknowledged:
    shown = ", ".join(f"{topic}-{partition}@{offset}" for topic, partition, offset in places[:3])
    more = f" and {len(places) - 3} more" if len(places) > 3 else ""
    return NotAcknowledged(
        f"what was said of {shown}{more} is not known to count: their time was over, or a broker was lost before it "
        "answered; what did not count comes again",
        places,
    )
