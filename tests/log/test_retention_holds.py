"""Retention held back by groups that have not read yet, and not held up by damage."""

import pytest

from clarion.consumers.retention import Need
from clarion.log.retention import RetentionWalk
from clarion.log.views import view_of
from tests.log.ages import TEN_SECONDS, offsets, one_each
from tests.log.partitions import DEFAULTS, NOW, headers, open_log, plan_of, sweep, topic

# ------------------------------------------------------------------------------------------------ damage


def damaged_in_its_oldest(tmp_path, at=16):
    """Three files of two messages each; in the oldest the second batch has one bad byte in its header."""
    log = open_log(tmp_path / "t-0")
    for age in (40_000, 30_000, 20_000):
        one_each(log, age, age)
        log.roll(NOW)
    path = tmp_path / "t-0" / "00000000000000000000.log"
    content = bytearray(path.read_bytes())
    content[len(content) // 2 + at] ^= 0x55
    path.write_bytes(content)
    return log


@pytest.mark.parametrize("at", [0, 4, 9, 16], ids=["offset", "offset", "length", "magic"])
def test_a_damaged_header_does_not_stop_retention_by_time(tmp_path, at):
    log = damaged_in_its_oldest(tmp_path, at)
    plan = sweep(log, TEN_SECONDS, NOW)
    assert log.start_offset == 1, "what can be read goes; the rest counts from when the file was written"
    assert plan.damage is not None
    sweep(log, TEN_SECONDS, NOW + 10_000)
    assert log.start_offset == 1
    sweep(log, TEN_SECONDS, NOW + 10_001)
    assert (log.start_offset, log.next_offset) == (6, 6)
    log.abandon()


def test_a_damaged_header_does_not_stop_retention_by_size(tmp_path):
    log = damaged_in_its_oldest(tmp_path)
    one = log.size_bytes // 6
    sweep(log, topic(retention_ms=-1, retention_bytes=5 * one), NOW)
    assert log.start_offset == 1
    sweep(log, topic(retention_ms=-1, retention_bytes=3 * one), NOW)
    assert log.start_offset == 3
    log.abandon()


def test_a_log_whose_very_first_header_is_damaged_is_not_stuck(tmp_path):
    log = open_log(tmp_path / "t-0")
    one_each(log, 40_000)
    log.roll(NOW)
    one_each(log, 20_000)
    path = tmp_path / "t-0" / "00000000000000000000.log"
    content = bytearray(path.read_bytes())
    content[16] ^= 0x55
    path.write_bytes(content)
    sweep(log, TEN_SECONDS, NOW)
    assert log.start_offset == 0
    sweep(log, TEN_SECONDS, NOW + 10_001)
    assert log.start_offset == 2
    log.abandon()


# ------------------------------------------------------------------------------------------------ holds


def held(log, policy, now_ms=NOW, **holds):
    needs = [Need.of_holding_group(group, offset) for group, offset in holds.items()]
    return sweep(log, policy, now_ms, needs=needs)


def test_a_group_holds_what_it_has_not_read(log):
    one_each(log, 30_000, 30_000, 30_000, 30_000)
    plan = held(log, TEN_SECONDS, bank=2, audit=4)
    assert offsets(log) == [2, 3]
    assert plan.held_by == ("bank",)
    plan = held(log, TEN_SECONDS, bank=4, audit=4)
    assert offsets(log) == []
    assert plan.held_by == ()


def test_a_group_that_has_never_committed_holds_everything(log):
    one_each(log, 30_000, 30_000)
    plan = held(log, TEN_SECONDS, bank=None)
    assert offsets(log) == [0, 1]
    assert plan.held_by == ("bank",)


def test_a_hold_ends_when_a_message_is_older_than_the_longest_hold(log):
    one_each(log, 30_000, 19_000, 5_000)
    policy = topic(retention_ms=10_000, clarion_retention_max_ms=20_000)
    plan = held(log, policy, bank=0)
    assert offsets(log) == [1, 2]
    assert plan.held_by == ("bank",)


def test_a_hold_ends_when_the_log_is_larger_than_the_largest_hold(log):
    one_each(log, *[30_000] * 6)
    size = headers(log)[0].size_bytes
    policy = topic(retention_ms=10_000, clarion_retention_hold_max_bytes=size * 4, clarion_retention_max_ms=-1)
    held(log, policy, bank=0)
    assert offsets(log) == [2, 3, 4, 5]


def test_a_hold_never_shortens_what_retention_keeps(log):
    one_each(log, 5_000, 5_000)
    policy = topic(retention_ms=10_000, clarion_retention_max_ms=1, clarion_retention_hold_max_bytes=0)
    assert held(log, policy, bank=0).reason == ""
    assert offsets(log) == [0, 1]


def test_groups_hold_back_deletion_by_size_as_well(log):
    one_each(log, 0, 0, 0)
    plan = held(log, topic(retention_bytes=1), bank=1)
    assert offsets(log) == [1, 2]
    assert (plan.reason, plan.held_by) == ("size", ("bank",))


def test_planning_changes_nothing(log):
    one_each(log, 30_000)
    plan_of(log, TEN_SECONDS, NOW)
    assert (log.start_offset, log.segment_count) == (0, 1)
    assert DEFAULTS.retention_ms == 604_800_000


# ------------------------------------------------------------------------------------------------ by subscriptions

BY_SUBSCRIPTIONS = topic(retention_ms=10_000, clarion_retention_by="subscriptions", clarion_retention_grace_ms=60_000)


def test_what_all_have_acknowledged_goes_whatever_its_age_and_without_the_grace_period(log):
    one_each(log, 0, 0, 0, 0)
    needs = [Need.of_group("a", 3), Need.of_group("b", 2)]
    plan = sweep(log, BY_SUBSCRIPTIONS, NOW, needs=needs)
    assert offsets(log) == [2, 3]
    assert (plan.reason, plan.held_by) == ("acknowledged", ("b",))


def test_what_all_have_acknowledged_goes_also_while_the_clock_is_not_trusted(log):
    one_each(log, 0, 0)
    sweep(log, BY_SUBSCRIPTIONS, NOW, needs=[Need.of_group("a", 1)], by_time=False)
    assert offsets(log) == [1]


def test_what_is_not_committed_yet_stays_although_somebody_claims_to_have_read_it(log):
    one_each(log, 0, 0, 0)
    sweep(log, BY_SUBSCRIPTIONS, NOW, needs=[Need.of_group("a", 3)], limit_offset=1)
    assert offsets(log) == [1, 2]


def test_how_much_a_log_holds_from_an_offset_on_is_about_its_share_of_the_file(log):
    one_each(log, *[0] * 10)
    log.roll(NOW)
    one_each(log, *[0] * 10)
    walk = RetentionWalk(view_of(log), BY_SUBSCRIPTIONS, NOW)
    whole = log.size_bytes
    assert [walk.bytes_from(offset) for offset in (0, 5, 10, 15, 20)] == [
        whole,
        whole * 3 // 4,
        whole // 2,
        whole // 4,
        0,
    ]
