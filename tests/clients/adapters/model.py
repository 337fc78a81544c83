"""What the scenarios know about a client: a few verbs and plain values. Each adapter says them in its library's words.

A verb that the broker refuses raises `Refused` with Kafka's error code. `can` names what a library is able to express
at all; a scenario that needs more than a client can is not run for it.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

EARLIEST, LATEST, MAX_TIMESTAMP = -2, -1, -3
PATIENCE_S = 60  # the longest any single step may take before the scenario is declared stuck

MESSAGE_TOO_LARGE = 10
UNKNOWN_TOPIC_OR_PARTITION = 3
TOPIC_ALREADY_EXISTS = 36
INVALID_CONFIG = 40
NON_EMPTY_GROUP = 68
INVALID_RECORD = 87
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")


class Refused(Exception):
    """The broker (or the client on its behalf) said no; `code` is Kafka's error code."""

    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(f"error {code}: {text}")
        self.code = code


class Outgoing(NamedTuple):
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class Incoming(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Committed(NamedTuple):
    offset: int
    metadata: str


class GroupView(NamedTuple):
    state: str
    members: int


class ProducerStream:
    """A producer that stays open: `send` does not wait; `finish` waits for every acknowledgement, in sending order."""

    def send(self, topic: str, record: Outgoing) -> None:
        raise NotImplementedError

    def acknowledged(self) -> int:
        raise NotImplementedError

    def finish(self) -> list[tuple[int, int]]:
        raise NotImplementedError


class Member:
    """One consumer of a group. Only the thread that polls it may touch it, as the libraries demand."""

    def poll(self, seconds: float = 0.1) -> list[Incoming]:
        raise NotImplementedError

    def commit(self) -> None:
        raise NotImplementedError

    def assignment(self) -> set[tuple[str, int]]:
        raise NotImplementedError

    def close(self) -> list[Incoming]:
        """Leave the group (a static member only goes away); answers what was processed but not yet polled."""
        raise NotImplementedError


class Client:
    """One client library at one broker."""

    name: ClassVar[str]
    can: ClassVar[frozenset[str]]
    lost_by_leaving: ClassVar[int] = 0  # messages that a member may commit without processing them when it leaves

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    @classmethod
    def why_absent(cls) -> str:
        """Why this client cannot be tried on this machine, or nothing."""
        return ""

    def why_no_codec(self, compression: str) -> str:
        return ""

    def close(self) -> None:
        pass

    # Messages
    def stream(
        self, *, compression: str = "none", idempotent: bool = False, max_bytes: int | None = None
    ) -> ProducerStream:
        raise NotImplementedError

    def produce(self, topic: str, records: Sequence[Outgoing], **settings: object) -> list[tuple[int, int]]:
        """Send and wait; answers (partition, offset) of each record, or nothing where the client cannot tell."""
        stream = self.stream(**settings)
        for record in records:
            stream.send(topic, record)
        return stream.finish()

    def read(
        self, topic: str, partition: int, start: int, count: int, *, seconds: float = PATIENCE_S
    ) -> list[Incoming]:
        """At least `count` messages from `start` (an offset, EARLIEST, LATEST); fails if they do not come."""
        raise NotImplementedError

    def offset_for(self, topic: str, partition: int, timestamp_ms: int) -> int:
        """First offset at or after a time, or EARLIEST, LATEST, MAX_TIMESTAMP; -1 when no message is that late."""
        raise NotImplementedError

    def member(self, group: str, topics: Sequence[str], *, instance: str | None = None) -> Member:
        raise NotImplementedError

    # Admin
    def create_topic(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        raise NotImplementedError

    def delete_topic(self, topic: str) -> None:
        raise NotImplementedError

    def topics(self) -> set[str]:
        raise NotImplementedError

    def partition_count(self, topic: str) -> int:
        raise NotImplementedError

    def topic_id(self, topic: str) -> str:
        raise NotImplementedError

    def add_partitions(self, topic: str, total: int) -> None:
        raise NotImplementedError

    def config(self, topic: str) -> dict[str, str]:
        raise NotImplementedError

    def set_config(self, topic: str, name: str, value: str) -> None:
        raise NotImplementedError

    def groups(self) -> set[str]:
        raise NotImplementedError

    def describe_group(self, group: str) -> GroupView:
        raise NotImplementedError

    def group_offsets(self, group: str) -> dict[tuple[str, int], Committed]:
        raise NotImplementedError

    def delete_group(self, group: str) -> None:
        raise NotImplementedError

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        """Forget what lies before an offset; answers the new first offset."""
        raise NotImplementedError
