import pytest

from clarion.broker.limits import Limits
from clarion.model.errors import ErrorCode
from clarion.model.ids import NO_TOPIC_ID
from clarion.model.topic_settings import TOPIC_SETTINGS
from clarion.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from tests.broker.harness import Node, running, versions_of


def wanted(
    name: str, partitions: int = 1, replicas: int = 1, assigned: dict[int, tuple[int, ...]] | None = None, **configs
):
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=tuple(
            CreatableReplicaAssignment(partition_index=index, broker_ids=ids) for index, ids in (assigned or {}).items()
        ),
        configs=tuple(CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()),
    )


async def create(node: Node, *topics: CreatableTopic, version: int = 7, validate_only: bool = False):
    request = CreateTopicsRequest(topics=topics, validate_only=validate_only)
    return (await node.ask(request, version)).topics


async def refusal(node: Node, topic: CreatableTopic) -> ErrorCode:
    (result,) = await create(node, topic)
    assert result.error_message
    assert node.broker.image.topic(topic.name) is None
    return ErrorCode(result.error_code)


@pytest.mark.parametrize("version", versions_of("CreateTopics"))
async def test_every_version_makes_a_topic(tmp_path, version):
    async with running(tmp_path) as node:
        (result,) = await create(node, wanted("t", 3, retention_ms="1000"), version=version)
        assert (result.name, result.error_code, result.error_message) == ("t", 0, None)
        made = node.broker.image.topics["t"]
        assert (made.partition_count, made.overrides) == (3, {"retention.ms": "1000"})
        assert node.partition("t", 2)
        if version >= 5:
            assert (result.num_partitions, result.replication_factor) == (3, 1)
            told = {config.name: config for config in result.configs}
            assert told.keys() == TOPIC_SETTINGS.keys()
            assert (told["retention.ms"].value, told["retention.ms"].config_source) == ("1000", 1)
        if version >= 7:
            assert result.topic_id == made.id


async def test_minus_one_means_the_default(tmp_path):
    async with running(tmp_path, num_partitions=5, default_replication_factor=2) as node:
        assert node.broker.registry.default_replication_factor == 2
        (result,) = await create(node, wanted("t", -1, -1))
        assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 5, 1)


