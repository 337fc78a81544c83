import asyncio
import errno
from uuid import uuid4

import pytest

from clarion.broker.auto_creation import AutoCreation
from clarion.broker.config import ListenerConfig
from clarion.broker.limits import Limits
from clarion.model.errors import ErrorCode
from clarion.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.broker.disks import StoryDisk
from tests.broker.harness import Client, Node, running, versions_of

ALL = None
NEWEST = 13


async def ask(node: Node | Client, names: list[str] | None, version: int = NEWEST, **more):
    topics = None if names is None else tuple(MetadataRequestTopic(name=name) for name in names)
    return await node.ask(MetadataRequest(topics=topics, **more), version)


@pytest.mark.parametrize("version", versions_of("Metadata"))
async def test_every_version_tells_brokers_topics_and_leaders(tmp_path, version):
    async with running(tmp_path) as node:
        await node.topic("orders", 3)
        reply = await ask(node, ["orders"], version)
        (broker,) = reply.brokers
        assert (broker.node_id, broker.host, broker.port) == (1, *node.server.addresses[0])
        (topic,) = reply.topics
        assert (topic.error_code, topic.name, topic.is_internal) == (0, "orders", False)
        assert [one.partition_index for one in topic.partitions] == [0, 1, 2]
        assert {(one.leader_id, one.replica_nodes, one.isr_nodes) for one in topic.partitions} == {(1, (1,), (1,))}
        if version >= 1:
            assert reply.controller_id == 1
        if version >= 2:
            assert reply.cluster_id == node.broker.image.cluster_id
        if version >= 7:
            assert {one.leader_epoch for one in topic.partitions} == {node.partition("orders").leader_epoch}
        if version >= 10:
            assert topic.topic_id == node.broker.image.topics["orders"].id


@pytest.mark.parametrize("version", versions_of("Metadata"))
async def test_all_topics_are_asked_for_with_null_and_in_version_0_with_an_empty_list(tmp_path, version):
    async with running(tmp_path) as node:
        await node.topic("a")
        await node.topic("b")
        reply = await ask(node, [] if version == 0 else ALL, version)
        assert sorted(topic.name for topic in reply.topics) == ["a", "b"]
        if version:
            assert (await ask(node, [], version)).topics == ()


async def test_a_topic_comes_into_being_by_being_asked_for(tmp_path):
    async with running(tmp_path, default_partitions=4) as node:
        (topic,) = (await ask(node, ["fresh"])).topics
        assert (topic.error_code, len(topic.partitions)) == (0, 4)
        assert node.partition("fresh", 3)


async def test_auto_creation_needs_the_consent_of_client_and_broker(tmp_path):
    async with running(tmp_path / "a") as node:
        (topic,) = (await ask(node, ["fresh"], allow_auto_topic_creation=False)).topics
        assert (topic.error_code, topic.name) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "fresh")
    async with running(tmp_path / "b", auto_create_topics=False) as node:
        for version in versions_of("Metadata"):
            (topic,) = (await ask(node, ["fresh"], version)).topics
            assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert len(node.broker.image.topics) == 0


async def test_clients_that_ask_for_one_new_topic_at_the_same_time_all_get_it(tmp_path):
    async with running(tmp_path) as node:
        clients = [await Client.connect(*node.server.addresses[0]) for _ in range(8)]
        replies = await asyncio.gather(*(ask(client, ["fresh"]) for client in clients))
        assert [reply.topics[0].error_code for reply in replies] == [0] * 8
        assert len({reply.topics[0].topic_id for reply in replies}) == 1
        for client in clients:
            client.close()


async def test_one_request_makes_so_many_topics_and_the_client_asks_again_for_the_rest(tmp_path):
    names = [f"t{number}" for number in range(3_000)]
    async with running(tmp_path, limits=Limits(auto_created_per_request_max=20)) as node:
        reply = await ask(node, ["..", *names, "__consumer_offsets"])
        codes = {topic.name: topic.error_code for topic in reply.topics}
        assert codes.pop("..") == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert codes.pop("__consumer_offsets") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [codes[name] for name in names[:20]] == [0] * 20
        assert {codes[name] for name in names[20:]} == {ErrorCode.LEADER_NOT_AVAILABLE}
        assert len(node.broker.image.topics) == 20
        reply = await ask(node, names[:40])
        assert [topic.error_code for topic in reply.topics] == [0] * 40


def test_all_requests_together_make_so_many_per_second():
    permits = AutoCreation(per_request=100, per_second=50)
    assert [permits.take(80, 1000.0), permits.take(80, 1000.0), permits.take(1, 1000.0)] == [80, 20, 0]
    assert permits.take(80, 1000.5) == 25
    assert permits.take(500, 2000.0) == 100, "what nobody used is kept for two seconds"
    assert permits.take(1, 2000.01) == 0
    assert permits.take(1, 2000.03) == 1, "parts of a permit add up"


