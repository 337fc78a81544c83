"""A group changes its protocol while its members work: KIP-848 members come to a classic group, and go again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from clarion.groups.config import GroupConfig
from clarion.model.errors import ErrorCode
from clarion.wire.messages.groups import (
    ConsumerGroupDescribeRequest,
    DescribeGroupsRequest,
    LeaveGroupRequest,
    MemberIdentity,
)
from tests.groups.driver import LOST, ClassicClient, ConsumerClient, Driver, subscription
from tests.groups.rolling import RollingClassic, rich_subscription

EVERYTHING = [("t", number) for number in range(6)]


@pytest.fixture
def driver():
    driver = Driver()
    driver.set_topics(t=6)
    yield driver
    driver.close()


@pytest.fixture(params=[False, True], ids=["eager", "cooperative"])
def pair(request, driver) -> list[RollingClassic]:
    """A stable classic group of two."""
    return _classic_pair(driver, cooperative=request.param)


def _classic_pair(driver: Driver, *, cooperative: bool = False, **wishes) -> list[RollingClassic]:
    clients = [RollingClassic(driver, "t", cooperative=cooperative, **wishes) for _ in range(2)]
    _turns(clients)
    assert _shares(clients) == [3, 3]
    return clients


def _turns(clients: Sequence[RollingClassic | ConsumerClient], times: int = 12) -> None:
    """Everybody takes a few turns, and time passes as between heartbeats."""
    for _ in range(times):
        for client in clients:
            if isinstance(client, RollingClassic):
                client.step()
            else:
                assert client.beat().error_code == ErrorCode.NONE
        driver = clients[0].driver
        driver.advance(100)
        owned = _owned(clients)
        assert len(owned) == len(set(owned)), "a partition has two owners"


def _owned(clients) -> list[tuple[str, int]]:
    owned = []
    for client in clients:
        if isinstance(client, RollingClassic):
            owned += client.owned
        else:
            owned += [("t", number) for number in client.numbers("t")]
    return sorted(owned)


def _shares(clients) -> list[int]:
    return [len(client.owned) for client in clients]


def _described(driver: Driver):
    return driver.tell("consumer_group_describe", ConsumerGroupDescribeRequest(group_ids=("g",)), version=1).groups[0]


def _described_classic(driver: Driver):
    return driver.tell("describe_groups", DescribeGroupsRequest(groups=("g",)), version=6).groups[0]


# Up


def test_a_modern_member_joins_a_running_classic_group_and_they_share_the_work(driver, pair):
    pair[0].commit(7)
    modern = ConsumerClient(driver, "m", "t")
    answer = modern.join()
    assert (answer.error_code, answer.member_epoch, modern.owned) == (0, pair[0].generation + 1, frozenset())
    assert pair[0].beat() == ErrorCode.REBALANCE_IN_PROGRESS
    _turns([*pair, modern])
    assert (_owned([*pair, modern]), _shares([*pair, modern])) == (EVERYTHING, [2, 2, 2])
    described = _described(driver)
    assert (described.group_state, described.assignor_name) == ("Stable", "uniform")
    assert {one.member_id: one.member_type for one in described.members} == {
        pair[0].member_id: 0,
        pair[1].member_id: 0,
        "m": 1,
    }
    assert _described_classic(driver).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert driver.committed("g") == {("t", 0): 7}


def test_cooperative_members_keep_what_they_need_not_give_away(driver):
    pair = _classic_pair(driver, cooperative=True)
    had = [client.owned for client in pair]
    modern = ConsumerClient(driver, "m", "t")
    modern.join()
    _turns([*pair, modern])
    assert all(client.owned < before for client, before in zip(pair, had, strict=True))
    assert [client.breaks for client in pair] == [0, 0]


def test_a_rolling_switch_leads_every_member_over_and_back(driver, pair):
    modern = [ConsumerClient(driver, f"m{n}", "t") for n in range(2)]
    for old, new in zip(pair, modern, strict=True):
        new.join()
        _turns([*(one for one in pair if one.phase != "gone"), *(one for one in modern if one.epoch)])
        old.leave()
        old.phase = "gone"
        _turns([*(one for one in pair if one.phase != "gone"), *(one for one in modern if one.epoch)])
    assert (_owned(modern), _shares(modern)) == (EVERYTHING, [3, 3])
    epoch = _described(driver).group_epoch

    back = [RollingClassic(driver, "t", cooperative=pair[0].is_cooperative) for _ in range(2)]
    _turns([*modern, back[0]])
    assert _shares([*modern, back[0]]) == [2, 2, 2]
    modern[0].leave()
    _turns([modern[1], *back])
    assert _shares([modern[1], *back]) == [2, 2, 2]
    modern[1].leave()
    _turns(back)
    assert (_owned(back), _shares(back)) == (EVERYTHING, [3, 3])
    assert _described(driver).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert _described_classic(driver).group_state == "Stable"
    assert back[0].generation > epoch


def test_who_waits_in_the_classic_group_goes_on_in_the_new_one(driver):
    leader, follower = _classic_pair(driver)
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
    _turns([classic, modern])
    assert _shares([classic, modern]) == [3, 3]
    driver.advance(9_000)
    _turns([classic, modern])
    driver.close()


def test_an_id_given_out_by_the_classic_group_is_good_for_the_new_one(driver, pair):
    late = RollingClassic(driver, "t", cooperative=pair[0].is_cooperative)
    late.member_id = driver.answers[late._join()].member_id
    modern = ConsumerClient(driver, "m", "t")
    modern.join()
    _turns([*pair, late, modern])
    assert sorted(_shares([*pair, late, modern])) == [1, 1, 2, 2]


def test_a_lost_upgrade_leaves_the_classic_group_as_it_was(driver, pair):
    pair[0].join()
    driver.loses_appends = True
    modern = ConsumerClient(driver, "m", "t")
    assert modern.join() == LOST
    driver.loses_appends = False
    assert _described_classic(driver).error_code == ErrorCode.NONE
    _turns(pair)
    assert (_owned(pair), _shares(pair)) == (EVERYTHING, [3, 3])
    modern.join()
    _turns([*pair, modern])
    assert _shares([*pair, modern]) == [2, 2, 2]


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
    _classic_pair(driver)
    assert ConsumerClient(driver, "m", "t").join().error_code == ErrorCode.GROUP_ID_NOT_FOUND
    driver.close()


# Classic members in the new group


def _mixed(driver: Driver, **wishes) -> tuple[RollingClassic, ConsumerClient]:
    modern, classic = ConsumerClient(driver, "m", "t"), RollingClassic(driver, "t", **wishes)
    modern.join()
    _turns([modern, classic])
    assert _shares([classic, modern]) == [3, 3]
    return classic, modern


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
    classic, _ = _mixed(driver, metadata_version=metadata_version)
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
    _mixed(driver)
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
    classic, modern = _mixed(driver)
    stranger = ClassicClient(driver)
    stranger.member_id, stranger.generation = "m", modern.epoch
    assert stranger.beat() == ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.answers[stranger.sync()].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.answers[classic.sync(protocol_name="sticky")].error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    classic.generation -= 1
    assert classic.beat() == ErrorCode.ILLEGAL_GENERATION
    assert driver.answers[classic.sync()].error_code == ErrorCode.ILLEGAL_GENERATION


def test_commits_are_fenced_by_each_members_own_epoch(driver):
    classic, modern = _mixed(driver)
    place = {("t", 0): 5}
    assert classic.commit(5) == ErrorCode.NONE
    assert driver.commit("g", place, epoch=modern.epoch, member="m", version=9) == ErrorCode.NONE
    old = classic.generation
    newcomer = ConsumerClient(driver, "n", "t")
    newcomer.join()
    assert classic.commit(6) == ErrorCode.NONE, "it is still in its generation"
    _turns([classic, modern, newcomer])
    assert driver.commit("g", place, epoch=old, member=classic.member_id) == ErrorCode.ILLEGAL_GENERATION
    assert driver.commit("g", place, epoch=old, member="m", version=9) == ErrorCode.STALE_MEMBER_EPOCH
    assert driver.commit("g", place, epoch=modern.epoch, member="m", version=8) == ErrorCode.UNSUPPORTED_VERSION
    assert classic.commit(8) == ErrorCode.NONE


def test_a_classic_member_that_does_not_rejoin_in_time_is_out(driver):
    classic, modern = _mixed(driver, session=30_000, rebalance=10_000)
    newcomer = ConsumerClient(driver, "n", "t")
    newcomer.join()
    for _ in range(3):
        assert classic.beat() == ErrorCode.REBALANCE_IN_PROGRESS
        driver.advance(3_000)
    driver.advance(2_000)
    assert classic.beat() == ErrorCode.UNKNOWN_MEMBER_ID
    _turns([modern, newcomer])
    assert _shares([modern, newcomer]) == [3, 3]


def test_a_classic_member_that_joins_and_never_asks_for_its_work_is_out(driver):
    classic, modern = _mixed(driver, session=30_000, rebalance=10_000)
    classic.join()
    classic.joined()
    for _ in range(3):
        assert classic.beat() == ErrorCode.NONE
        driver.advance(3_000)
    driver.advance(2_000)
    assert classic.beat() == ErrorCode.UNKNOWN_MEMBER_ID
    _turns([modern])
    assert _shares([modern]) == [6]


def test_a_silent_classic_member_is_out_when_its_own_session_ends(driver):
    classic, modern = _mixed(driver, session=8_000)
    driver.restart()
    driver.advance(7_000)
    assert classic.beat() == ErrorCode.NONE
    driver.advance(9_000)
    assert classic.beat() in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)
    _turns([modern])
    assert _shares([modern]) == [6]


def test_a_forgotten_member_that_comes_back_with_its_partitions_must_let_go_of_them_first(driver):
    classic, modern = _mixed(driver, cooperative=True, session=8_000)
    driver.advance(9_000)
    classic.join()
    assert classic.joined().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    classic.phase = "joining"
    _turns([modern], times=2)
    classic.step()
    assert classic.owned == frozenset()
    _turns([classic, modern])
    assert _shares([classic, modern]) == [3, 3]


def test_a_classic_member_is_told_when_what_it_waits_for_is_free(driver):
    classic, modern = _mixed(driver)
    late = RollingClassic(driver, "t")
    late.run(3)
    assert (late.phase, len(late.owned)) == ("working", 0)
    assert late.beat() == ErrorCode.NONE
    classic.run(4)
    modern.beat(), modern.beat()
    assert late.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    _turns([classic, modern, late])
    assert _shares([classic, modern, late]) == [2, 2, 2]


def test_the_topics_reach_classic_members_too(driver):
    classic, modern = _mixed(driver)
    driver.set_topics(t=8)
    _turns([classic, modern])
    assert _shares([classic, modern]) == [4, 4]


def test_a_mixed_group_survives_a_restart_in_the_middle_of_a_rebalance(driver):
    pair = _classic_pair(driver, cooperative=True)
    modern = ConsumerClient(driver, "m", "t")
    modern.join()
    driver.restart()
    pair[0].step(), modern.beat()
    driver.restart()
    _turns([*pair, modern])
    assert (_owned([*pair, modern]), _shares([*pair, modern])) == (EVERYTHING, [2, 2, 2])


# Down


def test_when_the_last_modern_member_goes_the_others_are_called_back_as_a_classic_group(driver, pair):
    modern = ConsumerClient(driver, "m", "t")
    modern.join()
    _turns([*pair, modern])
    epoch = _described(driver).group_epoch
    modern.leave()
    driver.advance(0)
    described = _described_classic(driver)
    assert (described.error_code, described.group_state, len(described.members)) == (0, "PreparingRebalance", 2)
    assert [client.beat() for client in pair] == [ErrorCode.REBALANCE_IN_PROGRESS] * 2
    _turns(pair)
    assert (_owned(pair), pair[0].generation > epoch) == (EVERYTHING, True)


@pytest.mark.parametrize("way", ["silence", "administrator"])
def test_a_modern_member_that_is_taken_out_leaves_a_classic_group(driver, way):
    classic, _ = _mixed(driver, session=60_000)
    if way == "silence":
        driver.advance(44_000)
        classic.beat()
        driver.advance(2_000)
    else:
        gone = (MemberIdentity(member_id="m"),)
        driver.tell("leave_group", LeaveGroupRequest(group_id="g", members=gone), version=5)
    _turns([classic])
    assert (_shares([classic]), _described_classic(driver).group_state) == ([6], "Stable")


def test_a_restart_between_the_downgrade_and_its_rebalance_forgets_neither(driver):
    classic, modern = _mixed(driver)
    modern.leave()
    driver.restart()
    _turns([classic])
    assert _shares([classic]) == [6]


def test_a_lost_downgrade_is_tried_again(driver):
    classic, modern = _mixed(driver)
    driver.loses_appends = True
    assert modern.leave() == LOST
    driver.loses_appends = False
    driver.advance(0)
    assert _described(driver).error_code == ErrorCode.NONE
    modern.leave()
    _turns([classic])
    assert _shares([classic]) == [6]


def test_a_group_that_goes_up_again_before_it_has_rebalanced_knows_what_everybody_holds(driver):
    classic, modern = _mixed(driver, cooperative=True)
    held = classic.owned
    modern.leave()
    again = ConsumerClient(driver, "n", "t")
    again.join()
    driver.advance(0)
    again.beat()
    assert not {("t", number) for number in again.numbers("t")} & held
    _turns([classic, again])
    assert (_owned([classic, again]), _shares([classic, again])) == (EVERYTHING, [3, 3])


# Static members


def test_a_static_classic_member_comes_back_modern_with_its_work(driver):
    pair = [RollingClassic(driver, "t", instance=name) for name in "ab"]
    _turns(pair)
    had = pair[0].owned
    modern = ConsumerClient(driver, "m", "t", instance="a")
    answer = modern.join()
    assert answer.error_code == ErrorCode.NONE
    assert {("t", number) for number in modern.numbers("t")} == had
    assert pair[0].beat() == ErrorCode.FENCED_INSTANCE_ID
    assert pair[0].commit(1) == ErrorCode.FENCED_INSTANCE_ID
    _turns([pair[1], modern])
    assert _shares([pair[1], modern]) == [3, 3]


def test_a_static_modern_member_comes_back_classic_with_its_work(driver):
    stays, leaves = ConsumerClient(driver, "m", "t"), ConsumerClient(driver, "n", "t", instance="a")
    stays.join(), leaves.join()
    _turns([stays, leaves])
    had = {("t", number) for number in leaves.numbers("t")}
    leaves.leave(-2)
    back = RollingClassic(driver, "t", instance="a")
    back.run(2)
    assert (back.owned, back.generation) == (had, stays.epoch)
    assert leaves.beat().error_code == ErrorCode.FENCED_INSTANCE_ID
    _turns([stays, back])
    assert _shares([stays, back]) == [3, 3]


def test_a_static_classic_member_that_restarts_in_a_mixed_group_disturbs_nobody(driver):
    classic, modern = _mixed(driver, instance="a")
    had, epoch = classic.owned, _described(driver).group_epoch
    back = RollingClassic(driver, "t", instance="a")
    back.run(2)
    assert (back.owned, _described(driver).group_epoch) == (had, epoch)
    assert classic.beat() == ErrorCode.FENCED_INSTANCE_ID
    assert modern.beat().assignment is None
    assert RollingClassic(driver, "t", instance="b").run(2).beat() == ErrorCode.NONE


def test_the_last_modern_member_comes_back_classic_and_the_group_with_it(driver):
    others = RollingClassic(driver, "t", instance="b")
    modern = ConsumerClient(driver, "m", "t", instance="a")
    modern.join()
    _turns([modern, others])
    modern.leave(-2)
    back = RollingClassic(driver, "t", instance="a")
    _turns([others, back])
    assert (_owned([others, back]), _shares([others, back])) == (EVERYTHING, [3, 3])
    assert _described_classic(driver).group_state == "Stable"


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
    _turns([back])
    assert _owned([back]) == EVERYTHING


# What the log says


def test_kafka_reads_the_classic_terms_of_a_member_where_its_schema_has_them(driver):
    """Tag 0 of ConsumerGroupMemberMetadataValue: a nullable structure, with a byte that says it is there."""
    _mixed(driver, session=30_000)
    content = b"\1" + (30_000).to_bytes(4, "big") + b"\2" + b"\6range"
    metadata = rich_subscription(("t",), version=0)
    content += bytes([len(metadata) + 1]) + metadata + b"\0" + b"\0"
    values = [value for _, value in driver.log if value is not None]
    assert any(value.endswith(b"\1\0" + bytes([len(content)]) + content) for value in values)
