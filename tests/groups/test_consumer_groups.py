"""KIP-848 groups: the broker assigns, members walk towards their targets."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from clarion.groups.config import GroupConfig
from clarion.model.errors import ErrorCode
from clarion.wire.messages.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    DescribedTopicPartitions,
    LeaveGroupRequest,
    MemberIdentity,
)
from tests.groups.driver import LOST, ClassicClient, ConsumerClient, Driver, rounds, settle

TOPICS = {"t": 4, "u": 2}


def _described(driver: Driver, group: str = "g"):
    return driver.tell("consumer_group_describe", ConsumerGroupDescribeRequest(group_ids=(group,)), version=1).groups[0]


def test_a_lone_member_gets_everything_with_its_first_heartbeat(driver):
    client = ConsumerClient(driver, "a", "t", "u")
    answer = client.join()
    assert (answer.error_code, answer.member_id, answer.member_epoch, answer.heartbeat_interval) == (0, "a", 1, 5_000)
    assert (client.numbers("t"), client.numbers("u")) == ([0, 1, 2, 3], [0, 1])
    assert _described(driver).group_state == "Stable"


def test_a_steady_heartbeat_tells_nothing_new_and_writes_nothing(driver):
    client = ConsumerClient(driver, "a", "t")
    client.join()
    written = len(driver.log)
    assert client.beat(reports=False).assignment is None
    assert len(driver.log) == written


def test_version_zero_makes_the_member_id_for_the_client(driver):
    request = ConsumerGroupHeartbeatRequest(
        group_id="g", rebalance_timeout=1_000, subscribed_topic_names=("t",), topic_partitions=()
    )
    assert UUID(driver.tell("consumer_group_heartbeat", request, version=0).member_id)
    assert driver.tell("consumer_group_heartbeat", request, version=1).error_code == ErrorCode.INVALID_REQUEST


def test_partitions_go_to_the_newcomer_only_after_the_old_owner_has_let_go(driver):
    old, new = ConsumerClient(driver, "a", "t"), ConsumerClient(driver, "b", "t")
    old.join()
    new.join()
    assert (new.owned, new.epoch) == (frozenset(), 2)
    told = driver.tell("consumer_group_heartbeat", old.request(reports=False), version=1)
    assert (told.member_epoch, len(told.assignment.topic_partitions[0].partitions)) == (1, 2)
    # The old owner knows, and has not said yet that it stopped.
    new.beat()
    assert new.owned == frozenset()
    assert _described(driver).group_state == "Reconciling"
    old.beat()  # still reports all four
    new.beat()
    assert new.owned == frozenset()
    old.hear(told)
    old.beat()
    assert old.epoch == 2
    new.beat()
    assert sorted([*old.numbers("t"), *new.numbers("t")]) == [0, 1, 2, 3]
    assert _described(driver).group_state == "Stable"


def test_a_member_that_does_not_let_go_in_time_is_fenced(driver):
    stubborn, new = ConsumerClient(driver, "a", "t", rebalance=10_000), ConsumerClient(driver, "b", "t")
    stubborn.join()
    new.join()
    all_of_it = stubborn.owned
    for _ in range(3):
        stubborn.beat()
        stubborn.owned = all_of_it
        new.beat()
        driver.advance(4_000)
    assert stubborn.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    new.beat()
    assert new.numbers("t") == [0, 1, 2, 3]


def test_a_silent_member_is_fenced_and_its_work_goes_to_the_others(driver):
    one, two = ConsumerClient(driver, "a", "t"), ConsumerClient(driver, "b", "t")
    one.join(), two.join()
    rounds(one, two)
    driver.advance(44_000)
    one.beat()
    driver.advance(2_000)
    one.beat()
    assert one.numbers("t") == [0, 1, 2, 3]
    assert two.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_with_settings_of_its_own_has_them_from_the_next_heartbeat_on(driver):
    own, other = ConsumerClient(driver, "a", "t"), ConsumerClient(driver, "b", "t", group="h")
    own.join(), other.join()
    driver.overrides["g"] = replace(
        driver.config, consumer_session_timeout_ms=50_000, consumer_heartbeat_interval_ms=1_000
    )
    assert (own.beat().heartbeat_interval, other.beat().heartbeat_interval) == (1_000, 5_000)
    driver.advance(46_000)
    assert (_described(driver, "g").group_state, _described(driver, "h").group_state) == ("Stable", "Empty")
    driver.restart()
    driver.advance(46_000)
    assert _described(driver, "g").group_state == "Stable"


def test_many_silent_members_cost_one_epoch(driver):
    clients = [ConsumerClient(driver, f"m{i}", "t") for i in range(4)]
    for client in clients:
        client.join()
    epoch = _described(driver).group_epoch
    driver.advance(45_000)
    described = _described(driver)
    assert (described.group_epoch, described.group_state, described.members) == (epoch + 1, "Empty", ())


def test_a_dead_member_is_fenced_at_the_next_try_when_the_append_was_lost(driver):
    client = ConsumerClient(driver, "a", "t")
    client.join()
    driver.loses_appends = True
    driver.advance(45_500)
    driver.loses_appends = False
    assert _described(driver).group_state == "Stable"
    driver.advance(1_000)
    assert _described(driver).group_state == "Empty"


def test_leaving_frees_the_partitions_at_once(driver):
    one, two = ConsumerClient(driver, "a", "t"), ConsumerClient(driver, "b", "t")
    one.join(), two.join()
    rounds(one, two)
    answer = two.leave()
    assert (answer.error_code, answer.member_epoch) == (0, -1)
    one.beat()
    assert one.numbers("t") == [0, 1, 2, 3]


def test_an_administrator_removes_members_of_a_modern_group(driver):
    one, two = ConsumerClient(driver, "a", "t"), ConsumerClient(driver, "b", "t", instance="i")
    one.join(), two.join()
    rounds(one, two)
    epoch = _described(driver).group_epoch
    gone = (
        MemberIdentity(member_id="a"),
        MemberIdentity(group_instance_id="i"),
        MemberIdentity(member_id="nobody"),
        MemberIdentity(member_id="a", group_instance_id="i"),
        MemberIdentity(member_id="a"),
    )
    answer = driver.tell("leave_group", LeaveGroupRequest(group_id="g", members=gone), version=5)
    unknown, fenced = ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID
    assert [member.error_code for member in answer.members] == [0, 0, unknown, fenced, unknown]
    described = _described(driver)
    assert (described.group_epoch, described.members) == (epoch + 1, ())
    assert one.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_wrong_epochs_are_fenced(driver):
    client = ConsumerClient(driver, "a", "t")
    client.join()
    for epoch in (2, 99):
        request = replace(client.request(), member_epoch=epoch)
        answer = driver.tell("consumer_group_heartbeat", request, version=1)
        assert answer.error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert client.beat().error_code == ErrorCode.NONE


def test_the_previous_epoch_is_accepted_when_the_answer_was_lost_and_the_member_holds_no_more(driver):
    client = ConsumerClient(driver, "a", "t")
    client.join()
    driver.set_topics(t=6)
    request = client.request()
    lost = driver.tell("consumer_group_heartbeat", request, version=1)
    assert lost.member_epoch == 2
    again = driver.tell("consumer_group_heartbeat", request, version=1)
    assert again.member_epoch == 2
    assert again.assignment == lost.assignment
    stranger = replace(request, topic_partitions=(DescribedTopicPartitions(topic_id=UUID(int=5), partitions=(1,)),))
    refused = driver.tell("consumer_group_heartbeat", stranger, version=1)
    assert refused.error_code == ErrorCode.FENCED_MEMBER_EPOCH


def test_a_fenced_member_rejoins_with_epoch_zero_and_the_same_id(driver):
    client = ConsumerClient(driver, "a", "t")
    client.join()
    answer = client.join()
    assert (answer.error_code, answer.member_epoch) == (0, 1)
    assert client.numbers("t") == [0, 1, 2, 3]


def test_unknown_members_and_groups_are_told_so(driver):
    client = ConsumerClient(driver, "a", "t")
    client.epoch = 3
    assert client.beat().error_code == ErrorCode.GROUP_ID_NOT_FOUND
    ConsumerClient(driver, "b", "t").join()
    assert client.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert client.leave().error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    "twist",
    [
        {"group_id": ""},
        {"rebalance_timeout": -1},
        {"topic_partitions": None},
        {"topic_partitions": (DescribedTopicPartitions(topic_id=UUID(int=1), partitions=(0,)),)},
        {"subscribed_topic_names": None},
        {"instance_id": ""},
        {"rack_id": ""},
        {"member_epoch": -3},
        {"member_epoch": -2},
    ],
    ids=str,
)
def test_senseless_requests_are_refused(driver, twist):
    request = replace(ConsumerClient(driver, "a", "t").request(), **twist)
    answer = driver.tell("consumer_group_heartbeat", request, version=1)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert answer.error_message


def test_an_unknown_assignor_is_refused(driver):
    assert ConsumerClient(driver, "a", "t", assignor="magic").join().error_code == ErrorCode.UNSUPPORTED_ASSIGNOR


def test_a_full_group_takes_nobody_else():
    driver = Driver(GroupConfig(consumer_members_max=1))
    client = ConsumerClient(driver, "a", "t")
    client.join()
    assert ConsumerClient(driver, "b", "t").join().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert client.join().error_code == ErrorCode.NONE
    driver.close()


def test_the_range_assignor_gives_contiguous_ranges(driver):
    one, two = (ConsumerClient(driver, name, "t", "u", assignor="range") for name in "ab")
    one.join(), two.join()
    rounds(one, two)
    assert (one.numbers("t"), two.numbers("t")) == ([0, 1], [2, 3])
    assert (one.numbers("u"), two.numbers("u")) == ([0], [1])
    assert _described(driver).assignor_name == "range"


def test_new_partitions_reach_the_members_with_their_next_heartbeats(driver):
    one, two = ConsumerClient(driver, "a", "t"), ConsumerClient(driver, "b", "t")
    one.join(), two.join()
    rounds(one, two)
    driver.set_topics(t=8, u=2)
    rounds(one, two)
    assert (len(one.owned), len(two.owned)) == (4, 4)


def test_a_change_of_other_topics_is_nobodys_business(driver):
    client = ConsumerClient(driver, "a", "t")
    client.join()
    driver.set_topics(t=4, u=9, v=1)
    client.beat()
    assert client.epoch == 1


def test_a_deleted_topic_is_taken_away(driver):
    client = ConsumerClient(driver, "a", "t", "u")
    client.join()
    driver.set_topics(t=4)
    rounds(client, times=2)
    assert len(client.owned) == 4


def test_a_topic_that_does_not_exist_yet_is_assigned_when_it_comes(driver):
    client = ConsumerClient(driver, "a", "later")
    client.join()
    assert client.owned == frozenset()
    driver.set_topics(t=4, u=2, later=3)
    client.beat()
    assert client.numbers("later") == [0, 1, 2]


def test_a_new_subscription_moves_the_member_over(driver):
    client = ConsumerClient(driver, "a", "t")
    client.join()
    request = replace(client.request(), subscribed_topic_names=("u",))
    client.hear(driver.tell("consumer_group_heartbeat", request, version=1))
    client.beat()
    assert (client.numbers("t"), client.numbers("u")) == ([], [0, 1])


def test_a_regular_expression_follows_the_topics(driver):
    client = ConsumerClient(driver, "a", regex="log-.*")
    client.topics = None
    client.join()
    assert client.owned == frozenset()
    driver.set_topics(**{"t": 4, "log-a": 2, "xlog-b": 2, "__consumer_offsets": 3})
    client.beat()
    assert len(client.owned) == 2
    driver.set_topics(**{"t": 4, "log-a": 2, "log-c": 1})
    client.beat()
    assert len(client.owned) == 3
    assert _described(driver).members[0].subscribed_topic_regex == "log-.*"


def test_internal_topics_match_no_regular_expression(driver):
    driver.set_topics(**{"t": 1, "__consumer_offsets": 3})
    client = ConsumerClient(driver, "a", regex=".*")
    client.topics = ()
    client.join()
    assert len(client.owned) == 1


def test_an_empty_regular_expression_ends_the_subscription_by_pattern(driver):
    client = ConsumerClient(driver, "a", regex="t|u")
    client.topics = ()
    client.join()
    assert len(client.owned) == 6
    request = replace(client.request(), subscribed_topic_regex="", subscribed_topic_names=("u",))
    client.hear(driver.tell("consumer_group_heartbeat", request, version=1))
    client.beat()
    assert len(client.owned) == 2


@pytest.mark.parametrize(
    "regex", ["(", "a{2,1}", "(?=x)", "x" * 20_000, "((a{1000}){1000}){1000}"], ids=lambda r: r[:9]
)
def test_a_bad_regular_expression_is_refused(driver, regex):
    client = ConsumerClient(driver, "a", regex=regex)
    client.topics = ()
    assert client.join().error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_a_static_member_that_comes_back_finds_its_partitions_and_disturbs_nobody(driver):
    one, two = ConsumerClient(driver, "a", "t", instance="i"), ConsumerClient(driver, "b", "t")
    one.join(), two.join()
    rounds(one, two)
    had, epoch = one.owned, _described(driver).group_epoch
    assert one.leave(-2).member_epoch == -2
    back = ConsumerClient(driver, "a2", "t", instance="i")
    back.join()
    assert back.owned == had
    assert (_described(driver).group_epoch, two.beat().assignment) == (epoch, None)
    assert one.beat().error_code == ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_that_never_comes_back_is_fenced_when_its_session_ends(driver):
    one, two = ConsumerClient(driver, "a", "t", instance="i"), ConsumerClient(driver, "b", "t")
    one.join(), two.join()
    rounds(one, two)
    one.leave(-2)
    driver.advance(40_000)
    two.beat()
    assert len(two.owned) == 2
    driver.advance(6_000)
    two.beat()
    assert len(two.owned) == 4


def test_an_instance_id_in_use_is_not_given_to_a_twin(driver):
    one = ConsumerClient(driver, "a", "t", instance="i")
    one.join()
    assert ConsumerClient(driver, "b", "t", instance="i").join().error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    assert one.beat().error_code == ErrorCode.NONE


def test_a_paused_static_member_cannot_go_on_as_if_nothing_had_happened(driver):
    one = ConsumerClient(driver, "a", "t", instance="i")
    one.join()
    one.leave(-2)
    assert one.beat().error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert one.join().error_code == ErrorCode.NONE


def test_a_restart_changes_nothing_for_the_members(driver):
    one, two = ConsumerClient(driver, "a", "t"), ConsumerClient(driver, "b", "t")
    one.join(), two.join()
    rounds(one, two)
    before = one.owned, two.owned
    driver.restart()
    rounds(one, two)
    assert (one.owned, two.owned) == before


def test_a_restart_in_the_middle_of_a_revocation_keeps_the_time_limit(driver):
    stubborn, new = ConsumerClient(driver, "a", "t", rebalance=10_000), ConsumerClient(driver, "b", "t")
    stubborn.join()
    new.join()
    stubborn.beat()
    driver.restart()
    driver.advance(10_000)
    stubborn.beat()
    assert stubborn.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    new.beat()
    assert len(new.owned) == 4


def test_a_lost_append_of_a_join_leaves_no_trace_and_the_retry_succeeds(driver):
    driver.loses_appends = True
    client = ConsumerClient(driver, "a", "t")
    assert client.join() == LOST
    driver.loses_appends = False
    driver.advance(60_000)
    assert client.join().error_code == ErrorCode.NONE
    assert len(client.owned) == 4


def test_an_empty_group_changes_its_type_and_keeps_its_offsets(driver):
    classic = ClassicClient(driver).join()
    settle(classic)
    modern = ConsumerClient(driver, "a", "t")
    driver.commit("g", {("t", 0): 7}, epoch=1, member=classic.member_id)
    classic.leave()
    assert modern.join().error_code == ErrorCode.NONE
    assert driver.committed("g") == {("t", 0): 7}
    assert classic.beat() == ErrorCode.UNKNOWN_MEMBER_ID
    driver.check_durable_state()

    modern.leave()
    classic = ClassicClient(driver)
    ticket = classic._join()
    driver.advance(0)
    classic.member_id = driver.answers[ticket].member_id
    settle(classic.join())
    assert driver.committed("g") == {("t", 0): 7}
    assert _described(driver).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_an_abandoned_first_join_does_not_keep_modern_members_out(driver):
    abandoned = ClassicClient(driver)
    abandoned._join()
    assert ConsumerClient(driver, "a", "t").join().error_code == ErrorCode.NONE
    driver.advance(20_000)
    assert _described(driver).group_state == "Stable"


def test_a_simple_group_with_offsets_becomes_a_consumer_group(driver):
    driver.commit("g", {("t", 0): 7})
    assert ConsumerClient(driver, "a", "t").join().error_code == ErrorCode.NONE
    assert driver.committed("g") == {("t", 0): 7}


def test_describing_what_does_not_exist_tells_no_state(driver):
    unknown, nameless = _described(driver, "none"), _described(driver, "")
    assert (unknown.error_code, unknown.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "")
    assert (nameless.error_code, nameless.group_state) == (ErrorCode.INVALID_GROUP_ID, "")


def test_describe_tells_epochs_members_and_names(driver):
    client = ConsumerClient(driver, "a", "t")
    client.join()
    described = _described(driver)
    assert (described.group_epoch, described.assignment_epoch, described.assignor_name) == (1, 1, "uniform")
    member = described.members[0]
    assert (member.member_id, member.client_id, member.client_host) == ("a", "app", "/10.0.0.1")
    assert member.member_type == 1
    assert [(one.topic_name, one.partitions) for one in member.assignment.topic_partitions] == [("t", (0, 1, 2, 3))]
    assert member.assignment == member.target_assignment
