"""A group changes its protocol while its members work: KIP-848 members come to a classic group, and go again."""

from __future__ import annotations

import pytest

from clarion.groups.config import GroupConfig
from clarion.model.errors import ErrorCode
from clarion.wire.messages.groups import (
    LeaveGroupRequest,
    MemberIdentity,
)
from tests.groups.driver import LOST, ClassicClient, ConsumerClient, Driver, subscription
from tests.groups.mixed import (
    EVERYTHING,
    classic_pair,
    describe,
    describe_classic,
    mixed_pair,
    owned_by,
    shares_of,
    take_turns,
)
from tests.groups.rolling import RollingClassic, rich_subscription

TOPICS = {"t": 6}


@pytest.fixture(params=[False, True], ids=["eager", "cooperative"])
def pair(request, driver) -> list[RollingClassic]:
    """A stable classic group of two."""
    return classic_pair(driver, cooperative=request.param)


# Up


def test_a_modern_member_joins_a_running_classic_group_and_they_share_the_work(driver, pair):
    pair[0].commit(7)
    modern = ConsumerClient(driver, "m", "t")
    answer = modern.join()
    assert (answer.error_code, answer.member_epoch, modern.owned) == (0, pair[0].generation + 1, frozenset())
    assert pair[0].beat() == ErrorCode.REBALANCE_IN_PROGRESS
    take_turns([*pair, modern])
    assert (owned_by([*pair, modern]), shares_of([*pair, modern])) == (EVERYTHING, [2, 2, 2])
    described = describe(driver)
    assert (described.group_state, described.assignor_name) == ("Stable", "uniform")
    assert {one.member_id: one.member_type for one in described.members} == {
        pair[0].member_id: 0,
        pair[1].member_id: 0,
        "m": 1,
    }
    assert describe_classic(driver).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert driver.committed("g") == {("t", 0): 7}


def test_cooperative_members_keep_what_they_need_not_give_away(driver):
    pair = classic_pair(driver, cooperative=True)
    had = [client.owned for client in pair]
    modern = ConsumerClient(driver, "m", "t")
    modern.join()
    take_turns([*pair, modern])
    assert all(client.owned < before for client, before in zip(pair, had, strict=True))
    assert [client.breaks for client in pair] == [0, 0]


def test_a_rolling_switch_leads_every_member_over_and_back(driver, pair):
    modern = [ConsumerClient(driver, f"m{n}", "t") for n in range(2)]
    for old, new in zip(pair, modern, strict=True):
        new.join()
        take_turns([*(one for one in pair if one.phase != "gone"), *(one for one in modern if one.epoch)])
        old.leave()
        old.phase = "gone"
        take_turns([*(one for one in pair if one.phase != "gone"), *(one for one in modern if one.epoch)])
    assert (owned_by(modern), shares_of(modern)) == (EVERYTHING, [3, 3])
    epoch = describe(driver).group_epoch

    back = [RollingClassic(driver, "t", cooperative=pair[0].is_cooperative) for _ in range(2)]
    take_turns([*modern, back[0]])
    assert shares_of([*modern, back[0]]) == [2, 2, 2]
    modern[0].leave()
    take_turns([modern[1], *back])
    assert shares_of([modern[1], *back]) == [2, 2, 2]
    modern[1].leave()
    take_turns(back)
    assert (owned_by(back), shares_of(back)) == (EVERYTHING, [3, 3])
    assert describe(driver).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert describe_classic(driver).group_state == "Stable"
    assert back[0].generation > epoch


def test_who_waits_in_the_classic_group_goes_on_in_the_new_one(driver):
    leader, follower = classic_pair(driver)
    leader.join()
    assert driver.is_waiting(leader.ticket)
    modern = ConsumerClient(driver, "m", "t")
    modern.join()
    driver.advance(0)
    assert (leader.joined().error_code, leader.generation) == (0, modern.epoch)
    assert follower.beat() == ErrorCode.REBALANCE_IN_PROGRESS

    other = [RollingClassic(driver, "t", group="h") for _ in range(2)]
    for client in other:
        client.join()
    other[0].join()
    follower = next(client for client in other if not client.is_leader)
    ticket = follower.sync()
    assert driver.is_waiting(ticket)
    ConsumerClient(driver, "m", "t", group="h").join()
    assert driver.answers[ticket].error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_group_whose_first_members_still_gather_goes_up_too():
    driver = Driver(GroupConfig(initial_rebalance_delay_ms=3_000))
    driver.set_topics(t=6)
    classic = RollingClassic(driver, "t")
    classic.step()
    modern = ConsumerClient(driver, "m", "t")
    assert modern.join().error_code == ErrorCode.NONE
    take_turns([classic, modern])
    assert shares_of([classic, modern]) == [3, 3]
    driver.advance(9_000)
    take_turns([classic, modern])
    driver.close()


