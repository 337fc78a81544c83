"""Share sessions: what a member of a share group fetches from one broker, told once and then only changed (KIP-932).

A session belongs to a group and a member. Epoch 0 opens it, each request after that has the next number, and -1 ends
it. What does not fit is refused: SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH, SHARE_SESSION_LIMIT_REACHED.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final
from uuid import UUID

from clarion.model.errors import ErrorCode, KafkaError

OPENING_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_EPOCH_MAX: Final = 2**31 - 1
# Who says nothing for so long may have died, and makes room when there is none. Not before: a subscription's locks, and
# those that were extended, are longer, and whoever works for as long must be heard then.
IDLE_MS: Final = 120_000
PARTITIONS_MAX: Final = 10_000  # of one session; a member is given a few
ALL_PARTITIONS_MAX: Final = 500_000  # of all sessions together: some hundred megabytes, whoever opens them

SharedPartition = tuple[UUID, int]


class ShareSession:
    def __init__(self, group_id: str, member_id: str) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.epoch = OPENING_EPOCH + 1  # of the next request
        self.used_ms = 0
        self.partitions: dict[SharedPartition, None] = {}
        self.is_over = False  # the member has said good-bye
        self.on_next: Callable[[], None] | None = None  # of a fetch that waits: the client has gone on meanwhile

    def in_turn(self) -> Iterator[SharedPartition]:
        """All partitions; who was served goes to the end (`served`), so that each gets its turn."""
        return iter(list(self.partitions))

    def served(self, one: SharedPartition) -> None:
        if one in self.partitions:
            del self.partitions[one]
            self.partitions[one] = None


class ShareSessions:
    def __init__(self, sessions_max: int) -> None:
        self.sessions_max = sessions_max
        self._sessions: dict[tuple[str, str], ShareSession] = {}  # the one that was silent longest first

    def __len__(self) -> int:
        return len(self._sessions)

    def for_fetch(self, group_id: str, member_id: str, epoch: int, now_ms: int, *, acknowledges: bool) -> ShareSession:
        if epoch != OPENING_EPOCH:
            return self.for_acknowledge(group_id, member_id, epoch, now_ms)
        if acknowledges:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "there is nothing to acknowledge in a new share session")
        self._sessions.pop((group_id, member_id), None)
        if len(self._sessions) >= self.sessions_max:
            self._forget_idle(now_ms)
        if len(self._sessions) >= self.sessions_max:
            raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED, f"{self.sessions_max} share sessions are open")
        session = ShareSession(group_id, member_id)
        self._use(session, now_ms)
        return session

    def for_acknowledge(self, group_id: str, member_id: str, epoch: int, now_ms: int) -> ShareSession:
        if epoch == OPENING_EPOCH:
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH, "a new share session has nothing to acknowledge")
        session = self._sessions.get((group_id, member_id))
        if session is None:
            raise KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND, "no such share session")
        if epoch in (FINAL_EPOCH, session.epoch) and session.on_next is not None:
            session.on_next()
        if epoch == FINAL_EPOCH:
            session.is_over = True
            del self._sessions[group_id, member_id]
            return session
        if epoch != session.epoch:
            raise KafkaError(
                ErrorCode.INVALID_SHARE_SESSION_EPOCH, f"share session epoch {epoch}, expected {session.epoch}"
            )
        session.epoch = 1 if epoch == _EPOCH_MAX else epoch + 1
        self._use(session, now_ms)
        return session

    def change(
        self, session: ShareSession, added: Collection[SharedPartition], forgotten: Iterable[SharedPartition]
    ) -> None:
        """What is refused is not kept: else a session would grow with every request that it is refused for."""
        for one in forgotten:
            session.partitions.pop(one, None)
        new = sum(one not in session.partitions for one in added)
        if new and len(session.partitions) + new > PARTITIONS_MAX:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"a share session has at most {PARTITIONS_MAX} partitions")
        if new and self._partition_count() + new > ALL_PARTITIONS_MAX:
            self._forget_idle(session.used_ms)
        if new and self._partition_count() + new > ALL_PARTITIONS_MAX:
            refused = f"share sessions have {ALL_PARTITIONS_MAX} partitions at most, all together"
            raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED, refused)
        session.partitions |= dict.fromkeys(added)

    def _partition_count(self) -> int:
        return sum(len(one.partitions) for one in self._sessions.values())

    def _use(self, session: ShareSession, now_ms: int) -> None:
        session.used_ms = now_ms
        key = (session.group_id, session.member_id)
        self._sessions.pop(key, None)
        self._sessions[key] = session

    def _forget_idle(self, now_ms: int) -> None:
        while self._sessions and next(iter(self._sessions.values())).used_ms + IDLE_MS <= now_ms:
            del self._sessions[next(iter(self._sessions))]
