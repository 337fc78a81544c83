"""Traps 9 to 11: settings in full, small promises of the admin calls, members that must not be forgotten."""

import time
from typing import Any

import pytest

from clarion.wire.records import encode_batch
from tests.raw_client import RawClient
from tests.traps.words import create_topic, end_offset, find_coordinator, topic_data

UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS, ILLEGAL_GENERATION = 25, 27, 22
MESSAGE_TOO_LARGE, INVALID_RECORD, INVALID_PARTITIONS = 10, 87, 37
TOPIC_RESOURCE = 2
DYNAMIC_TOPIC_CONFIG, DEFAULT_CONFIG = 1, 5
TOPIC_SETTINGS = [
    "cleanup.policy",
    "compression.type",
    "delete.retention.ms",
    "file.delete.delay.ms",
    "flush.messages",
    "flush.ms",
    "index.interval.bytes",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "message.timestamp.type",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "min.insync.replicas",
    "preallocate",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.index.bytes",
    "segment.jitter.ms",
    "segment.ms",
    "unclean.leader.election.enable",
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
]


# Trap 9: whoever reads all settings, changes one and writes all back needs every one of them, with its source.


@pytest.mark.parametrize("version", [1, 3, 4])
def test_every_setting_is_listed_with_default_and_source(raw: RawClient, unique: str, version: int) -> None:
    create_topic(raw, unique, retention_ms="12345678")
    settings = _settings(raw, unique, version)
    assert set(TOPIC_SETTINGS) <= set(settings)
    retention, segment = settings["retention.ms"], settings["segment.bytes"]
    assert (retention.value, retention.config_source, retention.read_only) == ("12345678", DYNAMIC_TOPIC_CONFIG, False)
    assert (segment.value, segment.config_source, segment.is_sensitive) == ("1073741824", DEFAULT_CONFIG, False)
    assert next((synonym.name, synonym.source) for synonym in retention.synonyms) == (
        "retention.ms",
        DYNAMIC_TOPIC_CONFIG,
    )
    if version >= 3:
        assert (retention.config_type, segment.config_type, settings["cleanup.policy"].config_type) == (5, 3, 7)


def test_only_the_settings_that_were_asked_for_are_listed(raw: RawClient, topic: str) -> None:
    assert set(_settings(raw, topic, 4, ["retention.ms", "segment.ms"])) == {"retention.ms", "segment.ms"}


def test_what_was_read_may_be_written_back(raw: RawClient, unique: str) -> None:
    """AlterConfigs (key 33) replaces everything; a round trip must change nothing."""
    create_topic(raw, unique, retention_ms="12345678")
    before = _settings(raw, unique, 4)
    own = [{"name": s.name, "value": s.value} for s in before.values() if s.config_source == DYNAMIC_TOPIC_CONFIG]
    resource = {"resource_type": TOPIC_RESOURCE, "resource_name": unique, "configs": own}
    (answer,) = raw.ask("alter_configs", 1, resources=[resource], validate_only=False).responses
    assert answer.error_code == 0
    after = _settings(raw, unique, 4)
    assert {name: s.value for name, s in after.items()} == {name: s.value for name, s in before.items()}


def _settings(raw: RawClient, topic: str, version: int, names: list[str] | None = None) -> dict[str, Any]:
    resource = {"resource_type": TOPIC_RESOURCE, "resource_name": topic, "configuration_keys": names}
    (result,) = raw.ask("describe_configs", version, resources=[resource], include_synonyms=True).results
    assert result.error_code == 0, result
    return {setting.name: setting for setting in result.configs}


# Trap 10: small promises.


@pytest.mark.parametrize("version", [2, 7, 8])
def test_the_metadata_of_a_committed_offset_comes_back(raw: RawClient, topic: str, version: int) -> None:
    find_coordinator(raw, topic)
    partition = {
        "partition_index": 0,
        "committed_offset": 5,
        "committed_leader_epoch": 0,
        "committed_metadata": "half way, zürich",
    }
    committed = raw.ask(
        "offset_commit", version, group_id=topic, generation_id_or_member_epoch=-1, generation_id=-1, member_id="",
        retention_time=-1, topics=[{"name": topic, "partitions": [partition]}],
    )  # fmt: skip
    assert committed.topics[0].partitions[0].error_code == 0
    (found,) = (
        raw.ask("offset_fetch", 5, group_id=topic, topics=[{"name": topic, "partition_indexes": [0]}])
        .topics[0]
        .partitions
    )
    assert (found.committed_offset, found.metadata, found.error_code) == (5, "half way, zürich", 0)


