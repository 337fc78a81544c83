"""Classic groups: joining, dividing the work, beating, leaving."""

from __future__ import annotations

import pytest

from clarion.groups.config import GroupConfig
from clarion.model.errors import ErrorCode
from clarion.wire.messages.groups import DescribeGroupsRequest, HeartbeatRequest, LeaveGroupRequest, MemberIdentity
from tests.groups.driver import LOST, ClassicClient, Driver, settle, subscription


def test_a_lone_member_joins_in_two_steps_leads_and_gets_its_work(driver):
    client = ClassicClient(driver).join()
    answer = client.joined()
    assert (answer.error_code, answer.generation_id, answer.leader) == (ErrorCode.NONE, 1, client.member_id)
    assert [member.metadata for member in answer.members] == [subscription("t")]
    settle(client)
    assert client.beat() == ErrorCode.NONE


def test_the_first_step_gives_an_id_and_keeps_no_ghost(driver):
    client = ClassicClient(driver)
    ticket = client._join()
    answer = driver.answers[ticket]
    assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert answer.member_id.startswith("app-")
    driver.advance(10_000)
    assert list(driver.coordinator.summaries()) == []


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_old_versions_join_in_one_step(driver, version):
    client = ClassicClient(driver, version=version).join()
    assert client.joined().error_code == ErrorCode.NONE
    settle(client)


def test_version_zero_has_the_session_timeout_for_a_rebalance_timeout(driver):
    old = ClassicClient(driver, version=0, session=10_000).join()
    settle(old)
    newcomer = ClassicClient(driver, version=0, session=10_000).join()
    assert driver.is_waiting(newcomer.ticket)
    for _ in range(3):
        driver.advance(3_000)
        assert old.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    driver.advance(1_000)
    assert newcomer.joined().error_code == ErrorCode.NONE
    assert old.beat() == ErrorCode.UNKNOWN_MEMBER_ID
    settle(newcomer)


def test_a_second_member_calls_the_first_back_and_they_share_the_work(driver):
    first = ClassicClient(driver).join()
    settle(first)
    second = ClassicClient(driver).join()
    assert driver.is_waiting(second.ticket)
    assert first.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    first.join()
    settle(first, second)
    assert (first.generation, second.generation) == (2, 2)
    assert first.is_leader
    assert not second.joined().members


def test_the_initial_delay_gathers_members_and_grows_with_each_newcomer():
    driver = Driver(GroupConfig(initial_rebalance_delay_ms=3_000))
    first = ClassicClient(driver).join()
    driver.advance(2_000)
    second = ClassicClient(driver).join()
    driver.advance(2_999)
    assert driver.is_waiting(first.ticket)
    third = ClassicClient(driver).join()
    driver.advance(6_000)
    settle(first, second, third)
    assert first.generation == 1
    driver.close()


def test_the_initial_delay_ends_with_the_rebalance_timeout_however_many_come():
    driver = Driver(GroupConfig(initial_rebalance_delay_ms=3_000))
    clients = [ClassicClient(driver, rebalance=10_000).join()]
    for _ in range(9):
        driver.advance(1_000)
        clients.append(ClassicClient(driver, rebalance=10_000).join())
    driver.advance(1_000)
    settle(*clients)
    driver.close()


def test_members_vote_for_a_protocol_that_all_know(driver):
    one, two, both = b"1", b"2", b"b"
    first = ClassicClient(driver, protocols=(("range", one), ("sticky", both))).join()
    settle(first)
    second = ClassicClient(driver, protocols=(("sticky", two), ("roundrobin", two))).join()
    first.join()
    settle(first, second)
    described = driver.tell("describe_groups", DescribeGroupsRequest(groups=("g",)), version=5).groups[0]
    assert described.protocol_data == "sticky"
    assert sorted(member.member_metadata for member in described.members) == [two, both]


def test_a_member_without_a_common_protocol_is_refused(driver):
    settle(ClassicClient(driver, protocols=(("range", b""),)).join())
    stranger = ClassicClient(driver, protocols=(("other", b""),)).join()
    assert stranger.joined().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    other_type = ClassicClient(driver, protocol_type="connect", protocols=(("range", b""),)).join()
    assert other_type.joined().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_member_without_any_protocol_is_refused_and_leaves_no_group_behind(driver):
    assert ClassicClient(driver, protocols=()).join().joined().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert list(driver.coordinator.summaries()) == []


