"""Every API asks the authorizer before it does or tells anything: what for is in the table, in Kafka's own operations.

An API that is added without a row fails here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from clarion.broker.apis.authorized_operations import TOPIC_OPERATIONS
from clarion.broker.authorizer import ANONYMOUS, AllowEverything, Operation, Principal, ResourceKind
from clarion.broker.config import Durability
from clarion.broker.session import Sessions
from clarion.model.errors import ErrorCode
from clarion.wire.apis import APIS, SHARE_ACKNOWLEDGE, SHARE_APIS, SHARE_FETCH, SHARE_GROUP_HEARTBEAT, Api
from clarion.wire.messages import is_message
from clarion.wire.messages.share_groups import ShareFetchPartition, ShareFetchTopic
from tests.broker.harness import Node, running
from tests.broker.largest import Maker
from tests.broker.share_words import ShareConsumer
from tests.broker.talk import batch

QUICK = {
    "durability": Durability.PAGE_CACHE,
    "offsets_partitions": 1,
    "share_state_partitions": 1,
    "group_initial_rebalance_delay_ms": 0,
}
TOPIC, GROUP, CLUSTER = ResourceKind.TOPIC, ResourceKind.GROUP, ResourceKind.CLUSTER
NAMES = {TOPIC: "t", GROUP: "g", CLUSTER: "kafka-cluster"}
TOPIC_REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
GROUP_REFUSED = ErrorCode.GROUP_AUTHORIZATION_FAILED
CLUSTER_REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


class Row(NamedTuple):
    asks: set[tuple[Operation, ResourceKind]]
    refusal: ErrorCode | None  # None: nobody is refused, but is told less


READ, WRITE, CREATE, DELETE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE
ALTER, DESCRIBE = Operation.ALTER, Operation.DESCRIBE
DESCRIBE_CONFIGS, ALTER_CONFIGS = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS

ROWS = {
    "Produce": Row({(WRITE, TOPIC)}, TOPIC_REFUSED),
    "Fetch": Row({(READ, TOPIC)}, TOPIC_REFUSED),
    "ListOffsets": Row({(DESCRIBE, TOPIC)}, TOPIC_REFUSED),
    "Metadata": Row({(DESCRIBE, TOPIC)}, TOPIC_REFUSED),
    "OffsetCommit": Row({(READ, GROUP), (READ, TOPIC)}, GROUP_REFUSED),
    "OffsetFetch": Row({(DESCRIBE, GROUP), (DESCRIBE, TOPIC)}, GROUP_REFUSED),
    "FindCoordinator": Row({(DESCRIBE, GROUP)}, GROUP_REFUSED),
    "JoinGroup": Row({(READ, GROUP)}, GROUP_REFUSED),
    "Heartbeat": Row({(READ, GROUP)}, GROUP_REFUSED),
    "LeaveGroup": Row({(READ, GROUP)}, GROUP_REFUSED),
    "SyncGroup": Row({(READ, GROUP)}, GROUP_REFUSED),
    "DescribeGroups": Row({(DESCRIBE, GROUP)}, GROUP_REFUSED),
    "ListGroups": Row({(DESCRIBE, CLUSTER)}, None),
    "ApiVersions": Row(set(), None),
    "CreateTopics": Row({(CREATE, CLUSTER)}, TOPIC_REFUSED),
    "DeleteTopics": Row({(DELETE, TOPIC)}, TOPIC_REFUSED),
    "DeleteRecords": Row({(DELETE, TOPIC)}, TOPIC_REFUSED),
    "InitProducerId": Row({(Operation.IDEMPOTENT_WRITE, CLUSTER)}, CLUSTER_REFUSED),
    "OffsetForLeaderEpoch": Row({(DESCRIBE, TOPIC)}, TOPIC_REFUSED),
    "DescribeConfigs": Row({(DESCRIBE_CONFIGS, TOPIC)}, TOPIC_REFUSED),
    "AlterConfigs": Row({(ALTER_CONFIGS, TOPIC)}, TOPIC_REFUSED),
    "AlterReplicaLogDirs": Row({(ALTER, CLUSTER)}, CLUSTER_REFUSED),
    "DescribeLogDirs": Row({(DESCRIBE, CLUSTER)}, CLUSTER_REFUSED),
    "CreatePartitions": Row({(ALTER, TOPIC)}, TOPIC_REFUSED),
    "DeleteGroups": Row({(DELETE, GROUP)}, GROUP_REFUSED),
    "ElectLeaders": Row({(ALTER, CLUSTER)}, CLUSTER_REFUSED),
    "IncrementalAlterConfigs": Row({(ALTER_CONFIGS, TOPIC)}, TOPIC_REFUSED),
    "AlterPartitionReassignments": Row({(ALTER, CLUSTER)}, CLUSTER_REFUSED),
    "ListPartitionReassignments": Row({(DESCRIBE, CLUSTER)}, CLUSTER_REFUSED),
    "OffsetDelete": Row({(DELETE, GROUP), (READ, TOPIC)}, GROUP_REFUSED),
    "DescribeClientQuotas": Row({(DESCRIBE_CONFIGS, CLUSTER)}, CLUSTER_REFUSED),
    "DescribeQuorum": Row({(DESCRIBE, CLUSTER)}, CLUSTER_REFUSED),
    "UpdateFeatures": Row({(ALTER, CLUSTER)}, CLUSTER_REFUSED),
    "DescribeCluster": Row(set(), None),
    "DescribeProducers": Row({(READ, TOPIC)}, TOPIC_REFUSED),
    "UnregisterBroker": Row({(ALTER, CLUSTER)}, CLUSTER_REFUSED),
    "ConsumerGroupHeartbeat": Row({(READ, GROUP)}, GROUP_REFUSED),
    "ConsumerGroupDescribe": Row({(DESCRIBE, GROUP)}, GROUP_REFUSED),
    "ListConfigResources": Row({(DESCRIBE_CONFIGS, CLUSTER)}, CLUSTER_REFUSED),
    # It always tells which operations are allowed.
    "DescribeTopicPartitions": Row({(one, TOPIC) for one in TOPIC_OPERATIONS}, TOPIC_REFUSED),
    "ShareGroupHeartbeat": Row({(READ, GROUP), (DESCRIBE, TOPIC)}, GROUP_REFUSED),
    "ShareGroupDescribe": Row({(DESCRIBE, GROUP)}, GROUP_REFUSED),
    "ShareFetch": Row({(READ, GROUP), (READ, TOPIC)}, GROUP_REFUSED),
    "ShareAcknowledge": Row({(READ, GROUP), (READ, TOPIC)}, GROUP_REFUSED),
    # By the secret of their session, whatever anybody is allowed: there is no other broker here who would know one.
    "InitializeShareGroupState": Row(set(), CLUSTER_REFUSED),
    "ReadShareGroupState": Row(set(), CLUSTER_REFUSED),
    "WriteShareGroupState": Row(set(), CLUSTER_REFUSED),
    "DeleteShareGroupState": Row(set(), CLUSTER_REFUSED),
    "ReadShareGroupStateSummary": Row(set(), CLUSTER_REFUSED),
    "DescribeShareGroupOffsets": Row({(DESCRIBE, GROUP), (DESCRIBE, TOPIC)}, GROUP_REFUSED),
    "AlterShareGroupOffsets": Row({(READ, GROUP), (READ, TOPIC)}, GROUP_REFUSED),
    "DeleteShareGroupOffsets": Row({(DELETE, GROUP), (READ, TOPIC)}, GROUP_REFUSED),
}


class Recorder:
    """Allows what it is told to, and keeps what it was asked."""

    def __init__(self, *, allows: bool) -> None:
        self.asked: set[tuple[Operation, ResourceKind, str]] = set()
        self._allows = allows

    def allows(self, principal: Principal, operation: Operation, kind: ResourceKind, name: str) -> bool:
        assert principal == ANONYMOUS
        self.asked.add((operation, kind, name))
        return self._allows


GROUP_FIELDS = {"group_id", "groups", "groups_names", "group_ids", "key", "coordinator_keys"}
NUMBERS = {"resource_type": 2, "key_type": 0, "election_type": 0, "endpoint_type": 1, "match_type": 1}


class About(Maker):
    """A request of any API about topic `t`, its first partition, and group `g`."""

    def __init__(self, topic_id: UUID) -> None:
        super().__init__((), 1)
        self._topic_id = topic_id

    def _one(self, hint: Any, path: tuple[str, ...]) -> Any:
        if is_message(hint):
            return self.make(hint, path)
        if hint is UUID:
            return self._topic_id
        if hint is str:
            return "g" if path[-1] in GROUP_FIELDS else "user" if path[-1] == "entity_type" else "t"
        return NUMBERS.get(path[-1], 0) if hint is int else hint()


async def ask(node: Node, api: Api, topic_id: UUID) -> Any:
    match api.key:
        case 0:
            return await node.client.produce({("t", 0): batch(b"v")})
        case 1:
            return (await node.client.fetch({("t", 0): 0}, max_wait=0)).errors()
    request = About(topic_id).make(api.request)
    if api.name == "FindCoordinator":
        request = api.request(key_type=0, coordinator_keys=("g",))
    if api.name == "Metadata":
        request = api.request(topics=tuple(one.__class__(name="t", topic_id=UUID(int=0)) for one in request.topics))
    if api.name == "InitProducerId":
        request = api.request(transactional_id=None, transaction_timeout=1, producer_id=-1, producer_epoch=-1)
    if api.name == "OffsetFetch":
        (group,) = request.groups
        request = api.request(groups=(group.__class__(group_id="g", member_id=None, topics=group.topics),))
    if api.name == "DescribeTopicPartitions":
        request = api.request(topics=request.topics, response_partition_limit=1, cursor=None)
    if api.name == "DeleteTopics":
        (topic,) = request.topics
        request = replace(request, topics=(replace(topic, topic_id=UUID(int=0)),), topic_names=())
    if api.key in (SHARE_FETCH, SHARE_ACKNOWLEDGE):
        fetch = replace(
            About(topic_id).make(APIS[SHARE_FETCH].request),
            topics=(ShareFetchTopic(topic_id=topic_id, partitions=(ShareFetchPartition(partition_index=0),)),),
            max_records=1,
            max_bytes=1_000,
        )
        answer = await node.client.ask(fetch, APIS[SHARE_FETCH].max_version)
        if api.key == SHARE_FETCH:
            return answer
        request = replace(request, share_session_epoch=1)
    return await node.client.ask(request, api.max_version)


def codes_in(reply: Any) -> Iterator[int]:
    if isinstance(reply, dict):
        for one in reply.values():
            yield from codes_in(one)
    elif isinstance(reply, tuple | list):
        for one in reply:
            yield from codes_in(one)
    elif is_dataclass(reply):
        for field in fields(reply):
            value = getattr(reply, field.name)
            if field.name == "error_code":
                yield int(value)
            yield from codes_in(value)
    elif isinstance(reply, int):
        yield int(reply)


def test_every_api_has_its_row():
    assert {api.name for api in APIS.values()} == ROWS.keys()


@pytest.mark.parametrize("name", ROWS)
async def test_an_api_asks_for_what_it_does_and_refuses_who_may_not(tmp_path, name: str):
    (api,) = [one for one in APIS.values() if one.name == name]
    row = ROWS[name]
    async with running(tmp_path, **QUICK) as node:
        await node.topic()
        await node.broker.groups.runtime.ensure_topic()
        topic_id = node.broker.image.topics["t"].id
        if api.key in SHARE_APIS - {SHARE_GROUP_HEARTBEAT}:
            await (await ShareConsumer(node, node).join()).beat(-1)
        partitions = node.broker.image.partition_total
        node.broker.resolver.authorizer = Recorder(allows=False)
        codes = set(codes_in(await ask(node, api, topic_id)))
        assert row.refusal is None or row.refusal in codes
        assert (node.partition().next_offset, node.broker.image.partition_total) == (0, partitions), "nothing was done"
        allowing = node.broker.resolver.authorizer = Recorder(allows=True)
        await ask(node, api, topic_id)
        assert allowing.asked == {(operation, kind, NAMES[kind]) for operation, kind in row.asks}


async def test_groups_topics_and_operations_that_one_may_not_know_are_not_told(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic()
        await node.topic("secret")
        node.broker.resolver.authorizer = Only("t")
        metadata = APIS[3].request
        told = await node.ask(metadata(topics=None, include_topic_authorized_operations=True), 9)
        assert [(one.name, one.topic_authorized_operations) for one in told.topics] == [
            ("t", 1 << READ | 1 << DESCRIBE)
        ]
        page = await node.ask(APIS[75].request(topics=(), response_partition_limit=10, cursor=None), 0)
        assert [one.name for one in page.topics] == ["t"]


class Only:
    """Reading one topic is all that is allowed."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def allows(self, principal: Principal, operation: Operation, kind: ResourceKind, name: str) -> bool:
        return kind is TOPIC and name == self._topic and operation in (READ, DESCRIBE)