async def test_validate_only_changes_nothing(tmp_path):
    async with running(tmp_path) as node:
        await node.topic("there")
        good, bad, taken = await create(
            node, wanted("t"), wanted("u", retention_ms="soon"), wanted("there"), validate_only=True
        )
        assert (good.error_code, good.topic_id, good.num_partitions) == (0, NO_TOPIC_ID, 1)
        assert bad.error_code == ErrorCode.INVALID_CONFIG
        assert taken.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert list(node.broker.image.topics) == ["there"]


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (wanted("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (wanted("t", 0), ErrorCode.INVALID_PARTITIONS),
        (wanted("t", -2), ErrorCode.INVALID_PARTITIONS),
        (wanted("t", 10_000_000), ErrorCode.POLICY_VIOLATION),
        (wanted("t", replicas=2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (wanted("t", replicas=0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (wanted("t", assigned={0: (1,)}), ErrorCode.INVALID_REQUEST),
        (wanted("t", -1, -1, assigned={0: (2,)}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (wanted("t", -1, -1, assigned={0: ()}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (wanted("t", -1, -1, assigned={0: (1, 1)}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (wanted("t", -1, -1, assigned={1: (1,)}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (wanted("t", retention_ms="soon"), ErrorCode.INVALID_CONFIG),
        (wanted("t", retention_ms=None), ErrorCode.INVALID_CONFIG),
        (wanted("t", no_such_setting="1"), ErrorCode.INVALID_CONFIG),
        (wanted("__consumer_offsets"), ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (wanted("__cluster_metadata"), ErrorCode.INVALID_REQUEST),
        (wanted("__transaction_state"), ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (wanted("__share_group_state"), ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ],
)
async def test_what_cannot_be_is_refused_with_a_reason(tmp_path, topic, code):
    async with running(tmp_path) as node:
        assert await refusal(node, topic) is code


@pytest.mark.parametrize("validate_only", [False, True])
@pytest.mark.parametrize(
    "otherwise_wrong",
    [{"replicas": 3}, {"partitions": 0}, {"no_such_setting": "1"}, {"assigned": {0: (7,)}}, {"retention_ms": "soon"}],
)
async def test_that_a_topic_exists_is_said_before_anything_else_is_checked(tmp_path, validate_only, otherwise_wrong):
    """Kafka Connect asks for replication factor 3 and takes TOPIC_ALREADY_EXISTS to mean that all is well."""
    async with running(tmp_path) as node:
        await node.topic("t")
        (result,) = await create(node, wanted("t", **otherwise_wrong), validate_only=validate_only)
        assert result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert result.error_message == "Topic 't' already exists."


async def test_settings_are_checked_before_replicas(tmp_path):
    async with running(tmp_path) as node:
        assert await refusal(node, wanted("t", replicas=3, retention_ms="soon")) is ErrorCode.INVALID_CONFIG
        assert await refusal(node, wanted("a/b", replicas=3, retention_ms="soon")) is ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_assignments_may_name_this_node(tmp_path):
    async with running(tmp_path) as node:
        (result,) = await create(node, wanted("t", -1, -1, assigned={1: (1,), 0: (1,)}))
        assert (result.error_code, result.num_partitions) == (0, 2)


async def test_one_bad_topic_does_not_harm_the_others(tmp_path):
    async with running(tmp_path) as node:
        bad, good = await create(node, wanted("bad", 0), wanted("good"))
        assert bad.error_code == ErrorCode.INVALID_PARTITIONS
        assert good.error_code == 0
        assert node.broker.image.topic("good") is not None


async def test_a_name_that_comes_twice_is_refused_once(tmp_path):
    async with running(tmp_path) as node:
        first, other = await create(node, wanted("t"), wanted("other"), wanted("t"))
        assert (first.name, first.error_code) == ("t", ErrorCode.INVALID_REQUEST)
        assert (other.name, other.error_code) == ("other", 0)


async def test_a_topic_outlives_a_restart(tmp_path):
    async with running(tmp_path) as node:
        (result,) = await create(node, wanted("t", 2, cleanup_policy="compact"))
    async with running(tmp_path) as node:
        topic = node.broker.image.topics["t"]
        assert (topic.id, topic.partition_count) == (result.topic_id, 2)
        assert node.partition("t", 1).settings.is_compacted


async def test_one_request_makes_so_many_partitions_and_a_topic_has_so_many(tmp_path):
    limits = Limits(request_partitions_max=10, topic_partitions_max=8)
    async with running(tmp_path, limits=limits, default_partitions=3) as node:
        for topics in (
            [wanted("t", 11)],
            [wanted("t", 6), wanted("u", 5)],
            [wanted("t", 8), wanted("u", -1)],
            [wanted("t", -1, -1, dict.fromkeys(range(9), (1,))), wanted("u", 2)],
        ):
            results = await create(node, *topics)
            assert {one.error_code for one in results} == {ErrorCode.POLICY_VIOLATION}, topics
        assert await refusal(node, wanted("t", 9)) is ErrorCode.INVALID_PARTITIONS
        assert [one.error_code for one in await create(node, wanted("t", 7), wanted("u", -1))] == [0, 0]


async def test_a_few_bytes_do_not_make_tens_of_thousands_of_partitions(tmp_path):
    """With the limits that a broker has by itself."""
    async with running(tmp_path) as node:
        for topic in (wanted("t", 20_000), wanted("t", 2**31 - 1)):
            assert await refusal(node, topic) is ErrorCode.POLICY_VIOLATION
        assert not [one for one in tmp_path.iterdir() if one.name.startswith("t-")]