@pytest.mark.parametrize("version", [0, 1, 3])
def test_create_partitions_answers_for_each_topic(raw: RawClient, topic: str, version: int) -> None:
    wanted = [{"name": topic, "count": 3, "assignments": None}, {"name": f"{topic}-x", "count": 2, "assignments": None}]
    results = raw.ask("create_partitions", version, topics=wanted, timeout=5000, validate_only=False).results
    assert {result.name: int(result.error_code) for result in results} == {topic: 0, f"{topic}-x": 3}
    (again,) = raw.ask("create_partitions", version, topics=wanted[:1], timeout=5000, validate_only=False).results
    assert again.error_code == INVALID_PARTITIONS


def test_a_record_without_key_on_a_compacted_topic_is_invalid(raw: RawClient, unique: str) -> None:
    create_topic(raw, unique, cleanup_policy="compact")
    now = int(time.time() * 1000)
    bad = bytes(encode_batch([(b"k", b"v", (), now), (None, b"v", (), now)]))
    assert _produced(raw, unique, bad).error_code == INVALID_RECORD
    assert end_offset(raw, unique) == 0


@pytest.mark.parametrize("bad", [[1], [0, 3, 7], [8, 9]])
def test_the_answer_says_which_records_of_the_batch_were_invalid(raw: RawClient, unique: str, bad: list[int]) -> None:
    """KIP-467: a producer fails the named records for good and sends the others again; librdkafka takes one name
    alone for a word about the whole batch."""
    create_topic(raw, unique, cleanup_policy="compact")
    now = int(time.time() * 1000)
    records = [(None if number in bad else b"k", b"v", (), now) for number in range(10)]
    result = _produced(raw, unique, bytes(encode_batch(records)))
    assert [error.batch_index for error in result.record_errors] == bad
    assert all(error.batch_index_error_message for error in result.record_errors)


def test_a_batch_above_max_message_bytes_is_too_large(raw: RawClient, unique: str) -> None:
    create_topic(raw, unique, max_message_bytes="1000")
    now = int(time.time() * 1000)
    assert _produced(raw, unique, bytes(encode_batch([(None, b"x" * 1100, (), now)]))).error_code == MESSAGE_TOO_LARGE
    assert _produced(raw, unique, bytes(encode_batch([(None, b"x" * 900, (), now)]))).error_code == 0
    assert end_offset(raw, unique) == 1


def _produced(raw: RawClient, topic: str, records: bytes) -> Any:
    answer = raw.ask("produce", 8, transactional_id=None, acks=-1, timeout=5000, topic_data=topic_data(topic, records))
    return answer.responses[0].partition_responses[0]


# Trap 11: heartbeats and syncs that cross a rebalance find their member still there.