async def test_a_producer_that_was_understood_once_is_refused_as_soon_as_it_may_no_longer_write(tmp_path):
    """What was allowed a moment ago is remembered in a template, which ends with the permission."""
    async with running(tmp_path, **QUICK) as node:
        await node.topic()
        for _ in range(3):
            assert (await node.client.produce({("t", 0): batch(b"v")}))["t", 0].error_code == 0
        node.broker.resolver.authorizer = Only("t")
        assert (await node.client.produce({("t", 0): batch(b"v")}))["t", 0].error_code == TOPIC_REFUSED
        node.broker.resolver.authorizer = AllowEverything()
        assert (await node.client.produce({("t", 0): batch(b"v")}))["t", 0].error_code == 0
        assert node.partition().next_offset == 4


def test_templates_are_shared_by_the_connections_of_one_principal_and_by_nobody_else():
    clients, alice, bob = Sessions(), Principal("User", "alice"), Principal("User", "bob")
    assert clients.open(alice).templates is clients.open(alice).templates
    assert clients.open(alice).templates is not clients.open(bob).templates
    assert clients.open(alice).templates is not clients.open().templates


async def test_a_fetch_session_is_refused_as_soon_as_it_may_no_longer_read(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic()
        await node.client.produce({("t", 0): batch(b"v")})
        first = await node.client.fetch({("t", 0): 0}, session=(0, 0))
        assert (first.values(), first.session_id > 0) == ([b"v"], True)
        node.broker.resolver.authorizer = Only("other")
        later = await node.client.fetch({}, session=(first.session_id, 1), max_wait=0)
        assert later.errors() == {("t", 0): TOPIC_REFUSED}


async def test_the_fetch_session_of_one_is_not_for_another(tmp_path):
    async with running(tmp_path, **QUICK) as node, node.another() as other:
        await node.topic()
        first = await node.client.fetch({("t", 0): 0}, session=(0, 0), max_wait=0)
        session = node.broker.sessions._sessions[first.session_id]
        session.who = Principal("User", "alice")
        stolen = await other.fetch({}, session=(first.session_id, 1), max_wait=0)
        assert stolen.error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        await other.fetch({}, session=(first.session_id, -1), max_wait=0)
        assert first.session_id in node.broker.sessions._sessions, "nor for another to end"