@pytest.mark.parametrize("session", [5_999, 1_800_001])
def test_a_session_timeout_out_of_bounds_is_refused(driver, session):
    assert ClassicClient(driver, session=session).join().joined().error_code == ErrorCode.INVALID_SESSION_TIMEOUT


def test_nobody_joins_a_group_without_a_name(driver):
    client = ClassicClient(driver, group="")
    assert client.join().joined().error_code == ErrorCode.INVALID_GROUP_ID
    assert client.beat() == ErrorCode.INVALID_GROUP_ID
    assert driver.answers[client.sync()].error_code == ErrorCode.INVALID_GROUP_ID


def test_a_full_group_takes_nobody_else():
    driver = Driver(GroupConfig(initial_rebalance_delay_ms=0, members_max=1))
    first = ClassicClient(driver).join()
    settle(first)
    assert ClassicClient(driver).join().joined().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert first.beat() == ErrorCode.NONE
    driver.close()


def test_an_unknown_member_id_is_refused(driver):
    client = ClassicClient(driver)
    client.member_id = "ghost"
    assert client.join().joined().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    settle(ClassicClient(driver).join())
    assert client.join().joined().error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_followers_wait_for_the_leaders_assignment(driver):
    first = ClassicClient(driver).join()
    settle(first)
    second = ClassicClient(driver).join()
    first.join()
    first.joined(), second.joined()
    follower = second if first.is_leader else first
    leader = first if first.is_leader else second
    ticket = follower.sync()
    assert driver.is_waiting(ticket)
    leaders_own = leader.sync({follower.member_id: b"f", leader.member_id: b"l"})
    assert driver.answers[ticket].assignment == b"f"
    assert driver.answers[leaders_own].assignment == b"l"


def test_a_follower_without_an_assignment_gets_an_empty_one(driver):
    client = ClassicClient(driver).join()
    client.joined()
    assert driver.answers[client.sync({})].assignment == b""


def test_a_sync_while_others_still_join_is_told_to_rejoin(driver):
    first = ClassicClient(driver).join()
    settle(first)
    second = ClassicClient(driver).join()
    assert driver.answers[first.sync()].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    first.join()
    settle(first, second)


def test_a_waiting_sync_is_told_to_rejoin_when_a_newcomer_breaks_in(driver):
    first = ClassicClient(driver).join()
    settle(first)
    second = ClassicClient(driver).join()
    first.join()
    first.joined(), second.joined()
    follower = second if first.is_leader else first
    waiting = follower.sync()
    third = ClassicClient(driver).join()
    assert driver.answers[waiting].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    first.join(), second.join()
    settle(first, second, third)
    assert third.generation == 3


def test_a_sync_with_another_protocol_or_none_is_refused(driver):
    client = ClassicClient(driver).join()
    client.joined()
    for wrong in (
        {"protocol_name": "sticky"},
        {"protocol_type": "connect"},
        {"protocol_name": None},
        {"protocol_type": None},
    ):
        assert driver.answers[client.sync({}, **wrong)].error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL, wrong
    answer = driver.answers[client.sync({}, protocol_name="range", protocol_type="consumer")]
    assert (answer.protocol_name, answer.protocol_type) == ("range", "consumer")


def test_a_repeated_sync_takes_the_place_of_the_one_that_waits(driver):
    first = ClassicClient(driver).join()
    settle(first)
    second = ClassicClient(driver).join()
    first.join()
    first.joined(), second.joined()
    follower, leader = (second, first) if first.is_leader else (first, second)
    lost, kept = follower.sync(), follower.sync()
    assert driver.answers[lost].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    leader.sync({follower.member_id: b"f"})
    assert driver.answers[kept].assignment == b"f"


def test_a_join_that_is_repeated_because_its_answer_was_lost_gets_the_same_generation(driver):
    client = ClassicClient(driver).join()
    again = ClassicClient(driver)
    again.member_id = client.joined().member_id
    answer = again.join().joined()
    assert (answer.generation_id, answer.leader) == (1, client.member_id)
    assert len(answer.members) == 1


def test_a_repeated_join_takes_the_place_of_the_one_that_waits(driver):
    first = ClassicClient(driver).join()
    settle(first)
    second = ClassicClient(driver).join()
    earlier = second.ticket
    second.join()
    assert driver.answers[earlier].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    first.join()
    settle(first, second)


