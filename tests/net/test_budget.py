"""Whatever a crowd does, somebody can go on, the budget is exceeded by one frame at most, and nobody fast is closed."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clarion.net.budget import SMALL_BYTES, BudgetLimits, ByteBudget

MB = 1024 * 1024
LIMITS = BudgetLimits(bytes_max=8 * MB, bytes_per_second_min=1000, slow_seconds_max=30)
FRAME_MAX = 4 * MB


@dataclass(eq=False)
class Sender:
    """A connection that sends frames of one size; `speed` is what it sends in a second."""

    name: str
    frame_bytes: int
    speed: float
    room: int = SMALL_BYTES
    arrived: int = 0
    finished: int = 0
    is_waiting: bool = False
    is_closed: bool = False
    waits_for: int = 0

    @property
    def is_fast(self) -> bool:
        return self.speed >= LIMITS.bytes_per_second_min * 2


@dataclass
class Crowd:
    """Plays the connections' part: sends, asks for room as buffers fill up, and obeys."""

    senders: list[Sender]
    budget: ByteBudget[Sender] = field(default_factory=lambda: ByteBudget(LIMITS))
    now: float = 0.0
    worst_bytes: int = 0

    def second(self) -> None:
        for sender in self.senders:
            if not sender.is_closed and not sender.is_waiting:
                self.send(sender, int(sender.speed))
        self.now += 1.0
        for sender in self.budget.too_slow(self.now):
            self.close(sender)
        self.grant()

    def send(self, sender: Sender, count: int) -> None:
        while count > 0 and not sender.is_waiting:
            part = min(count, sender.room - sender.arrived, sender.frame_bytes - sender.arrived)
            sender.arrived += part
            count -= part
            self.budget.arrived(sender, part, self.now)
            self.budget.hold(sender, sender.room)
            if sender.arrived == sender.frame_bytes:
                self.finish(sender)
                count = 0  # it waits for its answer
            elif sender.arrived == sender.room:
                self.ask(sender)
            self.worst_bytes = max(self.worst_bytes, self.budget.held_bytes)
        if not sender.speed and not sender.is_waiting:
            self.budget.arrived(sender, 0, self.now)

    def ask(self, sender: Sender) -> None:
        more = min(sender.room, sender.frame_bytes - sender.room)
        sender.waits_for = more
        if self.budget.wants(sender, more, self.now):
            sender.room += more
        else:
            sender.is_waiting = True

    def finish(self, sender: Sender) -> None:
        self.budget.finished(sender, self.now)
        sender.finished += 1
        sender.arrived, sender.room = 0, SMALL_BYTES
        self.budget.hold(sender, 0)
        self.grant()

    def close(self, sender: Sender) -> None:
        sender.is_closed = True
        self.budget.forget(sender)

    def grant(self) -> None:
        for sender in self.budget.grants():
            sender.is_waiting = False
            sender.room += sender.waits_for
            self.budget.arrived(sender, 0, self.now)


SENDERS = st.lists(
    st.tuples(
        st.integers(40_000, FRAME_MAX), st.sampled_from([0, 1, 500, 5_000, 100_000, 3 * MB]), st.integers(0, FRAME_MAX)
    ),
    min_size=6,
    max_size=30,
)


def crowd_of(drawn: list[tuple[int, float, int]]) -> Crowd:
    """Each has sent its first bytes at once, and goes on at its speed."""
    crowd = Crowd([Sender(str(number), size, speed) for number, (size, speed, _) in enumerate(drawn)])
    for sender, (size, _, first) in zip(crowd.senders, drawn, strict=True):
        crowd.send(sender, max(1, min(first, size - 1)))
    return crowd


@settings(max_examples=100, deadline=None)
@given(SENDERS)
def test_somebody_always_goes_on_the_overrun_is_bounded_and_no_fast_one_is_closed(drawn) -> None:
    crowd = crowd_of(drawn)
    small = len(drawn) * SMALL_BYTES
    for _ in range(80):
        crowd.second()
        waiting = [one for one in crowd.senders if one.is_waiting and not one.is_closed]
        going = [one for one in crowd.senders if not one.is_waiting and not one.is_closed]
        assert not waiting or going, "all wait for each other"
    assert crowd.worst_bytes <= LIMITS.bytes_max + FRAME_MAX + small
    for sender in crowd.senders:
        assert not (sender.is_fast and sender.is_closed), f"{sender} was closed"


@settings(max_examples=40, deadline=None)
@given(SENDERS)
def test_every_fast_sender_finishes_in_the_end(drawn) -> None:
    """The slow hold what they hold until they are closed; then the fast share the room among themselves.

    A frame of the largest size takes 839 s at the lowest speed that nobody is closed for, and the lane as long.
    """
    crowd = crowd_of(drawn)
    for _ in range(839 * 2 * len(drawn)):
        crowd.second()
        if all(one.finished for one in crowd.senders if one.speed >= 100_000):
            return
    raise AssertionError([one for one in crowd.senders if one.speed >= 100_000 and not one.finished])