def test_an_id_given_out_by_the_classic_group_is_good_for_the_new_one(driver, pair):
    late = RollingClassic(driver, "t", cooperative=pair[0].is_cooperative)
    late.member_id = driver.answers[late._join()].member_id
    modern = ConsumerClient(driver, "m", "t")
    modern.join()
    take_turns([*pair, late, modern])
    assert sorted(shares_of([*pair, late, modern])) == [1, 1, 2, 2]


def test_a_lost_upgrade_leaves_the_classic_group_as_it_was(driver, pair):
    pair[0].join()
    driver.loses_appends = True
    modern = ConsumerClient(driver, "m", "t")
    assert modern.join() == LOST
    driver.loses_appends = False
    assert describe_classic(driver).error_code == ErrorCode.NONE
    take_turns(pair)
    assert (owned_by(pair), shares_of(pair)) == (EVERYTHING, [3, 3])
    modern.join()
    take_turns([*pair, modern])
    assert shares_of([*pair, modern]) == [2, 2, 2]


@pytest.mark.parametrize(
    ("wishes", "assignment"),
    [
        ({"protocol_type": "connect", "protocols": (("compatible", b"\0\1"),)}, b""),
        ({"protocols": (("range", b"\0\1\0\0\0\7"),)}, b""),
        ({"protocols": (("range", b""),)}, b""),
        ({}, b"\0\0\0\0\0\1"),
        ({"protocols": (("homemade", subscription("t")),)}, b"\0\0\0\0\0\0\0\0\0\2hi"),
    ],
    ids=[
        "another protocol type",
        "cut subscription",
        "no subscription",
        "cut assignment",
        "an assignor with user data",
    ],
)
def test_a_group_that_cannot_be_converted_is_no_consumer_group_and_nobody_notices(driver, wishes, assignment):
    client = ClassicClient(driver, **wishes).join()
    client.joined()
    client.sync({client.member_id: assignment})
    other = ClassicClient(driver, **wishes).join()
    before = list(driver.log)
    assert ConsumerClient(driver, "m", "t").join().error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert driver.is_waiting(other.ticket)
    assert driver.log == before
    client.join()
    assert (client.joined().error_code, other.joined().error_code) == (0, 0)


def test_what_librdkafkas_cooperative_assignor_hands_out_besides_partitions_stands_in_nobodys_way(driver):
    client = ClassicClient(driver, protocols=(("cooperative-sticky", subscription("t")),)).join()
    client.joined()
    client.sync({client.member_id: b"\0\0\0\0\0\1\0\1t\0\0\0\1\0\0\0\0\0\0\0\2hi"})
    modern = ConsumerClient(driver, "m", "t")
    assert modern.join().error_code == ErrorCode.NONE
    assert len(modern.numbers("t")) == 3
    assert 0 not in modern.numbers("t")


def test_a_group_too_large_for_a_consumer_group_stays_classic():
    driver = Driver(GroupConfig(initial_rebalance_delay_ms=0, consumer_members_max=1))
    driver.set_topics(t=6)
    classic_pair(driver)
    assert ConsumerClient(driver, "m", "t").join().error_code == ErrorCode.GROUP_ID_NOT_FOUND
    driver.close()


def test_a_classic_member_joins_in_two_steps_and_is_answered_at_once(driver):
    ConsumerClient(driver, "m", "t").join()
    classic = RollingClassic(driver, "t")
    first = driver.answers[classic._join()]
    assert (first.error_code, bool(first.member_id)) == (ErrorCode.MEMBER_ID_REQUIRED, True)
    classic.join()
    answer = classic.joined()
    assert (answer.error_code, answer.generation_id, answer.leader, answer.members) == (0, 2, "", ())
    assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")


@pytest.mark.parametrize("metadata_version", [0, 1, 2, 3])
def test_the_assignment_comes_in_the_version_of_the_consumer_protocol_that_the_member_speaks(driver, metadata_version):
    classic, _ = mixed_pair(driver, metadata_version=metadata_version)
    assignment = driver.answers[classic.sync()].assignment
    assert assignment[:2] == metadata_version.to_bytes(2, "big")
    assert assignment.endswith(b"\xff\xff\xff\xff")


