"""The share-partition under random members, against one that keeps an entry for each record."""

from __future__ import annotations

import itertools
from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from clarion.model.errors import ErrorCode, KafkaError
from clarion.queues.acknowledgements import Acknowledgement, AcknowledgeType
from clarion.queues.acquisition import AcquireMode, Fate, Readable
from clarion.queues.persisted_runs import NEVER
from clarion.queues.rules import ShareLimits
from clarion.queues.share_partition import SharePartition
from clarion.queues.state_batches import StateBatch, combined
from clarion.queues.state_records import ShareUpdate, decode_update, encode_update
from tests.queues.naive import NaiveSharePartition, key_of, offsets_of

KAFKA = ShareLimits(lock_duration_ms=30, deliveries_max=3, in_flight_max=12)
OURS = KAFKA._replace(backoff_min_ms=7, backoff_max_ms=10, has_dead_letters=True)
IN_ORDER = OURS._replace(keeps_key_order=True)
FATES = [
    Fate(),
    Fate(is_unwanted=True),
    Fate(given_up="expired"),
    Fate(given_up="expired", has_dead_letter=True),
    Fate(due_ms=20),
    Fate(due_ms=60),
]
MEMBERS = st.sampled_from(["a", "b", "c"])
START = 5


class SharePartitionModel(RuleBasedStateMachine):
    held = Bundle("held")

    @initialize(
        pieces=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), min_size=5, max_size=20),
        limits=st.sampled_from([KAFKA, OURS, IN_ORDER]),
        fates=st.lists(st.sampled_from(FATES), min_size=12, max_size=12),
    )
    def start(self, pieces: list[tuple[int, int]], limits: ShareLimits, fates: list[Fate]) -> None:
        """The log: batches of one to six records, with gaps of up to three offsets between them."""
        self.batches: list[tuple[int, int]] = []
        at = 0
        for gap, size in pieces:
            self.batches.append((at + gap, at + gap + size - 1))
            at += gap + size
        self.end = at
        self.log_start = 0
        self.now_ms = 10_000
        self.limits = limits
        self.fates = fates if limits is not KAFKA else []
        self.wall_ahead_ms = 1_000_000
        self.real = SharePartition(limits, START, wall_ahead_ms=self.wall_ahead_ms)
        if limits.keeps_key_order:
            self.real.learn([])
        self.naive = NaiveSharePartition(limits, START)
        self.persisted: list[StateBatch] = []
        self.persisted_start = START
        self.deliveries: Counter[int] = Counter()  # as each consumer was told
        self.given_back: Counter[int] = Counter()

    @rule(
        target=held, member=MEMBERS, count=st.integers(1, 8), mode=st.sampled_from(AcquireMode), size=st.integers(1, 4)
    )
    def acquire(self, member: str, count: int, mode: AcquireMode, size: int) -> tuple[str, list[int]]:
        offset = self.real.fetch_offset(self.now_ms)
        assert offset == self.naive.fetch_offset(self.now_ms)
        if offset is None:
            return member, []
        read = self._read(max(offset, self.log_start), size)
        acquired = self.real.acquire(member, read, count, mode, self.now_ms)
        got = offsets_of(acquired)
        assert got == self.naive.acquire(member, read, count, mode, self.now_ms)
        assert mode is AcquireMode.BATCH_OPTIMIZED or len(got) <= count
        for one in acquired:
            for offset in range(one.first, one.last + 1):
                self.deliveries[offset] += 1
                assert one.deliveries == self.deliveries[offset] - self.given_back[offset] <= self.limits.deliveries_max
                assert any(first <= offset <= last for first, last in self.batches), "delivered what is not there"
        return member, got

    def _read(self, offset: int, size: int) -> Readable:
        found = [batch for batch in self.batches if batch[1] >= offset][:size]
        until = found[-1][1] + 1 if found else self.end
        if not self.fates:
            return Readable(offset, until, found)
        records = [at for first, last in found for at in range(first, last + 1)]
        return Readable(offset, until, [(at, at) for at in records], [self._fate(at) for at in records])

    def _fate(self, offset: int) -> Fate:
        """Times are those of the wall clock: the leader's own is another."""
        fate = self.fates[offset % len(self.fates)]
        due_ms = max(fate.due_ms + 1_010_000 - self.wall_ahead_ms, 0) if fate.due_ms else 0
        return fate._replace(due_ms=due_ms, key=key_of(offset) if self.limits.keeps_key_order else None)

    @rule(
        who=held,
        kinds=st.lists(st.sampled_from(AcknowledgeType), min_size=1, max_size=8),
        delay=st.integers(-1, 40),
        reason=st.sampled_from(["", "broken", "not mine"]),
        extend=st.sampled_from([0, 10, 100]),
    )
    def acknowledge_one_by_one(
        self, who: tuple[str, list[int]], kinds: list[AcknowledgeType], delay: int, reason: str, extend: int
    ) -> None:
        member, offsets = who
        some = offsets[:: 1 + len(kinds) % 3]
        both = [
            Acknowledgement(offset, offset, (kind,), delay, reason, extend)
            for offset, kind in zip(some, kinds * len(some), strict=False)
        ]
        self._acknowledge(member, both)

    @rule(who=held, step=st.integers(1, 2), more=st.integers(0, 2))
    def accept_each(self, who: tuple[str, list[int]], step: int, more: int) -> None:
        """Many at once, of which each may also reach into what is not this member's."""
        member, offsets = who
        some = offsets[::step] if more == 0 else offsets[:: step + more + 1]
        self._acknowledge(member, [Acknowledgement(offset, offset + more, (1,)) for offset in some])

    @rule(who=held, kind=st.sampled_from(AcknowledgeType), skip=st.integers(0, 3))
    def acknowledge_a_range(self, who: tuple[str, list[int]], kind: AcknowledgeType, skip: int) -> None:
        member, offsets = who
        if len(offsets) > skip:
            self._acknowledge(member, [Acknowledgement(offsets[skip], offsets[-1], (kind,))])

    @rule(who=held, kinds=st.lists(st.sampled_from(AcknowledgeType), min_size=6, max_size=6))
    def acknowledge_with_a_type_for_each(self, who: tuple[str, list[int]], kinds: list[AcknowledgeType]) -> None:
        member, offsets = who
        if offsets and len(offsets) <= len(kinds):
            last = offsets[0] + len(offsets) - 1
            self._acknowledge(member, [Acknowledgement(offsets[0], last, kinds[: len(offsets)])])

    def _acknowledge(self, member: str, acknowledgements: list[Acknowledgement]) -> None:
        codes = [self._refusal(one, member, acknowledgements) for one in (self.real, self.naive)]
        assert codes[0] == codes[1]

    def _refusal(
        self, one: SharePartition | NaiveSharePartition, member: str, acknowledgements: list[Acknowledgement]
    ) -> ErrorCode:
        try:
            one.acknowledge(member, acknowledgements, self.now_ms)
        except KafkaError as refusal:
            return refusal.code
        return ErrorCode.NONE

    @rule(member=MEMBERS)
    def leave(self, member: str) -> None:
        for offset, entry in self.naive.entries.items():
            self.given_back[offset] += entry.state == "acquired" and entry.member == member
        self.real.give_back(member)
        self.naive.give_back(member)

    @rule(member=MEMBERS)
    def die(self, member: str) -> None:
        self.real.release(member, self.now_ms)
        self.naive.release(member, self.now_ms)

    @rule(count=st.integers(1, 8))
    def dead_letters_are_written(self, count: int) -> None:
        runs = self.real.given_up(count)
        found = [(at, run.deliveries, run.reason) for run in runs for at in range(run.first, run.last + 1)]
        assert found == self.naive.given_up()[:count]
        for run in runs:
            self.real.archived(run.first, run.last)
        for offset, _, _ in found:
            self.naive.archived(offset)

    @rule(ms=st.integers(1, 35))
    def wait(self, ms: int) -> None:
        self.now_ms += ms
        deadline_ms = self.real.next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= self.now_ms:
            self.real.expire(self.now_ms)
        self.naive.expire(self.now_ms)

    @rule(more=st.integers(1, 6))
    def the_log_drops_its_oldest_records(self, more: int) -> None:
        self.log_start = min(self.log_start + more, self.end)
        self.real.delete_before(self.log_start)
        self.naive.delete_before(self.log_start)

    @rule()
    def persist(self) -> None:
        delta = self.real.take_delta()
        if delta is not None:
            self.persisted_start = delta.start_offset
            self.persisted = combined(self.persisted, delta.batches, delta.start_offset)
            assert delta.done_count == self.real.done_count
        assert not self.real.has_changed

    @rule(later_ms=st.integers(-1_000, 1_000))
    def another_leader_takes_over(self, later_ms: int) -> None:
        """Its clock shows another time, and the wall clock the same."""
        self.persist()
        self.naive = self.naive.crash(self.now_ms, later_ms)
        self.now_ms += later_ms
        self.wall_ahead_ms -= later_ms
        self.real = SharePartition(
            self.limits,
            self.persisted_start,
            [decoded(one) for one in self.persisted],
            now_ms=self.now_ms,
            wall_ahead_ms=self.wall_ahead_ms,
        )
        self.naive.forget_unseen(self.real.next_offset)
        if self.limits.keeps_key_order:
            delivered = [at for first, last in self.real.without_keys() for at in range(first, last + 1)]
            self.real.learn([(at, key_of(at)) for at in delivered])

    @rule(by_ms=st.sampled_from([-5_000, -1, 1, 5_000]))
    def the_wall_clock_is_set(self, by_ms: int) -> None:
        """Who waits after a delivery goes on waiting as long as before; who waits for its time is looked at again."""
        self.wall_ahead_ms += by_ms if abs(by_ms) > 1 else 0
        self.real.follow_wall(self.wall_ahead_ms + (by_ms if abs(by_ms) == 1 else 0))
        for one in self.naive.entries.values() if abs(by_ms) > 1 else ():
            if one.state == "available" and not one.deliveries and one.until_ms < NEVER:
                one.until_ms = 0

    @invariant()
    def both_are_in_the_same_state(self) -> None:
        if not hasattr(self, "real"):
            return
        assert self.real.start_offset == self.naive.start
        assert self.real.next_offset == self.naive.next
        assert self.real.open_count == self.naive.open_count
        seen = {
            offset: (run.state.name.lower(), run.deliveries, run.member, run.until_ms, run.reason)
            for run in self.real.runs()
            for offset in range(run.first, run.last + 1)
        }
        known = {
            at: (one.state, one.deliveries, one.member, one.until_ms, one.reason)
            for at, one in self.naive.entries.items()
        }
        assert seen == known

    @invariant()
    def runs_are_as_few_as_can_be(self) -> None:
        runs = self.real.runs() if hasattr(self, "real") else []
        for one, other in itertools.pairwise(runs):
            assert one.last + 1 == other.first
            assert not one.is_like(other)

    @invariant()
    def keys_are_in_order(self) -> None:
        if hasattr(self, "real") and self.limits.keeps_key_order:
            delivered = [at for first, last in self.real.without_keys() for at in range(first, last + 1)]
            keys = [key_of(at) for at in delivered]
            assert len(keys) == len(set(keys)), "two records of one key are under way"

    @invariant()
    def nothing_is_accepted_twice(self) -> None:
        if hasattr(self, "naive"):
            assert len(self.naive.accepted) == len(set(self.naive.accepted))

    def teardown(self) -> None:
        """In the end a patient consumer gets all that is left, and then the whole log is done."""
        if not hasattr(self, "real"):
            return
        for _ in range(200):
            self.now_ms += 1_000
            for run in self.real.given_up(1_000):
                self.real.archived(run.first, run.last)
            offset = self.real.fetch_offset(self.now_ms)
            if offset is None:
                assert self.real.next_deadline_ms() is not None or self.real.given_up(1), "nothing moves any more"
                continue
            if offset >= self.end:
                if not self.real.run_count:
                    break
                continue
            read = self._read(max(offset, self.log_start), 3)
            for one in self.real.acquire("z", read, 10, AcquireMode.BATCH_OPTIMIZED, self.now_ms):
                self.real.acknowledge("z", [Acknowledgement(one.first, one.last, (1,))], self.now_ms)
        assert self.real.start_offset == self.real.next_offset >= self.end
        assert self.real.run_count == self.real.open_count == 0


def decoded(batch: StateBatch) -> StateBatch:
    """As it comes back from the log."""
    (found,) = decode_update(encode_update(ShareUpdate(0, 0, 0, 0, (batch,)))).batches
    return found


TestSharePartitionModel = SharePartitionModel.TestCase
TestSharePartitionModel.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