def test_a_follower_that_rejoins_a_stable_group_unchanged_disturbs_nobody(driver):
    first = ClassicClient(driver).join()
    settle(first)
    second = ClassicClient(driver).join()
    first.join()
    settle(first, second)
    follower, leader = (first, second) if second.is_leader else (second, first)
    answer = follower.join().joined()
    assert (answer.error_code, answer.generation_id) == (ErrorCode.NONE, 2)
    assert leader.beat() == ErrorCode.NONE


def test_a_leader_that_rejoins_a_stable_group_starts_a_rebalance(driver):
    client = ClassicClient(driver).join()
    settle(client)
    client.join()
    settle(client)
    assert client.generation == 2


def test_a_member_with_new_wishes_starts_a_rebalance(driver):
    first = ClassicClient(driver).join()
    settle(first)
    second = ClassicClient(driver).join()
    first.join()
    settle(first, second)
    follower, leader = (first, second) if second.is_leader else (second, first)
    follower.protocols = (("range", subscription("t", "u")),)
    follower.join()
    assert driver.is_waiting(follower.ticket)
    assert leader.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    leader.join()
    settle(first, second)


def test_a_silent_member_is_forgotten_and_the_others_are_called_back(driver):
    first = ClassicClient(driver).join()
    settle(first)
    second = ClassicClient(driver).join()
    first.join()
    settle(first, second)
    driver.advance(9_000)
    assert first.beat() == ErrorCode.NONE
    driver.advance(2_000)
    assert first.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert second.beat() == ErrorCode.UNKNOWN_MEMBER_ID
    first.join()
    settle(first)


def test_members_that_wait_for_us_are_never_too_silent(driver):
    first = ClassicClient(driver, rebalance=300_000).join()
    settle(first)
    second = ClassicClient(driver, rebalance=300_000, session=10_000).join()
    for _ in range(20):
        driver.advance(9_000)
        assert first.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    first.join()
    first.joined(), second.joined()
    follower, leader = (second, first) if first.is_leader else (first, second)
    ticket = follower.sync()
    for _ in range(6):
        driver.advance(9_000)
        assert leader.beat() == ErrorCode.NONE
    assert driver.is_waiting(ticket)
    leader.sync({})
    assert follower.beat() == ErrorCode.NONE


def test_a_newcomer_that_waits_too_long_for_its_first_answer_is_let_go():
    driver = Driver(GroupConfig(initial_rebalance_delay_ms=0, new_member_join_timeout_ms=20_000))
    first = ClassicClient(driver, rebalance=300_000).join()
    settle(first)
    second = ClassicClient(driver).join()
    for _ in range(3):
        driver.advance(8_000)
        first.beat()
    assert second.joined().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    first.join()
    settle(first)
    driver.close()


def test_who_does_not_rejoin_in_time_is_out_and_another_leads(driver):
    first = ClassicClient(driver, rebalance=20_000).join()
    settle(first)
    second = ClassicClient(driver, rebalance=20_000).join()
    for _ in range(4):
        driver.advance(5_000)
        first.beat()
    answer = second.joined()
    assert (answer.leader, len(answer.members)) == (second.member_id, 1)
    assert first.beat() == ErrorCode.UNKNOWN_MEMBER_ID
    settle(second)


def test_a_member_that_joins_and_never_asks_for_its_work_is_taken_out(driver):
    first = ClassicClient(driver, rebalance=20_000).join()
    settle(first)
    second = ClassicClient(driver, rebalance=20_000).join()
    first.join()
    first.joined(), second.joined()
    follower, leader = (second, first) if first.is_leader else (first, second)
    leader.sync({})
    for _ in range(5):
        driver.advance(4_000)
        leader.beat(), follower.beat()
    assert follower.beat() == ErrorCode.UNKNOWN_MEMBER_ID
    assert leader.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    leader.join()
    settle(leader)


def test_the_last_member_leaves_an_empty_group_and_the_generations_go_on(driver):
    client = ClassicClient(driver).join()
    settle(client)
    assert client.leave() == ErrorCode.NONE
    assert [(one.state, one.members) for one in driver.coordinator.summaries()] == [("Empty", 0)]
    newcomer = ClassicClient(driver).join()
    settle(newcomer)
    assert newcomer.generation == 3


def test_leaving_calls_the_others_back_at_once(driver):
    first = ClassicClient(driver).join()
    settle(first)
    second = ClassicClient(driver).join()
    first.join()
    settle(first, second)
    assert second.leave() == ErrorCode.NONE
    assert first.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    first.join()
    settle(first)


