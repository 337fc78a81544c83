"""The share coordinator: updates and snapshots, fences, and a log that can be cut before its oldest snapshot."""

from __future__ import annotations

import itertools
from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.broker.share_state_calls import from_wire, to_wire
from clarion.groups.outcome import Call, Outcome
from clarion.model.errors import ErrorCode, MalformedError
from clarion.queues import state_records as r
from clarion.queues.runs import RecordState
from clarion.queues.state_batches import Delta, StateBatch, combined
from clarion.queues.state_coordinator import (
    DeleteState,
    InitializeState,
    ReadState,
    ShareStateCoordinator,
    StateReply,
    SummarizeState,
    WriteState,
)
from clarion.queues.state_records import ShareKey

ORDERS = ShareKey("billing", UUID(int=7), 0)
OTHER = ShareKey("billing", UUID(int=7), 1)


class Log:
    """Drives one coordinator as the runtime does, and keeps its log."""

    def __init__(self, updates_per_snapshot: int = 500) -> None:
        self.updates_per_snapshot = updates_per_snapshot
        self.coordinator = ShareStateCoordinator(updates_per_snapshot)
        self.records: list[tuple[int, bytes, bytes | None]] = []
        self.next_offset = 0

    def ask(self, name: str, request: object, wall_ms: int = 1_000) -> StateReply:
        ticket = object()
        outcome: Outcome = getattr(self.coordinator, name)(request, Call(ticket, 0, 0, wall_ms))
        for key, value in outcome.records:
            self.records.append((self.next_offset, key, value))
            self.coordinator.replay(key, value, self.next_offset)
            self.next_offset += 1
        ((answered, reply),) = outcome.replies
        assert answered is ticket
        assert isinstance(reply, StateReply)
        return reply

    def restart(self) -> None:
        self.coordinator = ShareStateCoordinator(self.updates_per_snapshot)
        for offset, key, value in self.records:
            self.coordinator.replay(key, value, offset)
        self.coordinator.after_load(0, 0)

    def prune(self) -> None:
        self.records = [record for record in self.records if record[0] >= self.coordinator.redundant_before]

    def initialize(
        self, key: ShareKey = ORDERS, state_epoch: int = 1, start: int = 0, wall_ms: int = 1_000
    ) -> StateReply:
        return self.ask("initialize", InitializeState(key, state_epoch, start), wall_ms)

    def write(
        self,
        start: int,
        *batches: tuple[int, int, int, int],
        key: ShareKey = ORDERS,
        epochs: tuple[int, int] = (1, 1),
        version: int | None = None,
    ) -> StateReply:
        """`version`: the one that the state has, unless told."""
        delta = Delta(start, 0, tuple(StateBatch(*one) for one in batches))
        rests_on = self.version(key) if version is None else version
        return self.ask("write", WriteState(key, epochs[0], epochs[1], rests_on, delta))

    def version(self, key: ShareKey = ORDERS) -> int:
        return self.ask("summary", SummarizeState(key)).version

    def read(self, key: ShareKey = ORDERS, leader_epoch: int = 1) -> StateReply:
        return self.ask("read", ReadState(key, leader_epoch))


def _plain(reply: StateReply) -> list[tuple[int, ...]]:
    """Without what is not Kafka's."""
    return [tuple(one[:4]) for one in reply.batches]


def test_what_was_written_is_read_by_the_next_leader_also_after_a_restart() -> None:
    log = Log()
    log.initialize(start=-1)
    log.read()
    log.write(0, (0, 9, 0, 1))
    log.write(5, (5, 6, 2, 1), (7, 7, 4, 1))
    expected = [(5, 6, 2, 1), (7, 7, 4, 1), (8, 9, 0, 1)]
    for _ in range(2):
        reply = log.read(leader_epoch=2)
        assert (reply.start_offset, reply.state_epoch, _plain(reply)) == (5, 1, expected)
        log.restart()


def test_a_state_says_of_which_subscription_it_is_also_after_snapshots_and_a_restart() -> None:
    log = Log()
    log.updates_per_snapshot = 2
    log.restart()
    assert log.ask("initialize", InitializeState(ORDERS, 1, 0, subscription_ms=7)).error_code is ErrorCode.NONE
    for start in range(5):
        log.write(start, (start, start, 0, 1))
    for _ in range(2):
        assert log.ask("summary", SummarizeState(ORDERS)).subscription_ms == log.read().subscription_ms == 7
        log.prune()
        log.restart()
    late = InitializeState(ORDERS, 1, -1, subscription_ms=6)
    assert log.ask("initialize", late).error_code is ErrorCode.NONE, "it has begun"
    assert log.read().subscription_ms == 7
    log.ask("initialize", InitializeState(ORDERS, 2, 5, subscription_ms=8))
    assert log.ask("initialize", InitializeState(ORDERS, 2, 5, subscription_ms=7)).error_code is not ErrorCode.NONE
    assert log.read().subscription_ms == 8


