"""Who may do what: the question is asked wherever a request names a topic, a group or the cluster (`resolver`).

The words and codes are those of Kafka's ACLs. There is no authentication yet, so everybody is ANONYMOUS and may do
everything; what decides otherwise one day implements `Authorizer`, and whatever it changes calls `on_change`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from clarion.model.errors import ErrorCode, KafkaError


class Operation(IntEnum):
    """Kafka's codes of what an ACL can speak of."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class ResourceKind(IntEnum):
    """Likewise."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class Principal(NamedTuple):
    kind: str
    name: str


ANONYMOUS: Final = Principal("User", "ANONYMOUS")  # Kafka's name for a client that has not said who it is
THE_CLUSTER: Final = "kafka-cluster"  # the one resource of its kind, by Kafka's name

_REFUSALS: Final = {
    ResourceKind.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceKind.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceKind.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceKind.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


class Authorizer(Protocol):
    def allows(self, principal: Principal, operation: Operation, kind: ResourceKind, name: str) -> bool: ...


class AllowEverything:
    def allows(self, principal: Principal, operation: Operation, kind: ResourceKind, name: str) -> bool:
        return True


def refused(operation: Operation, kind: ResourceKind, name: str) -> KafkaError:
    """Its message tells no more than the client has said itself."""
    return KafkaError(_REFUSALS[kind], f"not authorized: {operation.name} on {kind.name} {name}")
