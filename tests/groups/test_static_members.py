"""Static members of classic groups (KIP-345): a restart is no rebalance, and a twin is fenced."""

from __future__ import annotations

from clarion.model.errors import ErrorCode
from clarion.wire.messages.groups import DescribeGroupsRequest, LeaveGroupRequest, MemberIdentity
from tests.groups.driver import ClassicClient, Driver, settle, subscription


def _pair(driver: Driver, **wishes) -> tuple[ClassicClient, ClassicClient]:
    """A stable group: a static leader `a` and a static follower `b`."""
    leader = ClassicClient(driver, instance="a", **wishes).join()
    settle(leader)
    follower = ClassicClient(driver, instance="b", **wishes).join()
    leader.join()
    settle(leader, follower)
    return leader, follower


def _state(driver: Driver) -> tuple[str, set[str | None]]:
    group = driver.tell("describe_groups", DescribeGroupsRequest(groups=("g",)), version=6).groups[0]
    return group.group_state, {member.group_instance_id for member in group.members}


def test_a_static_member_joins_in_one_step(driver):
    client = ClassicClient(driver, instance="a").join()
    assert client.joined().member_id.startswith("a-")
    settle(client)


def test_a_returning_follower_gets_its_old_work_without_a_rebalance(driver):
    leader, follower = _pair(driver)
    old_id = follower.member_id
    returned = ClassicClient(driver, instance="b").join()
    answer = returned.joined()
    assert (answer.error_code, answer.generation_id, answer.leader) == (0, 2, leader.member_id)
    assert returned.member_id != old_id
    assert driver.answers[returned.sync()].assignment == f"work-of-{old_id}".encode()
    assert leader.beat() == ErrorCode.NONE


def test_the_member_that_was_replaced_is_fenced_in_everything(driver):
    _, follower = _pair(driver)
    ClassicClient(driver, instance="b").join().joined()
    assert follower.beat() == ErrorCode.FENCED_INSTANCE_ID
    assert follower.commit(5) == ErrorCode.FENCED_INSTANCE_ID
    assert driver.answers[follower.sync()].error_code == ErrorCode.FENCED_INSTANCE_ID
    assert follower.leave() == ErrorCode.FENCED_INSTANCE_ID
    assert follower.join().joined().error_code == ErrorCode.FENCED_INSTANCE_ID


def test_a_returning_leader_is_told_to_skip_the_assignment(driver):
    _pair(driver)
    answer = ClassicClient(driver, instance="a").join().joined()
    assert (answer.leader, answer.skip_assignment, len(answer.members)) == (answer.member_id, True, 2)


def test_a_returning_leader_that_does_not_know_kip_814_believes_to_be_a_follower(driver):
    leader, _ = _pair(driver)
    old_id = leader.member_id
    answer = ClassicClient(driver, instance="a", version=8).join().joined()
    assert (answer.leader, answer.skip_assignment, answer.members) == (old_id, False, ())


def test_a_member_that_returns_with_other_topics_starts_a_rebalance(driver):
    leader, _ = _pair(driver)
    returned = ClassicClient(driver, instance="b", protocols=(("range", subscription("u")),)).join()
    assert driver.is_waiting(returned.ticket)
    assert leader.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    leader.join()
    settle(leader, returned)


def test_a_member_that_returns_with_the_same_topics_and_other_user_data_does_not(driver):
    leader, _ = _pair(driver, protocols=(("sticky", subscription("t", user_data=b"owned")),))
    returned = ClassicClient(driver, instance="b", protocols=(("sticky", subscription("t")),)).join()
    assert returned.joined().error_code == ErrorCode.NONE
    assert leader.beat() == ErrorCode.NONE


def test_a_member_that_returns_while_the_leader_assigns_starts_anew(driver):
    leader, follower = _pair(driver)
    leader.join()
    follower.join()
    leader.joined(), follower.joined()
    waiting = follower.sync()
    returned = ClassicClient(driver, instance="b").join()
    assert driver.answers[waiting].error_code == ErrorCode.FENCED_INSTANCE_ID
    assert driver.answers[leader.sync({})].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    leader.join()
    settle(leader, returned)


def test_a_join_that_waits_is_fenced_by_its_twin(driver):
    leader, _ = _pair(driver)
    newcomer = ClassicClient(driver, instance="c").join()
    twin = ClassicClient(driver, instance="c").join()
    assert newcomer.joined().error_code == ErrorCode.FENCED_INSTANCE_ID
    assert driver.is_waiting(twin.ticket)
    assert leader.beat() == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_static_member_that_is_away_during_a_rebalance_keeps_its_seat_until_its_session_ends(driver):
    leader, follower = _pair(driver, session=120_000, rebalance=30_000)
    leader.join()
    driver.advance(30_000)
    answer = leader.joined()
    assert len(answer.members) == 2
    leader.sync({follower.member_id: b"kept"})
    returned = ClassicClient(driver, instance="b", session=120_000, rebalance=30_000).join()
    assert driver.answers[returned.ticket].error_code == ErrorCode.NONE
    returned.joined()
    assert driver.answers[returned.sync()].assignment == b"kept"


def test_when_only_absent_static_members_are_left_the_group_waits_for_one(driver):
    leader, follower = _pair(driver, session=300_000, rebalance=20_000)
    dynamic = ClassicClient(driver, session=300_000, rebalance=20_000).join()
    assert dynamic.leave() == ErrorCode.NONE
    assert dynamic.joined().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    driver.advance(100_000)  # five rebalance timeouts, and nobody has rejoined
    assert _state(driver) == ("PreparingRebalance", {"a", "b"})
    assert (leader.beat(), follower.beat()) == (ErrorCode.REBALANCE_IN_PROGRESS,) * 2
    leader.join()
    driver.advance(20_000)
    assert [one.group_instance_id for one in leader.joined().members] == ["a", "b"]
    assert leader.generation == 3


def test_an_administrator_removes_a_static_member_by_its_instance_id(driver):
    leader, follower = _pair(driver)
    gone = (MemberIdentity(group_instance_id="b"), MemberIdentity(group_instance_id="nobody"))
    answer = driver.tell("leave_group", LeaveGroupRequest(group_id="g", members=gone), version=4)
    assert [one.error_code for one in answer.members] == [0, ErrorCode.UNKNOWN_MEMBER_ID]
    assert follower.beat() == ErrorCode.UNKNOWN_MEMBER_ID
    leader.join()
    settle(leader)


def test_the_new_id_survives_a_restart(driver):
    _pair(driver)
    returned = ClassicClient(driver, instance="b").join()
    returned.joined()
    driver.restart()
    assert returned.beat() == ErrorCode.NONE


def test_a_lost_replacement_is_simply_asked_for_again(driver):
    leader, _ = _pair(driver)
    driver.loses_appends = True
    returned = ClassicClient(driver, instance="b").join()
    driver.loses_appends = False
    returned = ClassicClient(driver, instance="b").join()
    assert returned.joined().error_code == ErrorCode.NONE
    assert (returned.beat(), leader.beat()) == (ErrorCode.NONE, ErrorCode.NONE)
