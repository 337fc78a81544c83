"""The coordination store: a few thousand small values that the whole cluster agrees on.

It is linearizable, and every change has a revision: one number that only grows. A key knows the revision of its last
change, and a transaction may demand that nobody has changed what it is about to change. Watching a prefix from a
revision on tells every change since then in order, or that the history begins later (`CompactedError`): then read
anew. A key may be bound to a lease, and goes with it. The words and the limits are etcd's, which will be one of the
implementations; here are SQLite (`sqlite_store`) and a simulated one (`simulated_store`).

    read = await store.range("topics/")
    made = await store.transact([absent("topics/orders")], [Put("topics/orders", b"…")])
    async for change in store.watch("topics/", read.revision + 1): ...
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NewType, Protocol

Revision = NewType("Revision", int)
LeaseId = NewType("LeaseId", int)

ABSENT: Final = Revision(0)  # the revision of a key that does not exist; the first change of a store has 1
OPERATIONS_MAX: Final = 128  # in one transaction, and as many compares: etcd's max-txn-ops
TRANSACTION_BYTES_MAX: Final = 1024 * 1024  # keys and values of one transaction: etcd takes 1.5 MB with everything


class StoreError(Exception):
    """What a store may answer other than what was asked for."""


class CompactedError(StoreError):
    """The history no longer reaches back to that revision."""

    def __init__(self, asked: int, oldest: int) -> None:
        super().__init__(f"the history begins at revision {oldest}, not at {asked}")
        self.oldest = oldest


class LeaseNotFoundError(StoreError):
    """The lease has ended, and its keys are gone."""


class OutcomeUnknownError(StoreError):
    """No answer came. What was asked may have happened, may yet happen, or never will."""


class TransactionTooLargeError(StoreError):
    """More operations or bytes than one transaction may have."""


class StoreFailedError(StoreError):
    """The store cannot be believed any longer, and the process that holds it has to end."""


@dataclass(frozen=True, slots=True)
class Entry:
    key: str
    value: bytes
    create_revision: Revision
    mod_revision: Revision
    lease: LeaseId | None = None


@dataclass(frozen=True, slots=True)
class Compare:
    """Demands that the key's last change has this revision; ABSENT if there must be no such key."""

    key: str
    mod_revision: Revision


@dataclass(frozen=True, slots=True)
class Put:
    key: str
    value: bytes
    lease: LeaseId | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    key: str


Operation = Put | Delete


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """Whether all compares held, so that all operations were performed; else none was."""

    succeeded: bool
    revision: Revision  # of the store afterwards; the one that changed keys have now


@dataclass(frozen=True, slots=True)
class Range:
    entries: tuple[Entry, ...]  # by key, as bytes are ordered
    revision: Revision  # of the store when it was read: watch from the next one on


@dataclass(frozen=True, slots=True)
class KeyEvent:
    key: str
    entry: Entry | None  # None: the key was deleted


@dataclass(frozen=True, slots=True)
class Change:
    """All that one transaction changed."""

    revision: Revision
    events: tuple[KeyEvent, ...]


class CoordinationStore(Protocol):
    async def get(self, key: str) -> Entry | None: ...

    async def range(self, prefix: str) -> Range: ...

    async def transact(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> TransactionResult:
        """All or nothing; durable when it returns. Each key may be operated on once.

        TransactionTooLargeError, LeaseNotFoundError: nothing was done. OutcomeUnknownError: see there.
        """
        ...

    def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[Change, None]:
        """Every change of such keys from that revision on, in order, for ever. May raise CompactedError any time."""
        ...

    async def compact(self, revision: int) -> None:
        """Forget the history up to this revision, including it. What keys hold now stays."""
        ...

    async def grant_lease(self, ttl_seconds: float) -> LeaseId: ...

    async def keep_alive(self, lease: LeaseId) -> None:
        """Begin the lease's time anew; LeaseNotFoundError if it is over."""
        ...

    async def revoke_lease(self, lease: LeaseId) -> None:
        """End it now; its keys go. Nothing happens if it has ended already."""
        ...

    async def close(self) -> None: ...


def absent(key: str) -> Compare:
    return Compare(key, ABSENT)


def unchanged(entry: Entry) -> Compare:
    return Compare(entry.key, entry.mod_revision)


def check_size(compares: Sequence[Compare], operations: Sequence[Operation]) -> None:
    if len(compares) > OPERATIONS_MAX or len(operations) > OPERATIONS_MAX:
        raise TransactionTooLargeError(f"at most {OPERATIONS_MAX} compares and {OPERATIONS_MAX} operations")
    size = sum(len(one.key.encode()) for one in (*compares, *operations))
    size += sum(len(one.value) for one in operations if isinstance(one, Put))
    if size > TRANSACTION_BYTES_MAX:
        raise TransactionTooLargeError(f"a transaction of {size} bytes; at most {TRANSACTION_BYTES_MAX} are taken")
    assert len({one.key for one in operations}) == len(operations), "a key may be operated on once"


def in_transactions(operations: Iterable[Operation]) -> Iterator[list[Operation]]:
    """In order, as few as may be, none larger than a transaction may be with a compare for every operation."""
    part: list[Operation] = []
    size = 0
    for operation in operations:
        more = 2 * len(operation.key.encode()) + (len(operation.value) if isinstance(operation, Put) else 0)
        if part and (len(part) == OPERATIONS_MAX or size + more > TRANSACTION_BYTES_MAX):
            yield part
            part, size = [], 0
        part.append(operation)
        size += more
    if part:
        yield part


def decide(
    compares: Sequence[Compare],
    operations: Sequence[Operation],
    find: Callable[[str], Entry | None],
    revision: Revision,
) -> Change | None:
    """What a transaction does to a store at this revision: None if a compare fails. It may be a change of nothing."""
    for compare in compares:
        found = find(compare.key)
        if (found.mod_revision if found else ABSENT) != compare.mod_revision:
            return None
    new_revision = Revision(revision + 1)
    events = []
    for operation in operations:
        known = find(operation.key)
        if isinstance(operation, Put):
            created = known.create_revision if known else new_revision
            entry = Entry(operation.key, operation.value, created, new_revision, operation.lease)
            events.append(KeyEvent(operation.key, entry))
        elif known is not None:
            events.append(KeyEvent(operation.key, None))
    return Change(new_revision if events else revision, tuple(events))