@pytest.mark.parametrize(
    "wishes",
    [
        {"protocol_type": "connect"},
        {"protocols": (("sticky", subscription("t")),)},
        {"protocols": (("range", b"\0\1\0\0\0\7"),)},
        {"protocols": (("range", subscription("t")), ("other", b""))},
        {"protocols": ()},
    ],
    ids=["another protocol type", "no common protocol", "cut subscription", "a second protocol cut", "no protocol"],
)
def test_a_classic_member_that_does_not_fit_is_refused(driver, wishes):
    mixed_pair(driver)
    before = list(driver.log)
    assert ClassicClient(driver, **wishes).join().joined().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert driver.log == before


def test_a_full_group_takes_no_classic_member():
    driver = Driver(GroupConfig(consumer_members_max=1))
    driver.set_topics(t=6)
    ConsumerClient(driver, "m", "t").join()
    assert ClassicClient(driver).join().joined().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    driver.close()


def test_members_are_who_they_are(driver):
    """Neither protocol can speak for a member of the other, nor for an epoch that is not the member's."""
    classic, modern = mixed_pair(driver)
    stranger = ClassicClient(driver)
    stranger.member_id, stranger.generation = "m", modern.epoch
    assert stranger.beat() == ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.answers[stranger.sync()].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.answers[classic.sync(protocol_name="sticky")].error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    classic.generation -= 1
    assert classic.beat() == ErrorCode.ILLEGAL_GENERATION
    assert driver.answers[classic.sync()].error_code == ErrorCode.ILLEGAL_GENERATION


def test_commits_are_fenced_by_each_members_own_epoch(driver):
    classic, modern = mixed_pair(driver)
    place = {("t", 0): 5}
    assert classic.commit(5) == ErrorCode.NONE
    assert driver.commit("g", place, epoch=modern.epoch, member="m", version=9) == ErrorCode.NONE
    old = classic.generation
    newcomer = ConsumerClient(driver, "n", "t")
    newcomer.join()
    assert classic.commit(6) == ErrorCode.NONE, "it is still in its generation"
    take_turns([classic, modern, newcomer])
    assert driver.commit("g", place, epoch=old, member=classic.member_id) == ErrorCode.ILLEGAL_GENERATION
    assert driver.commit("g", place, epoch=old, member="m", version=9) == ErrorCode.STALE_MEMBER_EPOCH
    assert driver.commit("g", place, epoch=modern.epoch, member="m", version=8) == ErrorCode.UNSUPPORTED_VERSION
    assert classic.commit(8) == ErrorCode.NONE


def test_a_classic_member_that_does_not_rejoin_in_time_is_out(driver):
    classic, modern = mixed_pair(driver, session=30_000, rebalance=10_000)
    newcomer = ConsumerClient(driver, "n", "t")
    newcomer.join()
    for _ in range(3):
        assert classic.beat() == ErrorCode.REBALANCE_IN_PROGRESS
        driver.advance(3_000)
    driver.advance(2_000)
    assert classic.beat() == ErrorCode.UNKNOWN_MEMBER_ID
    take_turns([modern, newcomer])
    assert shares_of([modern, newcomer]) == [3, 3]


def test_a_classic_member_that_joins_and_never_asks_for_its_work_is_out(driver):
    classic, modern = mixed_pair(driver, session=30_000, rebalance=10_000)
    classic.join()
    classic.joined()
    for _ in range(3):
        assert classic.beat() == ErrorCode.NONE
        driver.advance(3_000)
    driver.advance(2_000)
    assert classic.beat() == ErrorCode.UNKNOWN_MEMBER_ID
    take_turns([modern])
    assert shares_of([modern]) == [6]


def test_a_silent_classic_member_is_out_when_its_own_session_ends(driver):
    classic, modern = mixed_pair(driver, session=8_000)
    driver.restart()
    driver.advance(7_000)
    assert classic.beat() == ErrorCode.NONE
    driver.advance(9_000)
    assert classic.beat() in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)
    take_turns([modern])
    assert shares_of([modern]) == [6]


def test_a_forgotten_member_that_comes_back_with_its_partitions_must_let_go_of_them_first(driver):
    classic, modern = mixed_pair(driver, cooperative=True, session=8_000)
    driver.advance(9_000)
    classic.join()
    assert classic.joined().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    classic.phase = "joining"
    take_turns([modern], times=2)
    classic.step()
    assert classic.owned == frozenset()
    take_turns([classic, modern])
    assert shares_of([classic, modern]) == [3, 3]


