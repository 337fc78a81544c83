"""What a client is told when something cannot be: RFC 9457 problems, with a detail that says what to do.

`STATUSES` maps every one of Kafka's error codes to a status of HTTP, in one place. A problem's `type` is a name, no
page: `urn:clarion:problem:unknown-topic-or-partition`; `code` is Kafka's name for it where there is one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from clarion.model.errors import ErrorCode, KafkaError

MEDIA_TYPE: Final = "application/problem+json"
_TYPE: Final = "urn:clarion:problem:"

_E = ErrorCode
_BY_STATUS: Final[Mapping[int, tuple[ErrorCode, ...]]] = {
    200: (_E.NONE,),
    400: (
        _E.INVALID_REQUEST,
        _E.INVALID_FETCH_SIZE,
        _E.INVALID_REQUIRED_ACKS,
        _E.UNSUPPORTED_VERSION,
        _E.INVALID_REGULAR_EXPRESSION,
    ),
    401: (
        _E.SASL_AUTHENTICATION_FAILED,
        _E.UNSUPPORTED_SASL_MECHANISM,
        _E.ILLEGAL_SASL_STATE,
        _E.DELEGATION_TOKEN_EXPIRED,
        _E.PRINCIPAL_DESERIALIZATION_FAILURE,
        _E.UNACCEPTABLE_CREDENTIAL,
    ),
    403: (
        _E.TOPIC_AUTHORIZATION_FAILED,
        _E.GROUP_AUTHORIZATION_FAILED,
        _E.CLUSTER_AUTHORIZATION_FAILED,
        _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        _E.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
        _E.DELEGATION_TOKEN_AUTH_DISABLED,
        _E.DELEGATION_TOKEN_OWNER_MISMATCH,
        _E.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
        _E.SECURITY_DISABLED,
        _E.TOPIC_DELETION_DISABLED,
        _E.POLICY_VIOLATION,
    ),
    404: (
        _E.UNKNOWN_TOPIC_OR_PARTITION,
        _E.UNKNOWN_TOPIC_ID,
        _E.GROUP_ID_NOT_FOUND,
        _E.RESOURCE_NOT_FOUND,
        _E.TRANSACTIONAL_ID_NOT_FOUND,
        _E.DELEGATION_TOKEN_NOT_FOUND,
        _E.LOG_DIR_NOT_FOUND,
        _E.BROKER_ID_NOT_REGISTERED,
        _E.UNKNOWN_SUBSCRIPTION_ID,
        _E.UNKNOWN_CONTROLLER_ID,
        _E.VOTER_NOT_FOUND,
        _E.SNAPSHOT_NOT_FOUND,
        _E.LISTENER_NOT_FOUND,
        _E.NO_REASSIGNMENT_IN_PROGRESS,
    ),
    408: (),
    409: (
        _E.TOPIC_ALREADY_EXISTS,
        _E.DUPLICATE_RESOURCE,
        _E.NON_EMPTY_GROUP,
        _E.GROUP_SUBSCRIBED_TO_TOPIC,
        _E.REASSIGNMENT_IN_PROGRESS,
        _E.ELECTION_NOT_NEEDED,
        _E.DUPLICATE_SEQUENCE_NUMBER,
        _E.INVALID_PRODUCER_EPOCH,
        _E.PRODUCER_FENCED,
        _E.INVALID_TXN_STATE,
        _E.INVALID_PRODUCER_ID_MAPPING,
        _E.CONCURRENT_TRANSACTIONS,
        _E.TRANSACTION_COORDINATOR_FENCED,
        _E.TRANSACTION_ABORTABLE,
        _E.UNKNOWN_PRODUCER_ID,
        _E.ILLEGAL_GENERATION,
        _E.UNKNOWN_MEMBER_ID,
        _E.INCONSISTENT_GROUP_PROTOCOL,
        _E.MEMBER_ID_REQUIRED,
        _E.FENCED_INSTANCE_ID,
        _E.FENCED_MEMBER_EPOCH,
        _E.STALE_MEMBER_EPOCH,
        _E.UNRELEASED_INSTANCE_ID,
        _E.INVALID_RECORD_STATE,
        _E.FENCED_STATE_EPOCH,
        _E.SHARE_SESSION_NOT_FOUND,
        _E.INVALID_SHARE_SESSION_EPOCH,
        _E.FETCH_SESSION_ID_NOT_FOUND,
        _E.INVALID_FETCH_SESSION_EPOCH,
        _E.FETCH_SESSION_TOPIC_ID_ERROR,
        _E.INCONSISTENT_TOPIC_ID,
        _E.INCONSISTENT_CLUSTER_ID,
        _E.INCONSISTENT_VOTER_SET,
        _E.DUPLICATE_BROKER_REGISTRATION,
        _E.DUPLICATE_VOTER,
        _E.INVALID_UPDATE_VERSION,
        _E.FEATURE_UPDATE_FAILED,
        _E.INELIGIBLE_REPLICA,
        _E.STREAMS_TOPOLOGY_FENCED,
        _E.STREAMS_INVALID_TOPOLOGY_EPOCH,
        _E.INVALID_REGISTRATION,
        _E.MISMATCHED_ENDPOINT_TYPE,
    ),
    413: (_E.MESSAGE_TOO_LARGE, _E.RECORD_LIST_TOO_LARGE, _E.OFFSET_METADATA_TOO_LARGE, _E.TELEMETRY_TOO_LARGE),
    416: (_E.OFFSET_OUT_OF_RANGE, _E.POSITION_OUT_OF_RANGE),
    422: (
        _E.INVALID_TOPIC_EXCEPTION,
        _E.INVALID_PARTITIONS,
        _E.INVALID_REPLICATION_FACTOR,
        _E.INVALID_REPLICA_ASSIGNMENT,
        _E.INVALID_CONFIG,
        _E.INVALID_TIMESTAMP,
        _E.INVALID_RECORD,
        _E.INVALID_GROUP_ID,
        _E.INVALID_SESSION_TIMEOUT,
        _E.INVALID_COMMIT_OFFSET_SIZE,
        _E.INVALID_TRANSACTION_TIMEOUT,
        _E.INVALID_PRINCIPAL_TYPE,
        _E.INVALID_VOTER_KEY,
        _E.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        _E.UNSUPPORTED_COMPRESSION_TYPE,
        _E.UNSUPPORTED_ASSIGNOR,
        _E.UNSUPPORTED_ENDPOINT_TYPE,
        _E.STREAMS_INVALID_TOPOLOGY,
        _E.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ),
    429: (_E.THROTTLING_QUOTA_EXCEEDED, _E.SHARE_SESSION_LIMIT_REACHED, _E.GROUP_MAX_SIZE_REACHED),
    500: (_E.UNKNOWN_SERVER_ERROR, _E.CORRUPT_MESSAGE),
    501: (_E.OFFSET_MOVED_TO_TIERED_STORAGE,),
    503: (
        _E.LEADER_NOT_AVAILABLE,
        _E.NOT_LEADER_OR_FOLLOWER,
        _E.FENCED_LEADER_EPOCH,
        _E.UNKNOWN_LEADER_EPOCH,
        _E.NEW_LEADER_ELECTED,
        _E.PREFERRED_LEADER_NOT_AVAILABLE,
        _E.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        _E.BROKER_NOT_AVAILABLE,
        _E.REPLICA_NOT_AVAILABLE,
        _E.NETWORK_EXCEPTION,
        _E.NOT_ENOUGH_REPLICAS,
        _E.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        _E.COORDINATOR_LOAD_IN_PROGRESS,
        _E.COORDINATOR_NOT_AVAILABLE,
        _E.NOT_COORDINATOR,
        _E.NOT_CONTROLLER,
        _E.STALE_CONTROLLER_EPOCH,
        _E.STALE_BROKER_EPOCH,
        _E.REBALANCE_IN_PROGRESS,
        _E.UNSTABLE_OFFSET_COMMIT,
        _E.OFFSET_NOT_AVAILABLE,
        _E.OPERATION_NOT_ATTEMPTED,
        _E.REBOOTSTRAP_REQUIRED,
    ),
    504: (_E.REQUEST_TIMED_OUT,),
    507: (_E.KAFKA_STORAGE_ERROR,),
}
STATUSES: Final[Mapping[ErrorCode, int]] = {code: status for status, codes in _BY_STATUS.items() for code in codes}

_WHAT_TO_DO: Final[Mapping[ErrorCode, str]] = {
    _E.UNKNOWN_TOPIC_OR_PARTITION: "GET /v1/topics lists the topics, POST /v1/topics makes one",
    _E.UNKNOWN_TOPIC_ID: "GET /v1/topics lists the topics with their ids",
    _E.TOPIC_ALREADY_EXISTS: "use it, or choose another name",
    _E.MESSAGE_TOO_LARGE: "send less, or raise max.message.bytes of the topic",
    _E.OFFSET_OUT_OF_RANGE: "read from=earliest, or ask for an offset in between",
    _E.NOT_ENOUGH_REPLICAS: "nothing was written; try again when more replicas are in sync",
    _E.REQUEST_TIMED_OUT: "it may have been done all the same: look, or repeat it with the same Idempotency-Key",
    _E.GROUP_ID_NOT_FOUND: "GET /v1/groups lists the groups",
    _E.NON_EMPTY_GROUP: "stop its consumers first",
    _E.KAFKA_STORAGE_ERROR: "the broker's disk is full or broken; its log says more",
}
_MAY_PASS: Final = (429, 503)
_RETRY_SECONDS: Final = 1


class HttpProblem(Exception):
    """Raised anywhere while a request is served; `gateway.app` makes the answer of it."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        kind: str = "",
        code: ErrorCode | None = None,
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.kind = kind  # behind `urn:clarion:problem:`; without it the status says all there is to say
        self.code = code
        self.headers = dict(headers or ())
        if status in _MAY_PASS:
            self.headers.setdefault("Retry-After", str(_RETRY_SECONDS))
        self.extra = extra or {}

    def to_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "type": f"{_TYPE}{self.kind}" if self.kind else "about:blank",
            "title": self.kind.replace("-", " ").capitalize() if self.kind else HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
        }
        if self.code is not None:
            told["code"] = self.code.name
        return {**told, **self.extra}

    def body(self) -> bytes:
        return json.dumps(self.to_json()).encode()


def problem_of(error: KafkaError) -> HttpProblem:
    said = error.message.rstrip(".") or error.code.name.replace("_", " ").lower()
    advice = _WHAT_TO_DO.get(error.code)
    detail = f"{said}; {advice}" if advice and "; " not in said else said  # what to do is said once
    return HttpProblem(STATUSES[error.code], detail, kind=error.code.name.lower().replace("_", "-"), code=error.code)


def raise_if_refused(code: int, message: str | None) -> None:
    """Of an answer in which Kafka's protocol tells of one item."""
    if code:
        raise KafkaError(ErrorCode(code), message or "")