class _GroupMember:
    """One member with a connection of its own, since a join blocks the connection it is sent on."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self.raw = RawClient(bootstrap)
        self.group, self.member_id, self.generation = group, "", -1

    def knock(self) -> None:
        """The first half of the two-step join: get an id."""
        self.send_join()
        answer = self.raw.receive()[1]
        assert answer.error_code == 79, "MEMBER_ID_REQUIRED"
        self.member_id = answer.member_id

    def send_join(self) -> None:
        self.raw.send(
            "join_group", 5, group_id=self.group, member_id=self.member_id, group_instance_id=None,
            session_timeout=10_000, rebalance_timeout=10_000,
            protocol_type="consumer", protocols=[{"name": "p", "metadata": b"m"}],
        )  # fmt: skip

    def joined(self) -> Any:
        answer = self.raw.receive()[1]
        assert (answer.error_code, answer.member_id) == (0, self.member_id)
        self.generation = answer.generation_id
        return answer

    def send_sync(self, *others: "_GroupMember") -> None:
        everyone = [{"member_id": each.member_id, "assignment": each.member_id.encode()} for each in others]
        self.raw.send(
            "sync_group", 3, group_id=self.group, generation_id=self.generation, member_id=self.member_id,
            group_instance_id=None, assignments=everyone,
        )  # fmt: skip

    def synced(self) -> tuple[int, bytes]:
        answer = self.raw.receive()[1]
        return int(answer.error_code), answer.assignment

    def heartbeat(self) -> int:
        answer = self.raw.ask(
            "heartbeat", 3, group_id=self.group, generation_id=self.generation, member_id=self.member_id,
            group_instance_id=None,
        )  # fmt: skip
        return int(answer.error_code)


@pytest.fixture
def members(bootstrap: str, unique: str, raw: RawClient):
    find_coordinator(raw, unique)
    three = [_GroupMember(bootstrap, unique) for _ in range(3)]
    yield three
    for member in three:
        member.raw.socket.close()


def test_members_survive_rebalances_that_overlap(members: list[_GroupMember]) -> None:
    a, b, c = members
    a.knock()
    a.send_join()
    assert a.joined().leader == a.member_id
    a.send_sync(a)
    assert a.synced() == (0, a.member_id.encode())
    assert a.heartbeat() == 0

    b.knock()
    b.send_join()
    _until_told_to_rejoin(a)
    a.send_join()
    assert {member.member_id for member in a.joined().members} == {a.member_id, b.member_id}
    assert b.joined().generation_id == a.generation

    b.send_sync()  # waits for the leader's assignment, which never comes: a third one knocks
    c.knock()
    c.send_join()
    assert b.synced()[0] == REBALANCE_IN_PROGRESS
    assert b.heartbeat() == REBALANCE_IN_PROGRESS
    a.send_sync(a, b)  # too late: it belongs to the generation before
    assert a.synced()[0] == REBALANCE_IN_PROGRESS
    assert a.heartbeat() == REBALANCE_IN_PROGRESS

    a.send_join()
    b.send_join()
    answers = [member.joined() for member in members]
    leader = next(member for member in members if member.member_id == answers[0].leader)
    assert len({answer.generation_id for answer in answers}) == 1
    known = {member.member_id for answer in answers for member in answer.members}
    assert known == {member.member_id for member in members}, "nobody was forgotten"
    for member in members:
        member.send_sync(*(members if member is leader else ()))
    assert [member.synced() for member in members] == [(0, member.member_id.encode()) for member in members]
    assert [member.heartbeat() for member in members] == [0, 0, 0]


def test_a_heartbeat_between_join_and_sync_keeps_the_member(members: list[_GroupMember]) -> None:
    a, b, _ = members
    for member in (a, b):
        member.knock()
        member.send_join()
    # Whether both came into the first generation or the second one restarted it, both end up in the same one.
    first = a.joined()
    if len(first.members) == 1:
        a.send_sync(a)
        a.synced()
        _until_told_to_rejoin(a)
        a.send_join()
        a.joined()
    b.joined()
    assert a.generation == b.generation
    assert b.heartbeat() == 0, "known, before anything was assigned"
    b.send_sync()
    a.send_sync(a, b)
    assert a.synced() == (0, a.member_id.encode())
    assert b.synced() == (0, b.member_id.encode())


def test_a_stranger_and_a_latecomer_are_told_apart(members: list[_GroupMember]) -> None:
    a, b, _ = members
    a.knock()
    a.send_join()
    a.joined()
    a.send_sync(a)
    a.synced()
    b.member_id, b.generation = "nobody", a.generation
    assert b.heartbeat() == UNKNOWN_MEMBER_ID
    a.generation += 1
    assert a.heartbeat() == ILLEGAL_GENERATION


def _until_told_to_rejoin(member: _GroupMember) -> None:
    deadline = time.monotonic() + 60
    while member.heartbeat() != REBALANCE_IN_PROGRESS:
        assert time.monotonic() < deadline, "nobody told the member that its group rebalances"
