"""Static members change their protocol, and a group with them."""

from __future__ import annotations

from clarion.model.errors import ErrorCode
from tests.groups.driver import LOST, ConsumerClient
from tests.groups.mixed import (
    EVERYTHING,
    describe,
    describe_classic,
    mixed_pair,
    owned_by,
    shares_of,
    take_turns,
)
from tests.groups.rolling import RollingClassic

TOPICS = {"t": 6}


def test_a_static_classic_member_comes_back_modern_with_its_work(driver):
    pair = [RollingClassic(driver, "t", instance=name) for name in "ab"]
    take_turns(pair)
    had = pair[0].owned
    modern = ConsumerClient(driver, "m", "t", instance="a")
    answer = modern.join()
    assert answer.error_code == ErrorCode.NONE
    assert {("t", number) for number in modern.numbers("t")} == had
    assert pair[0].beat() == ErrorCode.FENCED_INSTANCE_ID
    assert pair[0].commit(1) == ErrorCode.FENCED_INSTANCE_ID
    take_turns([pair[1], modern])
    assert shares_of([pair[1], modern]) == [3, 3]


def test_a_static_modern_member_comes_back_classic_with_its_work(driver):
    stays, leaves = ConsumerClient(driver, "m", "t"), ConsumerClient(driver, "n", "t", instance="a")
    stays.join(), leaves.join()
    take_turns([stays, leaves])
    had = {("t", number) for number in leaves.numbers("t")}
    leaves.leave(-2)
    back = RollingClassic(driver, "t", instance="a")
    back.run(2)
    assert (back.owned, back.generation) == (had, stays.epoch)
    assert leaves.beat().error_code == ErrorCode.FENCED_INSTANCE_ID
    take_turns([stays, back])
    assert shares_of([stays, back]) == [3, 3]


def test_a_static_classic_member_that_restarts_in_a_mixed_group_disturbs_nobody(driver):
    classic, modern = mixed_pair(driver, instance="a")
    had, epoch = classic.owned, describe(driver).group_epoch
    back = RollingClassic(driver, "t", instance="a")
    back.run(2)
    assert (back.owned, describe(driver).group_epoch) == (had, epoch)
    assert classic.beat() == ErrorCode.FENCED_INSTANCE_ID
    assert modern.beat().assignment is None
    assert RollingClassic(driver, "t", instance="b").run(2).beat() == ErrorCode.NONE


def test_the_last_modern_member_comes_back_classic_and_the_group_with_it(driver):
    others = RollingClassic(driver, "t", instance="b")
    modern = ConsumerClient(driver, "m", "t", instance="a")
    modern.join()
    take_turns([modern, others])
    modern.leave(-2)
    back = RollingClassic(driver, "t", instance="a")
    take_turns([others, back])
    assert (owned_by([others, back]), shares_of([others, back])) == (EVERYTHING, [3, 3])
    assert describe_classic(driver).group_state == "Stable"


def test_a_fenced_twin_does_not_take_the_last_modern_members_place(driver):
    modern = ConsumerClient(driver, "m", "t", instance="a")
    modern.join()
    twin = RollingClassic(driver, "t", instance="a")
    twin.member_id = "somebody"
    assert twin.join().joined().error_code == ErrorCode.FENCED_INSTANCE_ID
    assert modern.beat().error_code == ErrorCode.NONE


def test_a_join_that_turns_the_group_classic_is_refused_when_that_gets_lost_again_and_again(driver):
    modern = ConsumerClient(driver, "m", "t", instance="a")
    modern.join()
    driver.loses_appends = True
    back = RollingClassic(driver, "t", instance="a").join()
    assert driver.is_waiting(back.ticket)
    driver.advance(10)
    assert driver.answers[back.ticket] == LOST
    driver.loses_appends = False
    assert modern.beat().error_code == ErrorCode.NONE
    back.phase = "out"
    take_turns([back])
    assert owned_by([back]) == EVERYTHING
