"""Share sessions: what clients may make the broker keep of what they fetch."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import pytest

from clarion.model.errors import ErrorCode, KafkaError
from clarion.queues.sessions import (
    ALL_PARTITIONS_MAX,
    IDLE_MS,
    PARTITIONS_MAX,
    SharedPartition,
    ShareSession,
    ShareSessions,
)


def partitions(topic: int, count: int = PARTITIONS_MAX) -> list[SharedPartition]:
    return [(UUID(int=topic), index) for index in range(count)]


def opened(sessions: ShareSessions, number: int = 0, now_ms: int = 0) -> ShareSession:
    return sessions.for_fetch("g", f"m{number}", 0, now_ms, acknowledges=False)


def refusals(sessions: ShareSessions, session: ShareSession, topics: range) -> Iterator[ErrorCode]:
    for topic in topics:
        with pytest.raises(KafkaError) as refused:
            sessions.change(session, partitions(topic), ())
        yield ErrorCode(refused.value.code)


def test_a_session_does_not_grow_with_requests_that_it_refuses() -> None:
    sessions = ShareSessions(10)
    session = opened(sessions)
    sessions.change(session, partitions(1), ())
    assert set(refusals(sessions, session, range(2, 5))) == {ErrorCode.INVALID_REQUEST}
    assert list(session.partitions) == partitions(1)
    sessions.change(session, partitions(1), ())  # what it has already is not more
    sessions.change(session, partitions(2, 1), partitions(1, 1))
    assert len(session.partitions) == PARTITIONS_MAX


def test_all_sessions_together_have_a_limit_and_who_closes_makes_room() -> None:
    sessions = ShareSessions(1_000)
    full = ALL_PARTITIONS_MAX // PARTITIONS_MAX
    for number in range(full):
        sessions.change(opened(sessions, number), partitions(1), ())
    late = opened(sessions, full)
    assert list(refusals(sessions, late, range(1, 2))) == [ErrorCode.SHARE_SESSION_LIMIT_REACHED]
    assert not late.partitions
    sessions.for_fetch("g", "m0", -1, 0, acknowledges=False)
    sessions.change(late, partitions(1), ())
    assert len(late.partitions) == PARTITIONS_MAX


def test_who_works_for_an_hour_is_heard_then_while_there_is_room_for_others() -> None:
    sessions = ShareSessions(2)
    busy = opened(sessions)
    opened(sessions, 1, now_ms=3_600_000)
    assert sessions.for_acknowledge("g", "m0", 1, 3_600_000) is busy
    opened(sessions, 2, now_ms=3_600_000 + IDLE_MS)
    with pytest.raises(KafkaError) as refused:
        sessions.for_acknowledge("g", "m0", 2, 3_600_000 + IDLE_MS)
    assert refused.value.code is ErrorCode.SHARE_SESSION_NOT_FOUND


def test_those_who_were_silent_make_room_for_others_partitions() -> None:
    sessions = ShareSessions(1_000)
    full = ALL_PARTITIONS_MAX // PARTITIONS_MAX
    for number in range(full):
        sessions.change(opened(sessions, number), partitions(1), ())
    sessions.change(opened(sessions, full, now_ms=IDLE_MS), partitions(1), ())
    assert len(sessions) == 1