def test_many_members_leave_with_one_rebalance_and_each_hears_its_own_result(driver):
    clients = [ClassicClient(driver).join()]
    settle(*clients)
    for _ in range(2):
        newcomer = ClassicClient(driver).join()
        for client in clients:
            client.join()
        clients.append(newcomer)
        settle(*clients)
    identities = tuple(MemberIdentity(member_id=one) for one in (clients[0].member_id, "ghost", clients[1].member_id))
    answer = driver.tell("leave_group", LeaveGroupRequest(group_id="g", members=identities), version=4)
    assert answer.error_code == ErrorCode.NONE
    assert [one.error_code for one in answer.members] == [0, ErrorCode.UNKNOWN_MEMBER_ID, 0]
    clients[2].join()
    settle(clients[2])
    assert clients[2].generation == 4


@pytest.mark.parametrize("version", [0, 1, 2])
def test_old_versions_leave_one_at_a_time(driver, version):
    client = ClassicClient(driver).join()
    settle(client)
    request = LeaveGroupRequest(group_id="g", member_id=client.member_id)
    assert driver.tell("leave_group", request, version=version).error_code == ErrorCode.NONE
    assert driver.tell("leave_group", request, version=version).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_leaves_while_it_waits_hears_so(driver):
    first = ClassicClient(driver).join()
    settle(first)
    second = ClassicClient(driver).join()
    second_id = second.member_id
    assert second.leave() == ErrorCode.NONE
    assert driver.answers[second.ticket].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert second_id
    first.join()
    settle(first)


def test_a_pending_member_that_leaves_lets_the_waiting_ones_go_on(driver):
    first = ClassicClient(driver).join()
    settle(first)
    second = ClassicClient(driver).join()
    pending_id = driver.answers[ClassicClient(driver)._join()].member_id
    first.join()
    assert driver.is_waiting(first.ticket)
    identities = (MemberIdentity(member_id=pending_id),)
    answer = driver.tell("leave_group", LeaveGroupRequest(group_id="g", members=identities), version=4)
    assert answer.members[0].error_code == ErrorCode.NONE
    settle(first, second)


def test_a_heartbeat_of_an_older_generation_is_refused(driver):
    client = ClassicClient(driver).join()
    settle(client)
    client.join()
    old = HeartbeatRequest(group_id="g", generation_id=1, member_id=client.member_id)
    settle(client)
    assert driver.tell("heartbeat", old, version=4).error_code == ErrorCode.ILLEGAL_GENERATION


def test_heartbeats_between_join_and_sync_are_welcome(driver):
    client = ClassicClient(driver).join()
    client.joined()
    assert client.beat() == ErrorCode.NONE
    client.sync({})


def test_a_restart_keeps_the_group_and_its_work(driver):
    client = ClassicClient(driver).join()
    settle(client)
    driver.restart()
    assert client.beat() == ErrorCode.NONE
    assert driver.answers[client.sync()].assignment == f"work-of-{client.member_id}".encode()
    driver.advance(10_000)
    assert client.beat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_restart_in_the_middle_of_a_rebalance_sends_members_back_to_join(driver):
    first = ClassicClient(driver).join()
    settle(first)
    second = ClassicClient(driver).join()
    first.join()
    first.joined(), second.joined()
    driver.restart()
    assert first.beat() == ErrorCode.ILLEGAL_GENERATION
    assert second.beat() == ErrorCode.UNKNOWN_MEMBER_ID
    second.member_id = ""
    second.join()
    first.join()
    settle(first, second)


def test_a_lost_assignment_is_simply_sent_again(driver):
    client = ClassicClient(driver).join()
    client.joined()
    driver.loses_appends = True
    assert driver.answers[client.sync({client.member_id: b"w"})] == LOST
    driver.loses_appends = False
    assert driver.answers[client.sync({client.member_id: b"w"})].assignment == b"w"
    assert client.beat() == ErrorCode.NONE


def test_cooperative_members_go_through_two_generations_without_being_forgotten(driver):
    wishes = {"protocols": (("cooperative-sticky", subscription("t", user_data=b"owned")),)}
    first = ClassicClient(driver, **wishes).join()
    settle(first)
    second = ClassicClient(driver, **wishes).join()
    first.join()
    settle(first, second)
    # The first gave up partitions, so it rejoins for the second to get them.
    first.protocols = (("cooperative-sticky", subscription("t", user_data=b"less")),)
    first.join()
    assert second.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    second.join()
    settle(first, second)
    assert first.generation == 3
