"""A cluster as a reader or writer sees it: one connection per broker, leaders looked up, failures tried again.

Everything here blocks. A failure that may pass (a broker restarts, a leader moves) is tried again with growing pauses
until the caller's time is over; then the last error is raised with how long it went on. Clients are not for several
threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from clarion.model.errors import ErrorCode
from clarion.pipeline.kafka.connection import BrokerConnection, Buffer, ClientApi
from clarion.pipeline.kafka.errors import ConnectionLostError, may_pass, refusal
from clarion.pipeline.kafka.metadata import (
    METADATA,
    NO_EPOCH,
    NO_LEADER,
    Cluster,
    KnownTopic,
    metadata_request,
    read_metadata,
)
from clarion.pipeline.kafka.settings import ClientSettings, address
from clarion.wire.cursor import FieldReader

T = TypeVar("T")

# A broker that makes topics when they are asked for needs a moment; one that does not says the same for ever.
CREATION_S: Final = 5.0
MISSING_TRIES: Final = 4  # with the default pauses: three quarters of a second
_MISSING: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


class Client:
    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self._bootstrap = tuple(address(server) for server in settings.bootstrap_servers)
        self._connections: dict[tuple[str, int], BrokerConnection] = {}
        self._cluster = Cluster()
        self._created_since: dict[str, float] = {}  # topics that were asked for and are not there yet

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # Topics

    def topics(self, names: Sequence[str] | None, *, may_create: bool = False) -> dict[str, KnownTopic]:
        """These topics, or all; those that do not exist are missing from the answer. Asked anew, never cached."""
        found = self.keep_trying(lambda: self._ask_topics(names, may_create))
        return {topic.name: topic for topic in found if topic.error_code not in _MISSING}

    def topics_surely(self, names: Sequence[str]) -> dict[str, KnownTopic]:
        """As `topics`, but what is missing is asked for a few times more: a broker that has just started may not know
        its cluster's topics yet, and whoever believes it drops messages that are there."""
        found = self.topics(names)
        pause_ms = self.settings.retry_backoff_ms
        for _ in range(MISSING_TRIES):
            if all(name in found for name in names):
                break
            time.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, self.settings.retry_backoff_max_ms)
            found = self.topics(names)
        return found

    def leader(self, topic: str, partition: int) -> int:
        """The broker that leads a partition, from memory if possible; `forget_leaders` makes it ask again."""
        if topic not in self._cluster.topics:
            self._ask_topics([topic], may_create=False)
        if topic not in self._cluster.topics:
            raise refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic}")
        known = self._cluster.topics[topic].leader(partition)
        if known == NO_LEADER or known not in self._cluster.brokers:
            self.forget_leaders([topic])
            raise refusal(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{partition} has no leader")
        return known

    def leader_epoch(self, topic: str, partition: int) -> int:
        """The term of the leader that `leader` names; whoever sends it along is refused by one of a later term."""
        known = self._cluster.topics.get(topic)
        return NO_EPOCH if known is None else known.leader_epoch(partition)

    def forget_leaders(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self._cluster.topics.pop(topic, None)

    def _ask_topics(self, names: Sequence[str] | None, may_create: bool) -> list[KnownTopic]:
        fresh = read_metadata(self.ask_any(METADATA, metadata_request(names, may_create=may_create)))
        self._cluster = Cluster(fresh.brokers, {**self._cluster.topics, **fresh.topics})
        for topic in fresh.topics.values():
            if topic.error_code and topic.error_code not in _MISSING:
                raise refusal(topic.error_code, f"metadata of {topic.name}")
            if topic.error_code:
                self._cluster.topics.pop(topic.name, None)
                if may_create:
                    self._wait_for_creation(topic.name)
            self._created_since.pop(topic.name, None)
        return list(fresh.topics.values())

    def _wait_for_creation(self, name: str) -> None:
        now = time.monotonic()
        if now - self._created_since.setdefault(name, now) < CREATION_S:
            raise refusal(ErrorCode.LEADER_NOT_AVAILABLE, f"{name} is being created")
        del self._created_since[name]
        what = f"topic {name} does not exist, and the broker makes none by itself; create it first"
        raise refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, what)

    # Questions

    def ask_any(self, api: ClientApi, body: Buffer) -> FieldReader:
        """Whichever broker answers first of those that are known."""
        last: ConnectionLostError | None = None
        for where in self._known_addresses():
            try:
                return self._ask_at(where, api, body)
            except ConnectionLostError as error:
                last = error
        raise last or ConnectionLostError("there are no bootstrap servers")

    def ask(self, broker: int, api: ClientApi, body: Buffer, *, extra_ms: int = 0) -> FieldReader:
        return self._ask_at(self._address_of(broker), api, body, extra_ms=extra_ms)

    def connection(self, broker: int) -> BrokerConnection:
        """An open connection; whoever sees it fail calls `drop`."""
        return self._connection_at(self._address_of(broker))

    def open_connection(self, broker: int) -> BrokerConnection:
        """One more connection, which the caller owns."""
        return BrokerConnection(*self._address_of(broker), self.settings)

    def drop(self, broker: int) -> None:
        self._drop_at(self._address_of(broker))

    def keep_trying(self, action: Callable[[], T], *, timeout_ms: int | None = None) -> T:
        """What `action` gives, once nothing that may pass stands in its way."""
        patience = self.settings.api_timeout_ms if timeout_ms is None else timeout_ms
        deadline = time.monotonic() + patience / 1000
        pause_ms = self.settings.retry_backoff_ms
        while True:
            try:
                return action()
            except Exception as error:  # raised again unless it may pass
                if not may_pass(error):
                    raise
                if time.monotonic() + pause_ms / 1000 >= deadline:
                    error.add_note(f"gave up after {patience / 1000:g} s")
                    raise
            time.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, self.settings.retry_backoff_max_ms)

    def _known_addresses(self) -> list[tuple[str, int]]:
        """Those with an open connection first, then the brokers, then where it all began."""
        return list(dict.fromkeys([*self._connections, *self._cluster.brokers.values(), *self._bootstrap]))

    def _address_of(self, broker: int) -> tuple[str, int]:
        where = self._cluster.brokers.get(broker)
        if where is None:
            raise ConnectionLostError(f"broker {broker} is not known any more")
        return where

    def _ask_at(self, where: tuple[str, int], api: ClientApi, body: Buffer, *, extra_ms: int = 0) -> FieldReader:
        connection = self._connection_at(where)
        try:
            return connection.ask(api, body, extra_ms=extra_ms)
        except Exception:
            self._drop_at(where)
            raise

    def _connection_at(self, where: tuple[str, int]) -> BrokerConnection:
        connection = self._connections.get(where)
        if connection is not None and connection.unanswered:
            # Whoever asked is gone (a cancelled task); the answer would be taken for another's.
            self._drop_at(where)
            connection = None
        if connection is None:
            connection = self._connections[where] = BrokerConnection(*where, self.settings)
        return connection

    def _drop_at(self, where: tuple[str, int]) -> None:
        connection = self._connections.pop(where, None)
        if connection is not None:
            connection.close()
