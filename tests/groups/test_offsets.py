"""Committed offsets: who may commit, what comes back, and when they are forgotten."""

from __future__ import annotations

import pytest

from clarion.groups.config import GroupConfig
from clarion.model.errors import ErrorCode
from clarion.wire.messages import offsets
from clarion.wire.messages.groups import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from tests.groups.driver import ClassicClient, ConsumerClient, Driver, settle, subscription

DAY_MS = 86_400_000
WEEK_MS = 7 * DAY_MS
CHECK_MS = GroupConfig().offsets_retention_check_interval_ms


TOPICS = {"t": 4, "u": 2}


def _group_fetch(driver, group, topics, *, version=9, member=None, epoch=-1):
    asked = offsets.OffsetFetchRequestGroup(group_id=group, member_id=member, member_epoch=epoch, topics=topics)
    request = offsets.OffsetFetchRequest(groups=(asked,), require_stable=True)
    return driver.tell("offset_fetch", request, version=version).groups[0]


def test_a_simple_consumer_commits_without_being_a_member(driver):
    assert driver.commit("g", {("t", 0): 5, ("u", 1): 6}) == [ErrorCode.NONE, ErrorCode.NONE]
    assert driver.committed("g") == {("t", 0): 5, ("u", 1): 6}
    assert [(one.group_id, one.state) for one in driver.coordinator.summaries()] == [("g", "Empty")]


def test_a_consumer_without_a_group_keeps_its_offsets_under_the_empty_id(driver):
    assert driver.commit("", {("t", 0): 4}) == ErrorCode.NONE
    assert driver.committed("") == {("t", 0): 4}
    assert _delete(driver, "t", group="") == ErrorCode.INVALID_GROUP_ID
    answer = driver.tell("delete_groups", DeleteGroupsRequest(groups_names=("",)), version=2)
    assert [one.error_code for one in answer.results] == [ErrorCode.NONE]
    assert driver.committed("") == {}


def test_metadata_and_leader_epoch_come_back(driver):
    partition = offsets.OffsetCommitRequestPartition(
        partition_index=2, committed_offset=9, committed_metadata="why not", committed_leader_epoch=4
    )
    topic = offsets.OffsetCommitRequestTopic(name="t", partitions=(partition,))
    driver.tell("offset_commit", offsets.OffsetCommitRequest(group_id="g", topics=(topic,)), version=8)
    topics = (offsets.OffsetFetchRequestTopic(name="t", partition_indexes=(2,)),)
    fetched = _group_fetch(driver, "g", topics).topics[0].partitions[0]
    assert (fetched.committed_offset, fetched.metadata, fetched.committed_leader_epoch) == (9, "why not", 4)


def test_what_was_never_committed_is_minus_one(driver):
    topics = (offsets.OffsetFetchRequestTopic(name="t", partition_indexes=(0, 3)),)
    fetched = _group_fetch(driver, "nobody", topics)
    assert (fetched.error_code, [one.committed_offset for one in fetched.topics[0].partitions]) == (0, [-1, -1])
    assert fetched.topics[0].partitions[0].metadata == ""


@pytest.mark.parametrize("version", range(1, 8))
def test_old_versions_fetch_one_group(driver, version):
    driver.commit("g", {("t", 0): 5})
    topic = offsets.OffsetFetchRequestTopic(name="t", partition_indexes=(0, 1))
    answer = driver.tell("offset_fetch", offsets.OffsetFetchRequest(group_id="g", topics=(topic,)), version=version)
    assert [one.committed_offset for one in answer.topics[0].partitions] == [5, -1]


def test_metadata_above_the_limit_is_refused_for_its_partition_alone(driver):
    big = offsets.OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="é" * 2049)
    fine = offsets.OffsetCommitRequestPartition(partition_index=1, committed_offset=1, committed_metadata="é" * 2048)
    topic = offsets.OffsetCommitRequestTopic(name="t", partitions=(big, fine))
    answer = driver.tell("offset_commit", offsets.OffsetCommitRequest(group_id="g", topics=(topic,)), version=8)
    codes = [one.error_code for one in answer.topics[0].partitions]
    assert codes == [ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.NONE]
    assert driver.committed("g") == {("t", 1): 1}


def test_a_lost_append_commits_nothing(driver):
    driver.loses_appends = True
    topic = offsets.OffsetCommitRequestTopic(
        name="t", partitions=(offsets.OffsetCommitRequestPartition(partition_index=0, committed_offset=1),)
    )
    driver.tell("offset_commit", offsets.OffsetCommitRequest(group_id="g", topics=(topic,)), version=8)
    driver.loses_appends = False
    assert driver.committed("g") == {}
    assert list(driver.coordinator.summaries()) == []