def test_the_proven_go_on_while_strangers_fill_the_rest() -> None:
    budget: ByteBudget[str] = ByteBudget(LIMITS)
    budget.arrived("worker", MB, 0)
    budget.hold("worker", MB)
    budget.finished("worker", 0.01)
    budget.hold("worker", 0)
    strangers = [f"stranger {number}" for number in range(20)]
    for one in strangers:
        budget.hold(one, SMALL_BYTES)
    held_up = [one for one in strangers if not budget.wants(one, MB, 0.1)]
    assert len(held_up) == 20 - 6 - 1, "three quarters of eight, and one in the lane"
    assert budget.wants("worker", MB, 0.2)


def test_of_those_who_wait_the_fastest_goes_first() -> None:
    budget: ByteBudget[str] = ByteBudget(LIMITS)
    budget.hold("others", LIMITS.bytes_max + SMALL_BYTES)
    assert budget.wants("in the lane", MB, 0)
    for name, count in (("slow", 10_000), ("fast", 1_000_000), ("middle", 100_000)):
        budget.arrived(name, 0, 0)
        budget.arrived(name, count, 1)
        assert not budget.wants(name, MB, 1)
    assert budget.grants() == []
    budget.finished("in the lane", 2)
    assert budget.grants() == ["fast"], "into the lane, for nothing fits"
    budget.hold("others", 0)
    assert budget.grants() == ["middle", "slow"]


def test_who_has_waited_longest_has_the_lane_every_other_time() -> None:
    """Else a newcomer with one large frame waits for as long as those who are known want more than there is."""
    budget: ByteBudget[str] = ByteBudget(LIMITS)
    budget.hold("others", LIMITS.bytes_max + SMALL_BYTES)
    assert budget.wants("in the lane", MB, 0)
    budget.arrived("newcomer", 1, 0)
    assert not budget.wants("newcomer", MB, 0)
    served = []
    for turn in (1, 2):
        worker = f"worker {turn}"
        budget.arrived(worker, MB, turn)
        budget.finished(worker, turn)  # it is known
        assert not budget.wants(worker, MB, turn)
        budget.finished(served[-1] if served else "in the lane", turn)
        served += budget.grants()
    assert served[:2] == ["worker 1", "newcomer"]


def test_a_frame_may_take_any_time_at_the_minimum_rate_and_only_so_long_below_it() -> None:
    budget: ByteBudget[str] = ByteBudget(LIMITS)
    for second in range(600):
        budget.arrived("steady", 1100, second)
        if second % 20 == 0:
            budget.arrived("in bursts", 40_000, second)
        assert budget.too_slow(second) == []
    budget.arrived("trickle", 900_000, 600)
    closed = [second for second in range(600, 700) if "trickle" in budget.too_slow(second)]
    assert 630 <= closed[0] <= 640


def test_while_somebody_waits_the_slow_are_given_less_time_but_small_frames_are_not() -> None:
    budget: ByteBudget[str] = ByteBudget(LIMITS)
    budget.arrived("trickle", 900_000, 0)
    budget.hold("trickle", LIMITS.bytes_max)
    budget.arrived("small", 10, 0)
    budget.hold("small", 4096)
    assert budget.wants("in the lane", MB, 0)
    budget.arrived("in the lane", MB, 0)
    assert not budget.wants("waits", MB, 0)
    closed = [name for second in range(1, 10) for name in budget.too_slow(second)]
    assert "trickle" in closed
    assert "small" not in closed
    assert "waits" not in closed, "we do not read from it"


def test_who_does_not_read_is_closed_only_while_somebody_waits_for_the_room() -> None:
    budget: ByteBudget[str] = ByteBudget(LIMITS)
    budget.hold("deaf", LIMITS.bytes_max)
    for second in range(300):
        budget.sent("deaf", 1000, second)
        assert budget.too_slow(second) == []
    assert budget.wants("in the lane", MB, 300)
    assert not budget.wants("waits", MB, 300)
    closed = []
    for second in range(300, 310):
        budget.sent("deaf", 1000, second)
        budget.arrived("in the lane", 100_000, second)
        closed += budget.too_slow(second)
    assert set(closed) == {"deaf"}


@pytest.mark.parametrize("how", ["finished", "forget"])
def test_the_lane_is_free_again_when_its_frame_is_whole_or_its_connection_gone(how: str) -> None:
    budget: ByteBudget[str] = ByteBudget(LIMITS)
    budget.hold("others", LIMITS.bytes_max + SMALL_BYTES)
    assert budget.wants("first", MB, 0)
    assert not budget.wants("second", MB, 0)
    assert budget.grants() == []
    if how == "finished":
        budget.finished("first", 1)
    else:
        budget.forget("first")
    assert budget.grants() == ["second"]