def test_a_classic_member_is_told_when_what_it_waits_for_is_free(driver):
    classic, modern = mixed_pair(driver)
    late = RollingClassic(driver, "t")
    late.run(3)
    assert (late.phase, len(late.owned)) == ("working", 0)
    assert late.beat() == ErrorCode.NONE
    classic.run(4)
    modern.beat(), modern.beat()
    assert late.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    take_turns([classic, modern, late])
    assert shares_of([classic, modern, late]) == [2, 2, 2]


def test_the_topics_reach_classic_members_too(driver):
    classic, modern = mixed_pair(driver)
    driver.set_topics(t=8)
    take_turns([classic, modern])
    assert shares_of([classic, modern]) == [4, 4]


def test_a_mixed_group_survives_a_restart_in_the_middle_of_a_rebalance(driver):
    pair = classic_pair(driver, cooperative=True)
    modern = ConsumerClient(driver, "m", "t")
    modern.join()
    driver.restart()
    pair[0].step(), modern.beat()
    driver.restart()
    take_turns([*pair, modern])
    assert (owned_by([*pair, modern]), shares_of([*pair, modern])) == (EVERYTHING, [2, 2, 2])


# Down


def test_when_the_last_modern_member_goes_the_others_are_called_back_as_a_classic_group(driver, pair):
    modern = ConsumerClient(driver, "m", "t")
    modern.join()
    take_turns([*pair, modern])
    epoch = describe(driver).group_epoch
    modern.leave()
    driver.advance(0)
    described = describe_classic(driver)
    assert (described.error_code, described.group_state, len(described.members)) == (0, "PreparingRebalance", 2)
    assert [client.beat() for client in pair] == [ErrorCode.REBALANCE_IN_PROGRESS] * 2
    take_turns(pair)
    assert (owned_by(pair), pair[0].generation > epoch) == (EVERYTHING, True)


@pytest.mark.parametrize("way", ["silence", "administrator"])
def test_a_modern_member_that_is_taken_out_leaves_a_classic_group(driver, way):
    classic, _ = mixed_pair(driver, session=60_000)
    if way == "silence":
        driver.advance(44_000)
        classic.beat()
        driver.advance(2_000)
    else:
        gone = (MemberIdentity(member_id="m"),)
        driver.tell("leave_group", LeaveGroupRequest(group_id="g", members=gone), version=5)
    take_turns([classic])
    assert (shares_of([classic]), describe_classic(driver).group_state) == ([6], "Stable")


def test_a_restart_between_the_downgrade_and_its_rebalance_forgets_neither(driver):
    classic, modern = mixed_pair(driver)
    modern.leave()
    driver.restart()
    take_turns([classic])
    assert shares_of([classic]) == [6]


def test_a_lost_downgrade_is_tried_again(driver):
    classic, modern = mixed_pair(driver)
    driver.loses_appends = True
    assert modern.leave() == LOST
    driver.loses_appends = False
    driver.advance(0)
    assert describe(driver).error_code == ErrorCode.NONE
    modern.leave()
    take_turns([classic])
    assert shares_of([classic]) == [6]


def test_a_group_that_goes_up_again_before_it_has_rebalanced_knows_what_everybody_holds(driver):
    classic, modern = mixed_pair(driver, cooperative=True)
    held = classic.owned
    modern.leave()
    again = ConsumerClient(driver, "n", "t")
    again.join()
    driver.advance(0)
    again.beat()
    assert not {("t", number) for number in again.numbers("t")} & held
    take_turns([classic, again])
    assert (owned_by([classic, again]), shares_of([classic, again])) == (EVERYTHING, [3, 3])


# What the log says


def test_kafka_reads_the_classic_terms_of_a_member_where_its_schema_has_them(driver):
    """Tag 0 of ConsumerGroupMemberMetadataValue: a nullable structure, with a byte that says it is there."""
    mixed_pair(driver, session=30_000)
    content = b"\1" + (30_000).to_bytes(4, "big") + b"\2" + b"\6range"
    metadata = rich_subscription(("t",), version=0)
    content += bytes([len(metadata) + 1]) + metadata + b"\0" + b"\0"
    values = [value for _, value in driver.log if value is not None]
    assert any(value.endswith(b"\1\0" + bytes([len(content)]) + content) for value in values)
