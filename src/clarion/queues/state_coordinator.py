"""The share coordinator of one shard: one partition of `__share_group_state`, and the share-partitions that hash to it.

It keeps what the leaders of data partitions tell it of their share-partitions, and gives it to the next leader. The
protocol with the driver is that of `groups.coordinator`. Each write is an update in the log, a small one; after so many
of them a snapshot of the whole takes their place. What lies before the oldest snapshot that still counts is of no use
to anybody (`redundant_before`), and the driver may delete it; a share-partition that is seldom written gets a new
snapshot now and then, so that it does not hold the others' old records.

Two fences are Kafka's: who reads with a leader epoch keeps out every leader before it; and who initializes with a state
epoch (the group's coordinator, when offsets are altered) keeps out every leader that has not read the state since. The
third is our own: every change raises the version of a state, and a write says on which one it rests. So a write whose
reply was lost may be sent again, and one that arrives late, after its leader has read the state anew, changes nothing
that somebody else rests on.

A state says which subscription of the group's name it is of (`subscription_ms`), where there is one: what one that was
deleted has left, or what was begun for it behind its deletion, is not taken up by the next one of its name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from clarion.groups.outcome import Call, Outcome
from clarion.model.errors import ErrorCode, KafkaError
from clarion.queues import state_records as r
from clarion.queues.state_batches import Delta, StateBatch, combined
from clarion.queues.state_records import ShareKey

_HELD_BACK_MIN: Final = 10_000  # records that a seldom written share-partition may hold, a megabyte or so
_CHANGES_PER_MS: Final = 1 << 20  # more than there are: a state that begins anew has no version that one had before
_WALL_MS_MAX: Final = 1 << 42  # in the year 2109; a clock that says otherwise is wrong, and a version has 63 bits
ANY_VERSION: Final = -1


@dataclass(slots=True)
class ShareState:
    """What is known of one share-partition: the sum of its records."""

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int  # UNINITIALIZED until a leader has chosen one
    done_count: int
    created_ms: int
    batches: list[StateBatch] = field(default_factory=list)
    version: int = 0  # raised by every change
    updates: int = 0  # since the snapshot
    subscription_ms: int = 0  # when the subscription was made whose state it is; 0: nobody has said

    def apply(self, update: r.ShareUpdate) -> None:
        self.updates += 1
        self.version += 1
        self.leader_epoch = max(self.leader_epoch, update.leader_epoch)
        if update.start_offset != r.NOT_UPDATED:
            self.start_offset = update.start_offset
        if update.done_count != r.UNINITIALIZED:
            self.done_count = update.done_count
        self.batches = combined(self.batches, update.batches, self.start_offset)


class InitializeState(NamedTuple):
    key: ShareKey
    state_epoch: int
    start_offset: int
    subscription_ms: int = 0


class ReadState(NamedTuple):
    key: ShareKey
    leader_epoch: int


class SummarizeState(NamedTuple):
    key: ShareKey


class WriteState(NamedTuple):
    key: ShareKey
    state_epoch: int
    leader_epoch: int
    version: int  # that was read, or is the result of the writer's last write
    delta: Delta


class DeleteState(NamedTuple):
    key: ShareKey
    version: int = ANY_VERSION  # unless it has changed since


StateRequest = InitializeState | ReadState | SummarizeState | WriteState | DeleteState


class StateReply(NamedTuple):
    """Where nothing is known, and where the request was refused, there is no start offset."""

    error_code: ErrorCode = ErrorCode.NONE
    message: str = ""
    is_known: bool = False
    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = r.UNINITIALIZED
    done_count: int = r.UNINITIALIZED
    batches: tuple[StateBatch, ...] = ()
    version: int = ANY_VERSION
    subscription_ms: int = 0


class ShareStateCoordinator:
    def __init__(self, updates_per_snapshot: int) -> None:
        self.updates_per_snapshot = updates_per_snapshot
        self._states: dict[ShareKey, ShareState] = {}
        self._snapshot_offsets: dict[ShareKey, int] = {}  # the oldest first: each new snapshot goes to the end
        self._next_offset = 0
        self._last_written: tuple[bytes, r.ShareUpdate] | None = None  # it comes back at once, to be replayed

    # Life

    def replay(self, key: bytes, value: bytes | None, offset: int = -1) -> None:
        decoded = r.decode_key(key)
        self._next_offset = offset + 1
        if decoded is None:
            return
        kind, share_key = decoded
        if kind == r.SNAPSHOT_TYPE:
            self._replay_snapshot(share_key, value, offset)
        elif value is not None:
            self._replay_update(share_key, self._update_in(value))

    def _update_in(self, value: bytes) -> r.ShareUpdate:
        written, self._last_written = self._last_written, None
        return written[1] if written is not None and written[0] is value else r.decode_update(value)

    def _replay_snapshot(self, key: ShareKey, value: bytes | None, offset: int) -> None:
        if value is None:
            self._states.pop(key, None)
            self._snapshot_offsets.pop(key, None)
            return
        one = r.decode_snapshot(value)
        self._states[key] = ShareState(
            one.snapshot_epoch,
            one.state_epoch,
            one.leader_epoch,
            one.start_offset,
            one.done_count,
            one.created_ms,
            list(one.batches),
            one.version if one.version >= 0 else _first_version(one.created_ms),
            subscription_ms=one.subscription_ms,
        )
        self._snapshot_offsets.pop(key, None)
        self._snapshot_offsets[key] = offset

    def _replay_update(self, key: ShareKey, update: r.ShareUpdate) -> None:
        state = self._states.get(key)
        if state is not None and state.snapshot_epoch == update.snapshot_epoch:
            state.apply(update)

    def after_load(self, now_ms: int, wall_ms: int) -> None:
        """Nothing here depends on time."""

    def next_deadline_ms(self) -> int | None:
        return None

    def on_tick(self, now_ms: int, wall_ms: int, *, may_expire: bool) -> Outcome:
        return Outcome()

    def resign(self) -> Outcome:
        return Outcome()  # every request was answered in the step that brought it

    @property
    def redundant_before(self) -> int:
        """The log has nothing before this offset that anybody needs."""
        return next(iter(self._snapshot_offsets.values()), self._next_offset)

    def known_keys(self) -> list[ShareKey]:
        return list(self._states)

    # Requests

    def initialize(self, request: InitializeState, call: Call) -> Outcome:
        """The share-partition begins, or begins anew, at an offset, or where its next leader finds it should."""
        before = self._states.get(request.key)
        if before is not None and _has_begun(before, request):
            return Outcome(replies=[(call.ticket, StateReply())])
        if before is not None and before.state_epoch >= request.state_epoch:
            return _refused(call, ErrorCode.FENCED_STATE_EPOCH, "the state epoch is older than the one known")
        out = Outcome(replies=[(call.ticket, StateReply())])
        state = ShareState(
            snapshot_epoch=before.snapshot_epoch + 1 if before else 0,
            state_epoch=request.state_epoch,
            leader_epoch=before.leader_epoch if before else 0,
            start_offset=request.start_offset,
            done_count=r.UNINITIALIZED if request.start_offset == r.UNINITIALIZED else 0,
            created_ms=call.wall_ms,
            version=max(_first_version(call.wall_ms), before.version + 1 if before else 0),
            subscription_ms=request.subscription_ms,
        )
        self._write_snapshot(out, request.key, state, call.wall_ms)
        return out

    def read(self, request: ReadState, call: Call) -> Outcome:
        """A leader takes over; those before it are fenced from now on, and after a restart too."""
        try:
            state = self._known(request.key)
            _check_leader(state, request.leader_epoch)
        except KafkaError as refusal:
            return _refused(call, refusal.code, refusal.message)
        is_new_leader = request.leader_epoch > state.leader_epoch
        out = Outcome(replies=[(call.ticket, _reply(state, version=state.version + is_new_leader))])
        if is_new_leader:
            update = r.ShareUpdate(state.snapshot_epoch, request.leader_epoch, r.NOT_UPDATED, r.UNINITIALIZED, ())
            out.write(r.encode_key(r.UPDATE_TYPE, request.key), r.encode_update(update))
        return out

    def summary(self, request: SummarizeState, call: Call) -> Outcome:
        """For whoever describes a group: it leads nothing, so it fences nobody. Unknown is not an error."""
        state = self._states.get(request.key)
        reply = StateReply() if state is None else _reply(state, version=state.version)._replace(batches=())
        return Outcome(replies=[(call.ticket, reply)])

    def write(self, request: WriteState, call: Call) -> Outcome:
        try:
            state = self._known(request.key)
            _check_leader(state, request.leader_epoch)
            _check_state(state, request.state_epoch)
            _check_version(state, request.version)
        except KafkaError as refusal:
            return _refused(call, refusal.code, refusal.message)
        out = Outcome(replies=[(call.ticket, StateReply(version=state.version + 1))])
        delta = request.delta
        update = r.ShareUpdate(
            state.snapshot_epoch, request.leader_epoch, delta.start_offset, delta.done_count, delta.batches
        )
        if state.updates + 1 < self.updates_per_snapshot:
            value = r.encode_update(update)
            self._last_written = value, update
            out.write(r.encode_key(r.UPDATE_TYPE, request.key), value)
        else:
            self._write_snapshot(out, request.key, _updated(state, update), call.wall_ms)
        self._refresh_oldest(out, request.key, call.wall_ms)
        return out

    def delete(self, request: DeleteState, call: Call) -> Outcome:
        """What is gone already is gone. What has changed since it was looked at may be another's by now."""
        state = self._states.get(request.key)
        if state is not None and request.version not in (ANY_VERSION, state.version):
            return _refused(call, ErrorCode.FENCED_STATE_EPOCH, "the state has changed meanwhile")
        out = Outcome(replies=[(call.ticket, StateReply())])
        if state is not None:
            out.write(r.encode_key(r.SNAPSHOT_TYPE, request.key), None)
        return out

    # Helpers

    def _known(self, key: ShareKey) -> ShareState:
        state = self._states.get(key)
        if state is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{key} was not initialized")
        return state

    def _refresh_oldest(self, out: Outcome, written: ShareKey, wall_ms: int) -> None:
        """One at a time, with somebody else's write."""
        key, offset = next(iter(self._snapshot_offsets.items()))
        held_back_max = max(_HELD_BACK_MIN, 2 * self.updates_per_snapshot * len(self._states))
        if key != written and self._next_offset - offset > held_back_max:
            self._write_snapshot(out, key, _updated(self._states[key], None), wall_ms)

    def _write_snapshot(self, out: Outcome, key: ShareKey, state: ShareState, wall_ms: int) -> None:
        snapshot = r.ShareSnapshot(
            state.snapshot_epoch,
            state.state_epoch,
            state.leader_epoch,
            state.start_offset,
            state.done_count,
            state.created_ms,
            wall_ms,
            tuple(state.batches),
            state.version,
            state.subscription_ms,
        )
        out.write(r.encode_key(r.SNAPSHOT_TYPE, key), r.encode_snapshot(snapshot))


