"""What subscriptions and groups need of a partition, and where its log starts because of that."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from clarion.consumers.retention import (
    UNKNOWN_GROUPS,
    UNKNOWN_SUBSCRIPTIONS,
    Decided,
    Need,
    acknowledged_by_all,
    decide,
)
from clarion.model.topic_settings import TopicSettings, parse
from tests.consumers.one_message import OneMessage

DAY = 86_400_000
BY_SUBSCRIPTIONS = parse({"clarion.retention.by": "subscriptions"}, TopicSettings())


def test_what_holds_too_many_bytes_goes_whoever_has_not_read_it():
    bounded = replace(BY_SUBSCRIPTIONS, retention_hold_max_bytes=99)
    unread = [Need.of_holding_group("slow", None)]
    assert decide(BY_SUBSCRIPTIONS, OneMessage(0, 100), unread).start == 0
    assert decide(bounded, OneMessage(0, 100), unread).start == 1
    assert decide(bounded, OneMessage(0, 100), [Need(holder="bank", keep_ms=14 * DAY)]).start == 1


def test_a_topic_that_promises_more_than_is_held_keeps_its_promise_to_who_asks_for_nothing_else():
    bounded = replace(BY_SUBSCRIPTIONS, retention_hold_max_bytes=99)
    assert decide(bounded, OneMessage(0, 100), [Need(holder="as the topic")]).start == 0


def test_groups_that_nobody_answered_for_hold_as_any_group_that_has_read_nothing():
    unknown = [Need.of_group("fast", 1), Need.of_group(UNKNOWN_GROUPS, None)]
    decided = decide(BY_SUBSCRIPTIONS, OneMessage(7 * DAY), unknown)
    assert decided == Decided(0, "time", (UNKNOWN_GROUPS,))
    assert decide(BY_SUBSCRIPTIONS, OneMessage(7 * DAY + 1), unknown).start == 1


def test_subscriptions_that_may_have_been_made_elsewhere_hold_up_to_the_maximum_and_shorten_nothing():
    unknown = [Need.of_group("fast", 1), Need.of_unknown_subscriptions()]
    assert acknowledged_by_all(unknown) == 0
    assert decide(BY_SUBSCRIPTIONS, OneMessage(30 * DAY), unknown) == Decided(0, "time", (UNKNOWN_SUBSCRIPTIONS,))
    assert decide(BY_SUBSCRIPTIONS, OneMessage(30 * DAY + 1), unknown).start == 1
    patient = replace(BY_SUBSCRIPTIONS, retention_ms=60 * DAY)
    assert decide(patient, OneMessage(31 * DAY), [Need.of_unknown_subscriptions()]).start == 0


def test_who_holds_is_named_and_who_would_let_go_is_not():
    needs = [Need.of_group("fast", 1), Need.of_holding_group("slow", 0), Need(holder="bank", keep_ms=14 * DAY)]
    decided = decide(TopicSettings(), OneMessage(10 * DAY), needs)
    assert decided == Decided(0, "time", ("bank", "slow"))
    assert decide(TopicSettings(), OneMessage(20 * DAY), needs).held_by == ("slow",)
    assert decide(TopicSettings(), OneMessage(5 * DAY), needs).held_by == (), "the topic itself promises it"


def test_only_where_everybody_acknowledges_something_is_read_by_all():
    assert acknowledged_by_all([Need.of_group("a", 5), Need.of_holding_group("b", 3)]) == 3
    assert acknowledged_by_all([Need.of_group("a", 5), Need.of_holding_group("b", None)]) == 0
    assert acknowledged_by_all([Need.of_group("a", 5), Need(holder="bank", keep_ms=1)]) == 0


# ------------------------------------------------------------------------------------------------ against a list


@dataclass
class Subscribed:
    name: str
    retention_ms: int | None
    position: int = 0


class RetentionMachine(RuleBasedStateMachine):
    """A partition that is a list, readers who come, read, go back and go, and a rule that is said in one sentence each.

    The rule under test sees offsets and where age and size alone would start the log; the list sees every message.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 100
        self.times: list[int] = []
        self.start = 0
        self.readers: dict[str, Subscribed] = {}
        self.settings = replace(TopicSettings(), retention_ms=10, retention_max_ms=20)

    # The log, as `Starts`

    @property
    def start_offset(self) -> int:
        return self.start

    def by_time(self, keep_ms: int) -> int:
        offset = self.start
        while keep_ms >= 0 and offset < len(self.times) and self.now - self.times[offset] > keep_ms:
            offset += 1
        return offset

    def by_size(self, keep_bytes: int) -> int:
        return self.start if keep_bytes < 0 else max(self.start, len(self.times) - keep_bytes)

    # What happens

    @rule(age=st.integers(0, 30), count=st.integers(1, 3))
    def write(self, age: int, count: int) -> None:
        self.times += [self.now - age] * count

    @rule(
        by=st.sampled_from(["topic", "subscriptions"]),
        retention=st.sampled_from([-1, 5, 10, 50]),
        maximum=st.sampled_from([-1, 3, 20]),
        size=st.sampled_from([-1, 2, 6]),
        held=st.sampled_from([-1, 4, 8]),
    )
    def configure(self, by: str, retention: int, maximum: int, size: int, held: int) -> None:
        self.settings = replace(
            self.settings, retention_by=by, retention_ms=retention, retention_max_ms=maximum, retention_bytes=size,
            retention_hold_max_bytes=held,
        )  # fmt: skip

    @rule(name=st.sampled_from("ab"), kind=st.sampled_from([None, -1, 5, 40, "group", "hold"]))
    def come(self, name: str, kind: int | str | None) -> None:
        self.readers[f"{name} {kind}"] = Subscribed(name, kind, self.start)  # type: ignore[arg-type]

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def go(self, data: st.DataObject) -> None:
        del self.readers[data.draw(st.sampled_from(sorted(self.readers)))]

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        reader = self.readers[data.draw(st.sampled_from(sorted(self.readers)))]
        end = len(self.times)
        reader.position = data.draw(st.one_of(st.just(end), st.integers(0, end)))  # offsets can be set back, too

    @rule(passed=st.integers(1, 12))
    def wait(self, passed: int) -> None:
        self.now += passed

    @invariant()
    def a_sweep_takes_what_nobody_needs_and_nothing_else(self) -> None:
        needs = [self.need(reader) for reader in self.readers.values()]
        before = self.start
        after = max(before, decide(self.settings, self, needs).start)
        kept = [offset for offset in range(before, len(self.times)) if self.is_kept(offset)]
        assert after == (kept[0] if kept else len(self.times))
        self.start = after

    def need(self, reader: Subscribed) -> Need:
        if reader.retention_ms == "group":
            return Need.of_group(reader.name, reader.position)
        if reader.retention_ms == "hold":
            return Need.of_holding_group(reader.name, reader.position)
        return Need.of_subscription(reader, reader.position)

    # The same in sentences

    def is_kept(self, offset: int) -> bool:
        if self.settings.retention_by == "topic":
            return self.is_promised(offset) or any(self.is_needed(offset, one) for one in self.readers.values())
        if not self.readers:
            return self.is_promised(offset)
        return any(self.is_needed(offset, one) for one in self.readers.values())

    def is_promised(self, offset: int) -> bool:
        return self.is_young(offset, self.settings.retention_ms) and self.fits(offset, self.settings.retention_bytes)

    def may_be_held(self, offset: int) -> bool:
        held = self.settings
        return self.is_young(offset, held.retention_max_ms) and self.fits(offset, held.retention_hold_max_bytes)

    def is_needed(self, offset: int, reader: Subscribed) -> bool:
        is_unread = offset >= reader.position
        match reader.retention_ms:
            case None:
                return self.is_promised(offset)
            case "group":
                return is_unread and self.is_promised(offset) and self.may_be_held(offset)
            case "hold" | -1:
                return is_unread and self.may_be_held(offset)
            case milliseconds:
                return self.is_young(offset, milliseconds) and self.may_be_held(offset)

    def is_young(self, offset: int, keep_ms: int) -> bool:
        """Or lies behind one that is: only a prefix of a log can go."""
        return keep_ms < 0 or any(self.now - at <= keep_ms for at in self.times[self.start : offset + 1])

    def fits(self, offset: int, keep: int) -> bool:
        return keep < 0 or offset >= len(self.times) - keep


TestAgainstAList = RetentionMachine.TestCase
TestAgainstAList.settings = hypothesis_settings(max_examples=60, stateful_step_count=30, deadline=None)