def test_a_state_that_nobody_initialized_can_neither_be_read_nor_written() -> None:
    log = Log()
    assert log.read().error_code is ErrorCode.INVALID_REQUEST
    assert log.write(0).error_code is ErrorCode.INVALID_REQUEST
    summary = log.ask("summary", SummarizeState(ORDERS))
    assert (summary.error_code, summary.start_offset) == (ErrorCode.NONE, -1)
    assert log.records == []


def test_a_leader_is_fenced_when_another_has_read_the_state_also_after_a_restart() -> None:
    log = Log()
    log.initialize()
    log.read(leader_epoch=3)
    log.read(leader_epoch=4)
    log.restart()
    assert log.write(0, (0, 0, 2, 1), epochs=(1, 3)).error_code is ErrorCode.FENCED_LEADER_EPOCH
    assert log.read(leader_epoch=3).error_code is ErrorCode.FENCED_LEADER_EPOCH
    assert log.write(0, (0, 0, 2, 1), epochs=(1, 4)).error_code is ErrorCode.NONE


def test_who_has_not_seen_that_offsets_were_altered_is_fenced() -> None:
    log = Log()
    log.initialize(state_epoch=1)
    log.read()
    log.write(4, (4, 9, 0, 2))
    log.initialize(state_epoch=2, start=100)
    assert log.write(5, epochs=(1, 1)).error_code is ErrorCode.FENCED_STATE_EPOCH
    reply = log.read()
    assert (reply.start_offset, reply.state_epoch, reply.batches) == (100, 2, ())
    assert log.initialize(state_epoch=1).error_code is ErrorCode.FENCED_STATE_EPOCH
    log.restart()
    assert log.read().start_offset == 100


def test_a_write_that_rests_on_an_earlier_version_changes_nothing_also_after_a_restart() -> None:
    log = Log()
    log.initialize()
    read = log.read().version
    assert log.write(0, (0, 4, 0, 1), version=read).error_code is ErrorCode.NONE
    again = log.read()  # the same leader, which has not heard of it
    log.restart()
    assert again.version == read + 1
    assert log.write(0, (0, 4, 2, 1), version=again.version).version == read + 2
    late = log.write(0, (0, 4, 0, 1), version=again.version)
    assert late.error_code is ErrorCode.FENCED_STATE_EPOCH
    assert _plain(log.read()) == [(0, 4, 2, 1)]


@pytest.mark.parametrize("updates_per_snapshot", [1, 2, 500])
def test_every_change_raises_the_version_and_no_snapshot_lowers_it(updates_per_snapshot: int) -> None:
    log = Log(updates_per_snapshot)
    log.initialize()
    versions = [log.version()]
    for number in range(1, 6):
        versions += [log.write(number, (number, number, 0, 1)).version, log.read(leader_epoch=1).version]
        log.restart()
        log.prune()
        assert log.version() == versions[-1]
    versions.append(log.read(leader_epoch=2).version)
    log.initialize(state_epoch=2)
    assert sorted({*versions, log.version()}) == [*dict.fromkeys(versions), log.version()]


def test_a_state_that_begins_anew_has_no_version_that_one_had_before() -> None:
    log = Log()
    log.initialize()
    log.write(3)
    before = log.version()
    log.ask("delete", DeleteState(ORDERS, before))
    log.initialize(wall_ms=1_001)
    assert log.version() > before
    assert log.write(5, version=before).error_code is ErrorCode.FENCED_STATE_EPOCH
    late = log.ask("delete", DeleteState(ORDERS, before))
    assert late.error_code is ErrorCode.FENCED_STATE_EPOCH
    assert log.read().start_offset == 0


def test_what_is_asked_to_begin_twice_has_begun_once() -> None:
    log = Log()
    assert log.initialize(start=-1).error_code is ErrorCode.NONE
    log.write(7, (7, 8, 2, 1))
    assert log.initialize(start=-1).error_code is ErrorCode.NONE
    assert (log.read().start_offset, len(log.read().batches)) == (7, 1)
    assert log.initialize(state_epoch=2, start=3).error_code is ErrorCode.NONE
    assert log.initialize(state_epoch=2, start=3).error_code is ErrorCode.NONE
    log.write(4, epochs=(2, 1))
    assert log.initialize(state_epoch=2, start=3).error_code is ErrorCode.FENCED_STATE_EPOCH
    assert log.read().start_offset == 4


