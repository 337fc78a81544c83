"""Fetch sessions (KIP-227): a reader names its partitions once, and from then on only what changes.

A session watches its partitions, and keeps those with news in `ready`. So a fetch over two thousand partitions costs
what the few with new messages cost, on both sides. A fetch without a session is answered through one that lives for
this request only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from clarion.broker.authorizer import ANONYMOUS, Principal
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import LogPosition, TopicId
from clarion.replication import Partition
from clarion.replication.follower import FETCHES_IN_FLIGHT_MAX
from clarion.wire.fetch import FetchPartition, FetchRequest, ForgottenTopic

NO_SESSION: Final = 0
NO_REPLICA: Final = -1
FIRST_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_EPOCH_MAX: Final = 2**31 - 1
EVICTION_SECONDS: Final = 120.0  # Kafka's min.incremental.fetch.session.eviction.ms: a session idle for longer may go
PARTITIONS_MAX: Final = 500_000  # of all sessions together, at about half a kilobyte each
REPLICA_SECONDS: Final = 2.0  # a follower asks again every half second
_PLENTY: Final = 1 << 40  # more bytes than anybody waits for

Key = tuple[object, int]  # topic name or id, and partition


class ToldWatermarks:
    """Of one partition, in replies to a follower: which of them it has certainly heard.

    A follower has two requests under way at most, and hears replies in their order: when a request arrives, the reply
    to the one before the last has been heard.
    """

    __slots__ = ("_before", "_heard", "_last")

    def __init__(self) -> None:
        self._last = self._before = (0, -1)  # request, watermark
        self._heard = -1

    def note(self, request: int, watermark: int) -> None:
        if self._before[0] <= request - FETCHES_IN_FLIGHT_MAX:
            self._heard = self._before[1]
        self._before, self._last = self._last, (request, watermark)

    def heard(self, request: int) -> int:
        """`request`: the last one that has arrived."""
        for told, watermark in (self._last, self._before):
            if told <= request - FETCHES_IN_FLIGHT_MAX:
                return watermark
        return self._heard


class SessionPartition:
    """What a reader said of one partition, and what it was told."""

    __slots__ = (
        "flushed_offset",
        "index",
        "is_fresh",
        "key",
        "last_fetched_epoch",
        "leader_epoch",
        "max_bytes",
        "name",
        "next_offset",
        "partition",
        "reported_start",
        "reported_watermark",
        "resolved_in",
        "seen",
        "start_offset",
        "told",
        "topic_id",
    )

    def __init__(self, key: Key, name: str, topic_id: TopicId, asked: FetchPartition) -> None:
        self.key = key
        self.name = name
        self.topic_id = topic_id
        self.index = asked.index
        self.partition: Partition | None = None
        self.resolved_in = 0  # the resolver's version when that was found
        self.seen: LogPosition | None = None  # the watermark when it was last looked at
        self.reported_watermark = -1
        self.reported_start = -1
        self.told: ToldWatermarks | None = None  # of a follower
        self.ask(asked)

    def ask(self, asked: FetchPartition) -> None:
        self.next_offset = asked.fetch_offset
        self.max_bytes = asked.max_bytes
        self.leader_epoch = asked.current_leader_epoch
        self.last_fetched_epoch = asked.last_fetched_epoch
        self.flushed_offset = asked.flushed_offset
        self.start_offset = asked.log_start_offset  # a follower's
        self.is_fresh = True  # a replica has just said where it is

    def tell_anew(self, asked: FetchPartition) -> None:
        """A follower that names it may have passed over replies: those that were under way when it paused, cut its log,
        or heard of another term. In the last two cases it may know of less than it did."""
        self.reported_watermark = -1
        if asked.current_leader_epoch != self.leader_epoch or asked.fetch_offset < self.next_offset:
            self.told = None

    def take_growth(self) -> int:
        """About how many bytes have been committed since the last look."""
        partition, seen = self.partition, self.seen
        if partition is None or partition.is_gone or seen is None or seen.segment != partition.high_watermark.segment:
            return _PLENTY
        self.seen = partition.high_watermark
        return self.seen.position - seen.position


class FetchSession:
    """Implements `replication.Watcher`, and for replicas `replication.AppendWatcher`."""

    __slots__ = (
        "_by_partition",
        "_is_closed",
        "epoch",
        "id",
        "last_used",
        "on_news",
        "on_superseded",
        "partitions",
        "ready",
        "replica_id",
        "replica_life",
        "requests",
        "uses_ids",
        "wants_all",
        "who",
    )

    def __init__(self, session_id: int, *, uses_ids: bool, who: Principal, replica_id: int = NO_REPLICA) -> None:
        self.id = session_id
        self.replica_id = replica_id  # the broker that fetches as a follower
        self.replica_life = NO_REPLICA  # its broker epoch
        self.requests = 1  # that have arrived
        self.who = who  # began it: what was found for one is not for another to read
        self.uses_ids = uses_ids  # whether its partitions are known by topic id (v13 on) or by name
        self.epoch = FIRST_EPOCH
        self.partitions: dict[Key, SessionPartition] = {}
        self.ready: dict[Key, SessionPartition] = {}  # in the order in which they are served next
        self.wants_all = True  # the next reply names every partition, not only those with news
        self.last_used = 0.0
        self.on_news: Callable[[int], None] | None = None  # set while a fetch waits; told about how many bytes
        self.on_superseded: Callable[[], None] | None = None  # set while a replica's does: it has asked again
        self._by_partition: dict[Partition, SessionPartition] = {}
        self._is_closed = False

    def ask(self, request: FetchRequest) -> None:
        for topic in request.topics:
            name_or_id: object = topic.name or topic.topic_id
            for asked in topic.partitions:
                key = (name_or_id, asked.index)
                known = self.partitions.get(key)
                if known is None:
                    known = self.partitions[key] = SessionPartition(key, topic.name, topic.topic_id, asked)
                else:
                    if self.replica_id >= 0:
                        known.tell_anew(asked)
                    known.ask(asked)
                self.ready[key] = known

    def forget(self, forgotten: Iterable[ForgottenTopic]) -> None:
        for topic in forgotten:
            for index in topic.partitions:
                key = (topic.name or topic.topic_id, index)
                known = self.partitions.pop(key, None)
                self.ready.pop(key, None)
                if known is not None:
                    self._unwatch(known)

    def watch(self, asked: SessionPartition, partition: Partition) -> None:
        """From now on, hear of its progress."""
        if asked.partition is not partition and not self._is_closed:
            self._unwatch(asked)
            asked.partition = partition
            self._by_partition[partition] = asked
            partition.watchers[self] = None
            if self.replica_id >= 0:
                partition.append_watchers[self] = None
        asked.seen = partition.high_watermark

    def note_told(self, asked: SessionPartition, watermark: int) -> None:
        """To a follower."""
        if asked.told is None:
            asked.told = ToldWatermarks()
        asked.told.note(self.requests, watermark)

    def served(self, asked: SessionPartition) -> None:
        """It got its share: the others come first next time."""
        self.ready.pop(asked.key, None)
        self.ready[asked.key] = asked

    def has_no_news(self, asked: SessionPartition) -> None:
        self.ready.pop(asked.key, None)

    def on_progress(self, partition: Partition) -> None:
        asked = self._by_partition.get(partition)
        if asked is not None:
            self.ready.setdefault(asked.key, asked)
            if self.replica_id >= 0 and partition.is_leader:
                return  # a follower hears of the watermark with the next messages, or when it has waited long enough
            if self.on_news is not None:
                self.on_news(asked.take_growth())

    def on_appended(self, partition: Partition) -> None:
        asked = self._by_partition.get(partition)
        if asked is not None:
            self.ready.setdefault(asked.key, asked)
            if self.on_news is not None:
                self.on_news(_PLENTY)

    def close(self) -> None:
        self._is_closed = True
        for asked in self.partitions.values():
            self._unwatch(asked)

    def _unwatch(self, asked: SessionPartition) -> None:
        if asked.partition is not None:
            asked.partition.watchers.pop(self, None)
            asked.partition.append_watchers.pop(self, None)
            self._by_partition.pop(asked.partition, None)
            asked.partition = None


class FetchSessions:
    def __init__(self, sessions_max: int, new_id: Callable[[], int]) -> None:
        self._sessions_max = sessions_max
        self._new_id = new_id
        self._sessions: dict[int, FetchSession] = {}
        self._followers: dict[int, FetchSession] = {}  # those of them that are other brokers', by broker

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, request: FetchRequest, now: float, *, uses_ids: bool, who: Principal = ANONYMOUS) -> FetchSession:
        """The session that a request continues, begins, or does without; asked and forgotten partitions are noted."""
        if request.session_epoch in (FIRST_EPOCH, FINAL_EPOCH):
            if request.session_id in self._sessions and self._sessions[request.session_id].who == who:
                self._close(request.session_id)
            if request.session_epoch == FINAL_EPOCH:
                return _sessionless(request, uses_ids=uses_ids, who=who)
            session = self._begin(now, uses_ids=uses_ids, who=who, replica_id=request.replica_id)
            session.ask(request)
            if session.id != NO_SESSION and request.replica_id < 0 and self._is_too_much:
                self._close(session.id)
                return _sessionless(request, uses_ids=uses_ids, who=who)
            return session
        session = self._continue(request, uses_ids=uses_ids, who=who)
        session.last_used = now
        if session.on_superseded is not None:
            session.on_superseded()
        known = len(session.partitions)
        session.ask(request)
        session.forget(request.forgotten)
        if not session.partitions:  # as in Kafka: who reads nothing any more needs no session
            self._close(session.id)
            return _sessionless(request, uses_ids=uses_ids, who=who)
        if len(session.partitions) > known and session.replica_id < 0 and self._is_too_much:
            self._close(session.id)
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "the fetch sessions hold too many partitions")
        return session

    @property
    def _is_too_much(self) -> bool:
        return sum(len(one.partitions) for one in self._sessions.values()) > PARTITIONS_MAX

    def expire(self, now: float) -> int:
        """Close sessions that nobody has used for long; the client begins a new one when it comes back."""
        stale = [
            one for one in self._sessions.values() if one.on_news is None and now - one.last_used > EVICTION_SECONDS
        ]
        for session in stale:
            self._close(session.id)
        return len(stale)

    def replicas(self, now: float) -> dict[int, int]:
        """The brokers that fetch as replicas, with their broker epochs."""
        living = [one for one in self._followers.values() if now - one.last_used < REPLICA_SECONDS]
        return {one.replica_id: one.replica_life for one in living}

    def follower(self, broker_id: int, topic_id: TopicId, index: int, now: float) -> SessionPartition | None:
        """What a broker that fetches as a replica has said of a partition."""
        session = self._followers.get(broker_id)
        if session is None or now - session.last_used >= REPLICA_SECONDS:
            return None
        return session.partitions.get((topic_id, index))

    def heard_watermark(self, broker_id: int, followed: SessionPartition) -> int:
        """The watermark that a follower knows at least."""
        return -1 if followed.told is None else followed.told.heard(self._followers[broker_id].requests)

    def _begin(self, now: float, *, uses_ids: bool, who: Principal, replica_id: int) -> FetchSession:
        is_full = len(self._sessions) >= self._sessions_max
        if is_full and replica_id < 0 and not self.expire(now):  # there is always room for replicas: one each
            return FetchSession(NO_SESSION, uses_ids=uses_ids, who=who)  # legal: the client goes on without one
        if replica_id in self._followers:
            self._close(self._followers[replica_id].id)  # of a connection that was lost
        session_id = self._new_id()
        while session_id in self._sessions:
            session_id = self._new_id()
        session = FetchSession(session_id, uses_ids=uses_ids, who=who, replica_id=replica_id)
        self._sessions[session_id] = session
        if replica_id >= 0:
            self._followers[replica_id] = session
        session.last_used = now
        session.epoch = FIRST_EPOCH + 1
        return session

    def _continue(self, request: FetchRequest, *, uses_ids: bool, who: Principal) -> FetchSession:
        session = self._sessions.get(request.session_id)
        if session is None or session.who != who or session.replica_id != request.replica_id:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"there is no fetch session {request.session_id}")
        if request.session_epoch != session.epoch:
            raise KafkaError(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                f"fetch session {session.id} expects epoch {session.epoch}, not {request.session_epoch}",
            )
        if uses_ids != session.uses_ids:  # the client was updated, or was told by a broker that knows no ids
            known_by = "id" if session.uses_ids else "name"
            raise KafkaError(
                ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, f"fetch session {session.id} knows its topics by {known_by}"
            )
        session.epoch = FIRST_EPOCH + 1 if session.epoch == _EPOCH_MAX else session.epoch + 1
        session.wants_all = False
        session.requests += 1
        return session

    def _close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            if self._followers.get(session.replica_id) is session:
                del self._followers[session.replica_id]
            session.close()


def _sessionless(request: FetchRequest, *, uses_ids: bool, who: Principal) -> FetchSession:
    session = FetchSession(NO_SESSION, uses_ids=uses_ids, who=who, replica_id=request.replica_id)
    session.ask(request)
    session.forget(request.forgotten)
    return session