async def test_a_name_that_no_topic_can_have_is_told_apart(tmp_path):
    async with running(tmp_path) as node:
        names = ["", ".", "a/b", "x" * 250]
        reply = await ask(node, names)
        assert [topic.name for topic in reply.topics] == names
        assert {topic.error_code for topic in reply.topics} == {ErrorCode.INVALID_TOPIC_EXCEPTION}


@pytest.mark.parametrize(
    ("name", "is_internal"),
    [
        ("__consumer_offsets", True),
        ("__transaction_state", True),
        ("__share_group_state", True),
        ("__cluster_metadata", False),
    ],
)
async def test_a_topic_of_the_broker_is_not_made_by_asking_for_it(tmp_path, name, is_internal):
    async with running(tmp_path) as node:
        (topic,) = (await ask(node, [name])).topics
        assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert topic.is_internal == is_internal


async def test_a_topic_that_no_longer_fits_is_unknown_and_harms_nobody(tmp_path):
    async with running(tmp_path, default_partitions=300_000) as node:
        (topic,) = (await ask(node, ["huge"])).topics
        assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await ask(node, ALL)).topics == ()


async def test_topics_are_found_by_id_from_version_12_on(tmp_path):
    async with running(tmp_path) as node:
        await node.topic("orders")
        known, unknown = node.broker.image.topics["orders"].id, uuid4()
        request = MetadataRequest(topics=(MetadataRequestTopic(topic_id=known), MetadataRequestTopic(topic_id=unknown)))
        found, missing = (await node.ask(request, 12)).topics
        assert (found.error_code, found.name, found.topic_id) == (0, "orders", known)
        assert (missing.error_code, missing.topic_id, missing.name) == (ErrorCode.UNKNOWN_TOPIC_ID, unknown, None)
        for topic in (await node.ask(request, 11)).topics:
            assert topic.error_code == ErrorCode.INVALID_REQUEST


async def test_a_topic_without_name_and_id_is_refused(tmp_path):
    async with running(tmp_path) as node:
        (topic,) = (await node.ask(MetadataRequest(topics=(MetadataRequestTopic(),)), 12)).topics
        assert topic.error_code == ErrorCode.INVALID_REQUEST


async def test_a_topic_that_is_named_twice_is_told_once(tmp_path):
    async with running(tmp_path) as node:
        assert len((await ask(node, ["a", "a"])).topics) == 1


@pytest.mark.parametrize("version", range(8, 14))
async def test_authorized_operations_are_told_when_asked_for(tmp_path, version):
    async with running(tmp_path) as node:
        await node.topic("t")
        reply = await ask(
            node,
            ["t"],
            version,
            include_topic_authorized_operations=True,
            include_cluster_authorized_operations=True,
        )
        assert reply.topics[0].topic_authorized_operations == 3576  # what Kafka says without an authorizer
        assert reply.topics[0].error_code == 0
        if version <= 10:
            assert reply.cluster_authorized_operations == 8096
        reply = await ask(node, ["t"], version)
        assert reply.topics[0].topic_authorized_operations == -(2**31)
        assert reply.cluster_authorized_operations == -(2**31)


async def test_each_listener_tells_its_own_advertised_address(tmp_path):
    listeners = (
        ListenerConfig(port=0),
        ListenerConfig(port=0, advertised_host="broker.example", advertised_port=1234),
    )
    async with running(tmp_path, listeners=listeners) as node:
        outside = await Client.connect(*node.server.addresses[1])
        (broker,) = (await ask(outside, ALL)).brokers
        assert (broker.host, broker.port) == ("broker.example", 1234)
        (broker,) = (await ask(node, ALL)).brokers
        assert (broker.host, broker.port) == tuple(node.server.addresses[0])
        outside.close()


async def test_a_change_shows_at_once(tmp_path):
    async with running(tmp_path) as node:
        await node.topic("t")
        assert len((await ask(node, ["t"])).topics[0].partitions) == 1
        await node.broker.grow_topic("t", 3)
        assert len((await ask(node, ["t"])).topics[0].partitions) == 3
        await node.broker.delete_topic("t")
        assert (await ask(node, ALL)).topics == ()


async def test_a_topic_that_cannot_be_made_and_is_asked_for_again_and_again_does_not_fill_the_log(tmp_path, caplog):
    disk = StoryDisk()
    async with running(tmp_path, disk=disk) as node:
        disk.on_open = lambda path: OSError(errno.ENOSPC, "No space left on device") if "wanted-" in path else None
        for _ in range(30):
            reply = await ask(node, ["wanted"])
            assert reply.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        lines = [line.getMessage() for line in caplog.records]
        assert lines.count("topic_not_created") == 10
        assert "disk_error" not in lines, "the same once more"
        disk.on_open = lambda path: None
        assert (await ask(node, ["wanted"])).topics[0].error_code == 0