def _updated(state: ShareState, update: r.ShareUpdate | None) -> ShareState:
    """As it will be in its next snapshot."""
    after = ShareState(
        state.snapshot_epoch + 1,
        state.state_epoch,
        state.leader_epoch,
        state.start_offset,
        state.done_count,
        state.created_ms,
        list(state.batches),
        state.version,
        subscription_ms=state.subscription_ms,
    )
    if update is not None:
        after.apply(update)
    return after


def _first_version(wall_ms: int) -> int:
    return max(0, min(wall_ms, _WALL_MS_MAX)) * _CHANGES_PER_MS


def _has_begun(state: ShareState, request: InitializeState) -> bool:
    """As it is asked to: the request has come before, and its reply was lost. Who only wants it to begin somewhere has
    looked before whether it had; if it has by now, somebody else was faster, and consumers may have read from it."""
    if request.start_offset == r.UNINITIALIZED:
        return True
    is_untouched = state.start_offset == request.start_offset and not state.batches
    is_same = state.state_epoch == request.state_epoch and state.subscription_ms == request.subscription_ms
    return is_untouched and is_same


def _check_leader(state: ShareState, leader_epoch: int) -> None:
    if state.leader_epoch > leader_epoch:
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, "a later leader has read this state")


def _check_state(state: ShareState, state_epoch: int) -> None:
    if state.state_epoch != state_epoch:
        raise KafkaError(ErrorCode.FENCED_STATE_EPOCH, "the state was altered since it was read")


def _check_version(state: ShareState, version: int) -> None:
    if state.version != version:
        raise KafkaError(ErrorCode.FENCED_STATE_EPOCH, "the state was written since it was read")


def _refused(call: Call, code: ErrorCode, message: str) -> Outcome:
    return Outcome(replies=[(call.ticket, StateReply(code, message))])


def _reply(state: ShareState, version: int) -> StateReply:
    return StateReply(
        is_known=True,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start_offset,
        done_count=state.done_count,
        batches=tuple(state.batches),
        version=version,
        subscription_ms=state.subscription_ms,
    )
