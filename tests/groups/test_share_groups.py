"""Share groups: who is in them, what they read, what survives, and what other groups make of them."""

from __future__ import annotations

from collections import Counter
from random import Random
from uuid import UUID

import pytest

from clarion.groups import share_requests
from clarion.groups.config import GroupConfig
from clarion.groups.outcome import Call
from clarion.groups.partitions import NOTHING
from clarion.groups.records import CurrentAssignment, GroupEpoch, Key, encode_key
from clarion.groups.share_assignor import assign
from clarion.groups.share_records import (
    InitializedTopic,
    decode_initialized,
    decode_share_current,
    decode_share_epoch,
    decode_share_member,
    encode_initialized,
    encode_share_current,
    encode_share_epoch,
    encode_share_member,
    share_member,
)
from clarion.groups.share_requests import Begun
from clarion.model.errors import ErrorCode
from clarion.wire.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    ListGroupsRequest,
)
from clarion.wire.messages.share_groups import (
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from tests.groups.driver import Driver


class Shared(Driver):
    """Hands requests of share groups in; the share state of what they want begins at once."""

    def __init__(self, config: GroupConfig | None = None) -> None:
        super().__init__(config)
        self.set_topics(t=3, u=2)

    def share(self, method, request):
        ticket = len(self.asked)
        self.asked.append(ticket)
        self.dialects[ticket] = (76, 1) if isinstance(request, ShareGroupHeartbeatRequest) else (77, 1)
        self.perform(method(self.coordinator, request, Call(ticket, 1, self.now, self.wall, "app", "/10.0.0.1")))
        answer = self.answers[ticket]
        if isinstance(request, Begun):
            del self.answers[ticket]
            self.asked.remove(ticket)
        return answer

    def beat(
        self, member: str, epoch: int = 0, *topics: str, group: str = "g", begins: bool = True
    ) -> ShareGroupHeartbeatResponse:
        names = topics or (("t",) if epoch == 0 else None)
        request = ShareGroupHeartbeatRequest(
            group_id=group, member_id=member, member_epoch=epoch, subscribed_topic_names=names
        )
        answer = self.share(share_requests.heartbeat, request)
        missing = share_requests.uninitialized(self.coordinator, group)
        if begins and missing and not answer.error_code and epoch >= 0:
            assert self.share(share_requests.begin, Begun(group, missing))
            answer = self.share(share_requests.heartbeat, request)
        return answer

    def assigned(self, answer: ShareGroupHeartbeatResponse) -> set[tuple[str, int]]:
        names = {info.topic_id: name for name, info in self.topics.items()}
        return {(names[one.topic_id], at) for one in answer.assignment.topic_partitions for at in one.partitions}

    def described(self, group: str = "g"):
        (one,) = self.share(share_requests.describe, ShareGroupDescribeRequest(group_ids=(group,))).groups
        return one

    def everything(self, group: str = "g") -> list[tuple[str, int]]:
        """What all members have, by what the coordinator says of them."""
        return [
            (part.topic_name, at)
            for member in self.described(group).members
            for part in member.assignment.topic_partitions
            for at in part.partitions
        ]


@pytest.fixture
def driver():
    driver = Shared()
    yield driver
    driver.close()


def test_the_first_member_reads_everything(driver: Shared) -> None:
    answer = driver.beat("a")
    assert answer.member_epoch > 0
    assert driver.assigned(answer) == {("t", 0), ("t", 1), ("t", 2)}
    assert answer.heartbeat_interval == 5_000


def test_partitions_are_given_only_when_their_share_state_has_begun(driver: Shared) -> None:
    answer = driver.beat("a", begins=False)
    assert driver.assigned(answer) == set()
    missing = share_requests.uninitialized(driver.coordinator, "g")
    ((topic_id, topic),) = missing.items()
    driver.share(share_requests.begin, Begun("g", {topic_id: InitializedTopic("t", frozenset({1}))}))
    later = driver.beat("a", answer.member_epoch, begins=False)
    assert driver.assigned(later) == {("t", 1)}
    assert share_requests.uninitialized(driver.coordinator, "g") == {
        topic_id: InitializedTopic("t", topic.partitions - {1})
    }


def test_members_may_outnumber_partitions_and_each_has_something_to_read(driver: Shared) -> None:
    epochs = {f"m{number}": driver.beat(f"m{number}").member_epoch for number in range(10)}
    for member, epoch in epochs.items():
        driver.beat(member, epoch)
    shares = Counter(driver.everything())
    assert set(shares) == {("t", 0), ("t", 1), ("t", 2)}
    assert sorted(shares.values()) == [3, 3, 4]


def test_who_leaves_or_falls_silent_leaves_its_partitions_to_the_others(driver: Shared) -> None:
    first, second = driver.beat("a"), driver.beat("b")
    driver.beat("c")
    assert driver.beat("c", -1).member_epoch == -1
    driver.advance(30_000)
    answer = driver.beat("a", first.member_epoch)
    driver.advance(20_000)  # b has been silent for 50 seconds
    answer = driver.beat("a", answer.member_epoch)
    assert driver.assigned(answer) == {("t", 0), ("t", 1), ("t", 2)}
    assert driver.beat("b", second.member_epoch).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert [member.member_id for member in driver.described().members] == ["a"]


def test_the_answer_that_got_lost_is_made_good_by_the_next(driver: Shared) -> None:
    before = driver.beat("a")
    driver.beat("b")
    driver.beat("a", before.member_epoch)  # this answer never arrives
    answer = driver.beat("a", before.member_epoch)
    assert not answer.error_code
    assert answer.member_epoch > before.member_epoch
    assert answer.assignment is not None
    assert driver.beat("a", answer.member_epoch + 5).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert driver.beat("a", answer.member_epoch).assignment is None


def test_a_topic_that_grows_or_comes_is_read_with_the_next_heartbeat(driver: Shared) -> None:
    answer = driver.beat("a", 0, "t", "later")
    driver.set_topics(t=4, u=2, later=1)
    answer = driver.beat("a", answer.member_epoch)
    assert driver.assigned(answer) == {("t", 0), ("t", 1), ("t", 2), ("t", 3), ("later", 0)}
    driver.set_topics(u=2, later=1)
    answer = driver.beat("a", answer.member_epoch)
    assert driver.assigned(answer) == {("later", 0)}


def test_members_with_different_subscriptions_share_what_they_have_in_common(driver: Shared) -> None:
    first = driver.beat("a", 0, "t")
    driver.beat("b", 0, "t", "u")
    driver.beat("a", first.member_epoch)
    read = Counter(driver.everything())
    assert set(read) == {("t", 0), ("t", 1), ("t", 2), ("u", 0), ("u", 1)}
    assert set(read.values()) == {1}


def test_a_restart_changes_nothing_and_gives_everybody_a_whole_session(driver: Shared) -> None:
    answer = driver.beat("a")
    before = driver.described()
    driver.advance(40_000)
    driver.restart()
    assert driver.described() == before
    driver.advance(40_000)
    assert driver.beat("a", answer.member_epoch).member_epoch == answer.member_epoch
    driver.advance(46_000)
    assert driver.described().group_state == "Empty"


@pytest.mark.parametrize(
    "wrong",
    [
        {"group_id": ""},
        {"member_id": ""},
        {"rack_id": ""},
        {"member_epoch": -2},
        {"subscribed_topic_names": None},
        {"subscribed_topic_names": ()},
    ],
)
def test_heartbeats_that_make_no_sense_are_refused(driver: Shared, wrong: dict) -> None:
    good = {"group_id": "g", "member_id": "a", "member_epoch": 0, "subscribed_topic_names": ("t",)}
    answer = driver.share(share_requests.heartbeat, ShareGroupHeartbeatRequest(**{**good, **wrong}))
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert driver.log == []


def test_strangers_and_groups_that_are_not_there_are_refused(driver: Shared) -> None:
    assert driver.beat("a", 3).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    driver.beat("a")
    assert driver.beat("b", 1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.beat("b", -1).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_has_so_many_members_and_no_more() -> None:
    driver = Shared(GroupConfig(share_members_max=2))
    driver.beat("a")
    driver.beat("b")
    assert driver.beat("c").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    driver.close()


def test_consumers_of_other_kinds_have_no_business_in_a_share_group(driver: Shared) -> None:
    driver.beat("a")
    protocol = JoinGroupRequestProtocol(name="range", metadata=b"")
    join = JoinGroupRequest(group_id="g", session_timeout=10_000, protocol_type="consumer", protocols=(protocol,))
    assert driver.tell("join_group", join, version=9).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    beat = ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="x", rebalance_timeout=1_000, subscribed_topic_names=("t",), topic_partitions=()
    )
    assert driver.tell("consumer_group_heartbeat", beat, version=1).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert driver.commit("g", {("t", 0): 5}) is ErrorCode.GROUP_ID_NOT_FOUND
    assert [member.member_id for member in driver.described().members] == ["a"]


def test_a_share_consumer_has_no_business_in_another_group(driver: Shared) -> None:
    driver.commit("g", {("t", 0): 5})
    assert driver.beat("a").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert driver.committed("g") == {("t", 0): 5}


def test_share_groups_are_listed_described_and_deleted(driver: Shared) -> None:
    driver.beat("a")
    (listed,) = driver.tell("list_groups", ListGroupsRequest(types_filter=("Share",)), version=5).groups
    assert (listed.group_id, listed.group_type, listed.protocol_type, listed.group_state) == (
        "g",
        "share",
        "share",
        "Stable",
    )
    described = driver.described()
    assert (described.group_state, described.assignor_name, len(described.members)) == ("Stable", "simple", 1)
    assert driver.described("nobody").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    delete = DeleteGroupsRequest(groups_names=("g",))
    assert driver.tell("delete_groups", delete, version=2).results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    driver.beat("a", -1)
    assert driver.tell("delete_groups", delete, version=2).results[0].error_code == ErrorCode.NONE
    assert driver.described().error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert driver.compacted(keep_tombstones=False) == []


def test_an_empty_share_group_stays_until_somebody_deletes_it(driver: Shared) -> None:
    driver.beat("a")
    driver.beat("a", -1)
    driver.advance(30 * 24 * 3_600_000)
    assert driver.described().group_state == "Empty"


def test_a_member_that_could_not_be_written_out_is_tried_again(driver: Shared) -> None:
    driver.beat("a")
    driver.loses_appends = True
    driver.advance(46_000)
    assert len(driver.described().members) == 1
    driver.loses_appends = False
    driver.advance(2_000)
    assert driver.described().members == ()


# The assignor

TOPIC = UUID(int=1)


@pytest.mark.parametrize("seed", range(20))
def test_work_is_divided_evenly_and_stays_where_it_was(seed: int) -> None:
    random = Random(seed)
    previous: dict = {}
    members: list[str] = []
    for _ in range(30):
        if members and random.random() < 0.4:
            members.remove(random.choice(members))
        else:
            members.append(f"m{random.randrange(10**6)}")
        members.sort()
        partitions = {TOPIC: frozenset(range(random.choice((1, 3, 8))))}
        assigned = assign(members, dict.fromkeys(members, frozenset({TOPIC})), partitions, previous)
        assert set(assigned) == set(members)
        numbers = [number for one in assigned.values() for number in one.get(TOPIC, ())]
        assert members == [] or set(numbers) == partitions[TOPIC]
        sizes = [len(one.get(TOPIC, ())) for one in assigned.values()]
        shares = Counter(numbers).values()
        if len(members) <= len(partitions[TOPIC]):
            assert max(sizes, default=0) - min(sizes, default=0) <= 1
            assert set(shares) <= {1}
        else:
            assert set(sizes) == {1}
            assert max(shares) - min(shares) <= 1
        assert assign(members, dict.fromkeys(members, frozenset({TOPIC})), partitions, assigned) == assigned
        previous = assigned


def test_one_more_member_than_partitions_moves_nobody() -> None:
    wanted = dict.fromkeys(("a", "b", "c", "d"), frozenset({TOPIC}))
    partitions = {TOPIC: frozenset(range(3))}
    three = assign(["a", "b", "c"], wanted, partitions, {})
    four = assign(["a", "b", "c", "d"], wanted, partitions, three)
    assert {member: four[member] for member in three} == three
    assert len(four["d"][TOPIC]) == 1


# Records


def test_records_are_read_as_they_were_written() -> None:
    member = share_member("rack", "app", "/10.0.0.1", ("t", "u"))
    assert decode_share_member(encode_share_member(member)) == member
    assert decode_share_epoch(encode_share_epoch(GroupEpoch(3, -7))) == GroupEpoch(3, -7)
    current = CurrentAssignment(3, 2, 0, {TOPIC: frozenset({0, 5})}, NOTHING)
    assert decode_share_current(encode_share_current(current)) == current
    topics = {TOPIC: InitializedTopic("t", frozenset({0, 2}))}
    assert decode_initialized(encode_initialized(topics)) == topics


def test_records_are_written_as_kafka_writes_them() -> None:
    assert encode_key(Key(10, "g", "m")) == b"\0\n\0\1g\0\1m"
    assert encode_key(Key(15, "g")) == b"\0\x0f\0\1g"
    assert encode_share_epoch(GroupEpoch(1, 2)) == b"\0\0\0\0\0\1\0\0\0\0\0\0\0\2\0"
    assert encode_share_member(share_member(None, "c", "h", ("t",))) == b"\0\0\0\2c\2h\2\2t\0"
    begun = encode_initialized({UUID(int=1): InitializedTopic("t", frozenset({0}))})
    assert begun == b"\0\0\2" + b"\0" * 15 + b"\1\2t\2\0\0\0\0\0\1\0"


class CountedNumber(int):
    """A partition's number that counts how often it is looked up."""

    lookups = 0

    def __hash__(self) -> int:
        CountedNumber.lookups += 1
        return super().__hash__()


def test_an_assignment_looks_at_each_partition_a_few_times_however_many_members_there_are() -> None:
    members = [f"m{number:03}" for number in range(200)]
    wanted = dict.fromkeys(members, frozenset({TOPIC}))
    partitions = {TOPIC: frozenset(map(CountedNumber, range(2_000)))}
    CountedNumber.lookups = 0
    before = assign(members, wanted, partitions, {})
    assign(members[1:], wanted, partitions, before)
    assert CountedNumber.lookups <= 2_000 * 2 * 20