def test_a_member_commits_in_its_generation_and_zombies_do_not(driver):
    client = ClassicClient(driver).join()
    settle(client)
    assert client.commit(5) == ErrorCode.NONE
    assert driver.commit("g", {("t", 0): 1}, epoch=0, member=client.member_id) == ErrorCode.ILLEGAL_GENERATION
    assert driver.commit("g", {("t", 0): 1}, epoch=1, member="ghost") == ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.commit("g", {("t", 0): 1}) == ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.committed("g") == {("t", 0): 5}


def test_a_member_may_commit_while_the_others_are_called_back_but_not_before_its_new_work(driver):
    first = ClassicClient(driver).join()
    settle(first)
    second = ClassicClient(driver).join()
    assert first.commit(5) == ErrorCode.NONE
    first.join()
    first.joined(), second.joined()
    assert first.commit(6) == ErrorCode.REBALANCE_IN_PROGRESS
    settle(first, second)
    assert first.commit(6) == ErrorCode.NONE


def test_committing_is_a_sign_of_life(driver):
    client = ClassicClient(driver, session=10_000).join()
    settle(client)
    for offset in range(5):
        driver.advance(8_000)
        assert client.commit(offset) == ErrorCode.NONE


def test_a_generation_of_a_group_that_does_not_exist_is_refused(driver):
    assert driver.commit("g", {("t", 0): 1}, epoch=1, member="m") == ErrorCode.ILLEGAL_GENERATION
    assert driver.commit("g", {("t", 0): 1}, epoch=1, member="m", version=9) == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_modern_member_commits_and_fetches_with_its_epoch(driver):
    client = ConsumerClient(driver, "a", "t")
    client.join()
    assert driver.commit("g", {("t", 0): 5}, epoch=1, member="a", version=9) == ErrorCode.NONE
    assert driver.commit("g", {("t", 0): 6}, epoch=0, member="a", version=9) == ErrorCode.STALE_MEMBER_EPOCH
    assert driver.commit("g", {("t", 0): 6}, epoch=1, member="x", version=9) == ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.commit("g", {("t", 0): 6}, version=9) == ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.commit("g", {("t", 0): 6}, epoch=1, member="a", version=8) == ErrorCode.UNSUPPORTED_VERSION
    assert _group_fetch(driver, "g", None, member="a", epoch=1).topics[0].partitions[0].committed_offset == 5
    assert _group_fetch(driver, "g", None, member="a", epoch=3).error_code == ErrorCode.STALE_MEMBER_EPOCH
    assert _group_fetch(driver, "g", None, member="x", epoch=1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert _group_fetch(driver, "g", None).error_code == ErrorCode.NONE


def test_several_groups_are_fetched_at_once(driver):
    driver.commit("g", {("t", 0): 5})
    driver.commit("h", {("u", 0): 6})
    groups = tuple(offsets.OffsetFetchRequestGroup(group_id=one) for one in ("g", "h", "none"))
    answer = driver.tell("offset_fetch", offsets.OffsetFetchRequest(groups=groups), version=8)
    assert [len(one.topics) for one in answer.groups] == [1, 1, 0]


def _delete(driver, topic, group="g"):
    asked = offsets.OffsetDeleteRequestTopic(
        name=topic, partitions=(offsets.OffsetDeleteRequestPartition(partition_index=0),)
    )
    answer = driver.tell("offset_delete", offsets.OffsetDeleteRequest(group_id=group, topics=(asked,)), version=0)
    return answer.error_code or answer.topics[0].partitions[0].error_code


def test_offsets_are_deleted_for_topics_that_nobody_subscribes_to(driver):
    driver.commit("g", {("t", 0): 5, ("u", 0): 6})
    client = ClassicClient(driver, protocols=(("range", subscription("t")),)).join()
    settle(client)
    assert _delete(driver, "t") == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert _delete(driver, "u") == ErrorCode.NONE
    assert _delete(driver, "u", group="none") == ErrorCode.GROUP_ID_NOT_FOUND
    assert driver.committed("g") == {("t", 0): 5}
    client.leave()
    assert _delete(driver, "t") == ErrorCode.NONE
    assert driver.committed("g") == {}


def test_offsets_of_a_modern_group_are_protected_by_names_and_patterns(driver):
    driver.commit("g", {("t", 0): 5, ("u", 0): 6})
    client = ConsumerClient(driver, "a", regex="t.*")
    client.topics = ()
    client.join()
    assert _delete(driver, "t") == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert _delete(driver, "u") == ErrorCode.NONE


def test_offsets_of_a_live_group_with_a_protocol_we_cannot_read_are_not_deleted(driver):
    driver.commit("g", {("t", 0): 5})
    settle(ClassicClient(driver, protocol_type="connect", protocols=(("x", b"?"),)).join())
    assert _delete(driver, "t") == ErrorCode.NON_EMPTY_GROUP


def test_a_deleted_topic_takes_the_offsets_of_all_groups_along(driver):
    driver.commit("g", {("t", 0): 5, ("u", 0): 6})
    driver.commit("h", {("t", 1): 5})
    for group in driver.coordinator.groups_with_offsets():
        driver.perform(driver.coordinator.delete_topic_offsets(group, {"t": None}, 10))
    assert (driver.committed("g"), driver.committed("h")) == ({("u", 0): 6}, {})
    assert [one.group_id for one in driver.coordinator.summaries()] == ["g"]


def test_a_deleted_topic_takes_many_offsets_along_a_few_at_a_time(driver):
    driver.commit("g", {("t", index): 5 for index in range(5)} | {("u", 0): 6})
    counts = []
    while outcome := driver.coordinator.delete_topic_offsets("g", {"t": None}, 2):
        counts.append(len(outcome.records))
        driver.perform(outcome)
    assert counts == [2, 2, 1]
    assert driver.committed("g") == {("u", 0): 6}


def test_an_empty_group_is_deleted_with_its_offsets_and_a_live_one_is_not(driver):
    client = ClassicClient(driver).join()
    settle(client)
    client.commit(5)
    request = DeleteGroupsRequest(groups_names=("g", "none", "g"))
    codes = [(one.group_id, one.error_code) for one in driver.tell("delete_groups", request, version=2).results]
    assert codes == [("g", ErrorCode.NON_EMPTY_GROUP), ("none", ErrorCode.GROUP_ID_NOT_FOUND)]
    client.leave()
    driver.tell("delete_groups", request, version=2)
    assert (list(driver.coordinator.summaries()), driver.committed("g")) == ([], {})


def test_an_empty_modern_group_is_deleted_without_a_trace(driver):
    client = ConsumerClient(driver, "a", regex="t.*")
    client.topics = ()
    client.join()
    client.leave()
    driver.commit("g", {("t", 0): 5})
    driver.tell("delete_groups", DeleteGroupsRequest(groups_names=("g",)), version=2)
    assert driver.compacted(keep_tombstones=False) == []


def test_offsets_expire_a_week_after_the_group_became_empty(driver):
    client = ClassicClient(driver, session=1_800_000).join()
    settle(client)
    client.commit(5)
    for _ in range(0, 2 * WEEK_MS, 1_500_000):
        driver.advance(1_500_000)
        assert client.beat() == ErrorCode.NONE
    assert driver.committed("g") == {("t", 0): 5}
    client.leave()
    driver.advance(WEEK_MS - CHECK_MS)
    assert driver.committed("g") == {("t", 0): 5}
    driver.advance(2 * CHECK_MS)
    assert driver.committed("g") == {}
    assert list(driver.coordinator.summaries()) == []


def test_a_commit_to_an_empty_group_starts_the_week_anew(driver):
    client = ClassicClient(driver).join()
    settle(client)
    client.commit(5)
    client.leave()
    driver.advance(WEEK_MS - DAY_MS)
    driver.commit("g", {("t", 0): 1})
    driver.advance(2 * DAY_MS)
    assert driver.committed("g") == {("t", 0): 1}


def test_a_live_group_loses_only_what_it_no_longer_subscribes_to(driver):
    driver.commit("g", {("t", 0): 5, ("u", 0): 6})
    client = ClassicClient(driver, session=1_800_000).join()
    settle(client)
    for _ in range(0, WEEK_MS + DAY_MS, 1_500_000):
        driver.advance(1_500_000)
        client.beat()
    assert driver.committed("g") == {("t", 0): 5}


def test_a_modern_groups_week_starts_when_its_last_member_leaves():
    driver = Driver(GroupConfig(consumer_session_timeout_ms=2 * DAY_MS))
    client = ConsumerClient(driver, "a", "t")
    client.join()
    driver.commit("g", {("t", 0): 5}, epoch=1, member="a", version=9)
    for _ in range(8):
        driver.advance(DAY_MS)
        assert client.beat().error_code == ErrorCode.NONE
    client.leave()
    driver.restart()
    driver.advance(WEEK_MS - CHECK_MS)
    assert driver.committed("g") == {("t", 0): 5}
    driver.advance(2 * CHECK_MS)
    assert list(driver.coordinator.summaries()) == []
    driver.close()


def test_who_joins_in_the_turn_in_which_a_groups_offsets_expire_is_not_lost():
    driver = Driver(GroupConfig(initial_rebalance_delay_ms=0))
    modern = ConsumerClient(driver, "a", "t")
    modern.join()
    driver.commit("g", {("t", 0): 5}, epoch=1, member="a", version=9)
    modern.leave()
    driver.advance(WEEK_MS - 1)
    classic = ClassicClient(driver, instance="i")
    classic.join()  # which changes the group's type, and goes on with the next tick
    driver._move_to(driver.now + 2 * CHECK_MS)
    driver.perform(driver.coordinator.on_tick(driver.now, driver.wall))
    settle(classic)
    assert classic.beat() == ErrorCode.NONE
    driver.close()


def test_a_simple_groups_offsets_expire_a_week_after_their_commit(driver):
    driver.commit("g", {("t", 0): 5})
    driver.advance(WEEK_MS - CHECK_MS)
    driver.commit("g", {("t", 1): 5})
    driver.advance(2 * CHECK_MS)
    assert driver.committed("g") == {("t", 1): 5}


def test_a_client_may_set_its_own_retention_time(driver):
    driver.commit("g", {("t", 0): 5}, retention=DAY_MS, version=4)
    driver.advance(DAY_MS + CHECK_MS)
    assert driver.committed("g") == {}


def test_many_offsets_expire_in_several_short_steps_one_after_the_other(driver):
    driver.commit("large", {("t", index): 5 for index in range(1_200)})
    for number in range(300):
        driver.commit(f"g{number}", {("t", 0): 5})
    driver.advance(WEEK_MS - CHECK_MS)
    driver.commit("young", {("t", 0): 5})
    steps = []
    perform = driver.perform

    def counted(outcome):
        steps.append(len(outcome.records))
        return perform(outcome)

    driver.perform = counted
    driver.advance(CHECK_MS)
    assert [one.group_id for one in driver.coordinator.summaries()] == ["young"]
    assert driver.committed("young") == {("t", 0): 5}
    assert sum(steps) == 1_200 + 300 + 301, "offsets, and groups"
    assert max(steps) <= 1_000, "five hundred, and the group that was looked at last"
    assert len([one for one in steps if one]) >= 4


def test_groups_are_listed_by_state_and_type(driver):
    settle(ClassicClient(driver, "stable").join())
    driver.commit("empty", {("t", 0): 1})
    ConsumerClient(driver, "a", "t", group="modern").join()

    def listed(**filters):
        answer = driver.tell("list_groups", ListGroupsRequest(**filters), version=5)
        return [(one.group_id, one.protocol_type, one.group_state, one.group_type) for one in answer.groups]

    assert listed() == [
        ("empty", "", "Empty", "classic"),
        ("modern", "consumer", "Stable", "consumer"),
        ("stable", "consumer", "Stable", "classic"),
    ]
    assert [one[0] for one in listed(states_filter=("STABLE",))] == ["modern", "stable"]
    assert [one[0] for one in listed(types_filter=("Consumer",))] == ["modern"]
    assert listed(states_filter=("Dead",)) == []


def test_an_unknown_group_is_dead_or_not_found_as_the_version_has_it(driver):
    def described(version):
        return driver.tell("describe_groups", DescribeGroupsRequest(groups=("none",)), version=version).groups[0]

    assert (described(5).error_code, described(5).group_state) == (ErrorCode.NONE, "Dead")
    assert (described(6).error_code, described(6).group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")


def test_a_group_is_described_with_its_members(driver):
    client = ClassicClient(driver, instance="i").join()
    assert driver.tell("describe_groups", DescribeGroupsRequest(groups=("g",)), version=5).groups[0].group_state == (
        "CompletingRebalance"
    )
    settle(client)
    group = driver.tell("describe_groups", DescribeGroupsRequest(groups=("g",)), version=5).groups[0]
    assert (group.group_state, group.protocol_type, group.protocol_data) == ("Stable", "consumer", "range")
    member = group.members[0]
    assert (member.group_instance_id, member.client_id, member.client_host) == ("i", "app", "/10.0.0.1")
    assert (member.member_metadata, member.member_assignment) == (
        subscription("t"),
        f"work-of-{client.member_id}".encode(),
    )


def test_the_accessors_tell_offsets_for_lag_and_retention(driver):
    driver.commit("g", {("t", 0): 5, ("u", 1): 7})
    assert driver.coordinator.committed_offsets("g") == {("t", 0): 5, ("u", 1): 7}
    assert driver.coordinator.committed_offsets("none") == {}