@pytest.mark.parametrize("state_epoch", [0, 2])
def test_who_wants_a_state_to_begin_that_others_have_begun_meanwhile_leaves_it_as_it_is(state_epoch: int) -> None:
    """A consumer over HTTP and the first member of the group, at two brokers: each has seen that there was none."""
    log = Log()
    log.initialize(start=-1)
    log.read()
    log.write(7, (7, 8, 2, 1))
    assert log.initialize(state_epoch=state_epoch, start=-1).error_code is ErrorCode.NONE
    log.restart()
    known = log.read()
    assert (known.start_offset, known.state_epoch, len(known.batches)) == (7, 1, 1)


def test_a_deleted_state_is_gone_and_can_begin_anew() -> None:
    log = Log()
    log.initialize()
    log.write(3)
    assert log.ask("delete", DeleteState(ORDERS)).error_code is ErrorCode.NONE
    assert log.ask("delete", DeleteState(ORDERS)).error_code is ErrorCode.NONE
    log.restart()
    assert log.read().error_code is ErrorCode.INVALID_REQUEST
    log.initialize(start=7)
    assert log.read().start_offset == 7


def test_after_so_many_updates_a_snapshot_takes_their_place_and_the_log_before_it_can_go() -> None:
    log = Log(updates_per_snapshot=10)
    log.initialize()
    for start in range(1, 101):
        log.write(start, (start, start + 5, 0, 1))
        log.prune()
        assert len(log.records) <= 11
    kinds = [r.decode_key(key) for _, key, _ in log.records]
    assert kinds[0] == (r.SNAPSHOT_TYPE, ORDERS)
    log.restart()
    reply = log.read()
    assert (reply.start_offset, _plain(reply)) == (100, [(100, 105, 0, 1)])


def test_a_share_partition_that_is_seldom_written_does_not_hold_the_log_of_the_others() -> None:
    log = Log(updates_per_snapshot=50)
    log.initialize(OTHER, start=42)
    log.initialize()
    for start in range(1, 25_000):
        log.write(start)
        if start % 1_000 == 0:
            log.prune()
    assert len(log.records) <= 12_000
    log.restart()
    assert log.read(OTHER).start_offset == 42
    assert log.read().start_offset == 24_999


@pytest.mark.parametrize("seed", range(5))
def test_a_pruned_log_tells_the_same_as_the_whole(seed: int) -> None:
    random = Random(seed)
    whole, pruned = Log(updates_per_snapshot=7), Log(updates_per_snapshot=7)
    keys = [ShareKey(group, UUID(int=1), number) for group in ("g", "h") for number in range(3)]
    starts = dict.fromkeys(keys, 0)
    for key in keys:
        whole.initialize(key)
        pruned.initialize(key)
    for _ in range(400):
        key = random.choice(keys)
        starts[key] += random.randrange(3)
        first = starts[key] + random.randrange(20)
        batch = (first, first + random.randrange(10), random.choice((0, 2, 4)), random.randrange(1, 4))
        for log in (whole, pruned):
            log.write(starts[key], batch, key=key)
        if random.random() < 0.1:
            pruned.prune()
            pruned.restart()
    for key in keys:
        assert whole.read(key) == pruned.read(key)


def test_summaries_tell_positions_to_those_who_lead_nothing() -> None:
    log = Log()
    log.initialize(start=5)
    log.read(leader_epoch=9)
    summary = log.ask("summary", SummarizeState(ORDERS))
    assert (summary.start_offset, summary.leader_epoch, summary.done_count, summary.batches) == (5, 9, 0, ())


# Bytes

BATCHES = st.lists(
    st.builds(
        StateBatch,
        st.integers(0, 2**62),
        st.integers(0, 2**62),
        st.sampled_from([0, 2, 4]),
        st.integers(0, 2**15 - 1),
        st.integers(0, 2**62),
        st.text(max_size=20),
    ),
    max_size=5,
).map(tuple)
EPOCH = st.integers(0, 2**31 - 1)
OFFSET = st.integers(-1, 2**62)


