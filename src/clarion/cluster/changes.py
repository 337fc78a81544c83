"""Changes of the store that leave nobody in doubt: neither an answer that was lost nor a caller who was cancelled.

What a registry holds in memory follows the store. It would be wrong after a change that happened without its knowing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from clarion.cluster.coordination import (
    Compare,
    CoordinationStore,
    Delete,
    Operation,
    OutcomeUnknownError,
    Put,
    Revision,
    TransactionResult,
)
from clarion.model.errors import ErrorCode, KafkaError

Answer = TypeVar("Answer")

_ATTEMPTS_MAX: Final = 8  # with the pauses below about ten seconds: longer than a store takes to elect a new leader
_CONFLICTS_MAX: Final = 100  # of all who change the same at once, one gets on each time
_PAUSE_SECONDS: Final = 0.1
_PAUSE_SECONDS_MAX: Final = 2.0


class ConflictError(KafkaError):
    """Somebody else was faster: what was to be done may make sense no more, or may be done anew."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.UNKNOWN_SERVER_ERROR, "somebody else changed the same topic; try again")


async def despite_others(attempt: Callable[[], Awaitable[Answer]]) -> Answer:
    """While others change the same: each time from how it is then."""
    for _ in range(_CONFLICTS_MAX):
        with suppress(ConflictError):
            return await attempt()
    raise ConflictError


async def change(
    store: CoordinationStore,
    compares: Sequence[Compare],
    operations: Sequence[Operation],
    follow: Callable[[Revision], None],
    *,
    is_once: bool = False,
) -> bool:
    """Whether it was done. If so, `follow` was called with its revision before anybody else had a turn.

    Every key that is operated on must be compared: that is what makes asking twice harmless.
    `is_once`: whoever hears that it was not done would do it anew. Where it may have been done by an attempt without an
    answer, and undone by somebody else since, it is OutcomeUnknownError then.
    """
    assert {one.key for one in operations} <= {one.key for one in compares}
    # Awaited to its end, also where whoever asked for it is cancelled.
    return await _to_the_end(asyncio.ensure_future(_change(store, compares, operations, follow, is_once)))


async def _change(
    store: CoordinationStore,
    compares: Sequence[Compare],
    operations: Sequence[Operation],
    follow: Callable[[Revision], None],
    is_once: bool,
) -> bool:
    outcome = await _transact_surely(store, compares, operations, is_once)
    if outcome.succeeded:
        follow(outcome.revision)
    return outcome.succeeded


async def _to_the_end(task: asyncio.Future[bool]) -> bool:
    """A caller who is cancelled leaves when the store has answered: what it did is in memory too, then."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # nobody is left to hear of it
        raise


async def _transact_surely(
    store: CoordinationStore, compares: Sequence[Compare], operations: Sequence[Operation], is_once: bool
) -> TransactionResult:
    """Ask until an answer comes. Of the same transaction asked for many times at most one can succeed."""
    is_in_doubt = False  # an attempt had no answer, and may have succeeded

    async def attempt() -> TransactionResult:
        nonlocal is_in_doubt
        try:
            outcome = await store.transact(compares, operations)
        except OutcomeUnknownError:
            is_in_doubt = True
            raise
        except OSError as error:
            if is_in_doubt:  # this attempt was refused; an earlier one may have succeeded, or may still arrive
                raise OutcomeUnknownError(str(error)) from error
            raise
        if outcome.succeeded or not is_in_doubt:
            return outcome
        return await _own_outcome(store, operations)

    outcome = await until_answered(attempt)
    if is_once and is_in_doubt and not outcome.succeeded:
        raise OutcomeUnknownError("it may have been done, and undone since")
    return outcome


async def until_answered(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    """Ask again where no answer came. For what may be asked twice: reading, above all."""
    pause = _PAUSE_SECONDS
    for _ in range(_ATTEMPTS_MAX):
        try:
            return await ask()
        except OutcomeUnknownError:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSE_SECONDS_MAX)
    raise OutcomeUnknownError(f"no answer in {_ATTEMPTS_MAX} attempts")


async def _own_outcome(store: CoordinationStore, operations: Sequence[Operation]) -> TransactionResult:
    """The compares no longer hold, perhaps because an attempt without an answer has succeeded: then all is as asked."""
    revision = Revision(0)
    for operation in operations:
        found = await until_answered(partial(store.get, operation.key))
        match operation:
            case Delete():
                is_done = found is None
            case Put():
                is_done = found is not None and found.value == operation.value
                revision = found.mod_revision if found else revision
        if not is_done:
            return TransactionResult(False, revision)
    return TransactionResult(True, revision)