@given(EPOCH, EPOCH, EPOCH, OFFSET, st.integers(-1, 2**31 - 1), BATCHES)
def test_snapshots_and_updates_are_read_as_they_were_written(
    snapshot_epoch: int, state_epoch: int, leader_epoch: int, start: int, done: int, batches: tuple[StateBatch, ...]
) -> None:
    for version in (-1, 0, 2**62):
        snapshot = r.ShareSnapshot(snapshot_epoch, state_epoch, leader_epoch, start, done, 5, 6, batches, version)
        assert r.decode_snapshot(r.encode_snapshot(snapshot)) == snapshot
        assert r.decode_snapshot(r.encode_snapshot(snapshot._replace(subscription_ms=7))).subscription_ms == 7
    update = r.ShareUpdate(snapshot_epoch, leader_epoch, start, done, batches)
    assert r.decode_update(r.encode_update(update)) == update


def test_a_key_is_written_as_kafka_writes_it() -> None:
    encoded = r.encode_key(r.UPDATE_TYPE, ShareKey("g", UUID(int=1), 2))
    assert encoded == b"\0\1\0\1g" + b"\0" * 15 + b"\1\0\0\0\2"
    assert r.decode_key(encoded) == (r.UPDATE_TYPE, ShareKey("g", UUID(int=1), 2))
    assert r.decode_key(b"\0\7") is None


def test_an_update_is_written_as_kafka_writes_it() -> None:
    encoded = r.encode_update(r.ShareUpdate(1, 2, 3, 4, (StateBatch(5, 6, 2, 7),)))
    head = b"\0\0\0\0\0\1\0\0\0\2\0\0\0\0\0\0\0\3"
    batch = b"\2\0\0\0\0\0\0\0\5\0\0\0\0\0\0\0\6\2\0\7\0"
    assert encoded == head + batch + b"\1\0\4\0\0\0\4"


def test_a_coordinator_is_found_by_the_key_that_kafka_hashes() -> None:
    assert str(ShareKey("g", UUID(int=1), 2)) == "g:AAAAAAAAAAAAAAAAAAAAAQ:2"


@given(st.binary(max_size=40))
def test_bytes_that_are_no_record_are_refused(data: bytes) -> None:
    for decode in (r.decode_snapshot, r.decode_update, r.decode_key):
        try:
            decode(data)
        except MalformedError:
            pass


STATES = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 6), st.sampled_from([0, 2, 4]), st.integers(1, 2)), max_size=8
)


def _apart(batches: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """In order, and none over another, as a leader tells them."""
    told: list[tuple[int, int, int, int]] = []
    for one in sorted(batches):
        if not told or told[-1][0] + told[-1][1] < one[0]:
            told.append(one)
    return told


@given(STATES, STATES | STATES.map(_apart), st.integers(0, 20))
def test_later_batches_are_written_over_earlier_ones(
    before: list[tuple[int, int, int, int]], later: list[tuple[int, int, int, int]], start: int
) -> None:
    expected: dict[int, tuple[int, int]] = {}
    for first, more, state, deliveries in before + later:
        expected.update(dict.fromkeys(range(first, first + more + 1), (state, deliveries)))
    old = combined([], [StateBatch(first, first + more, *rest) for first, more, *rest in before], 0)
    new = combined(old, [StateBatch(first, first + more, *rest) for first, more, *rest in later], start)
    seen = {offset: one[2:4] for one in new for offset in range(one.first, one.last + 1)}
    assert seen == {offset: state for offset, state in expected.items() if offset >= start}
    assert all(one.last < other.first for one, other in itertools.pairwise(new))
    assert not any(one.last + 1 == other.first and one[2:] == other[2:] for one, other in itertools.pairwise(new))


def test_what_is_known_of_records_goes_between_brokers_and_comes_back() -> None:
    batches = (
        StateBatch(5, 9, 0, 3, 1_800_000_000_000),
        StateBatch(10, 10, 3, 5, 0, "poison"),
        StateBatch(11, 12, 2, 1),
    )
    assert from_wire(to_wire(batches)) == batches


@pytest.mark.parametrize("state", [1, 5])
def test_a_state_of_a_later_version_is_told_between_brokers_as_it_is_read_from_the_log(state: int) -> None:
    (told,) = from_wire(to_wire([StateBatch(5, 9, state, 3)]))
    assert told == StateBatch(5, 9, RecordState.ARCHIVED, 3)
    written = r.encode_update(r.ShareUpdate(0, 0, 5, 0, (StateBatch(5, 9, state, 3),)))
    assert r.decode_update(written).batches == (told,)
