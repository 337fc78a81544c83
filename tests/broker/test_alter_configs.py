import pytest

from clarion.model.errors import ErrorCode
from clarion.wire.messages.configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
from tests.broker.harness import Node, running, versions_of

TOPIC, BROKER, BROKER_LOGGER, GROUP = 2, 4, 8, 32


def resource(name: str, settings: list[tuple[str, str | None]], kind: int = TOPIC) -> AlterConfigsResource:
    configs = tuple(AlterableConfig(name=key, value=value) for key, value in settings)
    return AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)


async def alter(node: Node, *resources: AlterConfigsResource, version: int = 2, validate_only: bool = False):
    request = AlterConfigsRequest(resources=resources, validate_only=validate_only)
    return (await node.ask(request, version)).responses


@pytest.mark.parametrize("version", versions_of("AlterConfigs"))
async def test_every_version_replaces_all_settings(tmp_path, version):
    async with running(tmp_path) as node:
        await node.topic("t", retention_ms="1000")
        (result,) = await alter(node, resource("t", [("segment.bytes", "4096")]), version=version)
        assert (result.error_code, result.error_message) == (0, None)
        assert (result.resource_type, result.resource_name) == (TOPIC, "t")
        assert node.broker.image.topics["t"].overrides == {"segment.bytes": "4096"}
        assert node.partition("t", 0).log.config.segment_bytes == 4096


async def test_an_empty_list_brings_every_default_back(tmp_path):
    async with running(tmp_path) as node:
        await node.topic("t", retention_ms="1000")
        await alter(node, resource("t", []))
        assert node.broker.image.topics["t"].overrides == {}


async def test_validate_only_changes_nothing(tmp_path):
    async with running(tmp_path) as node:
        await node.topic("t")
        good, bad = await alter(
            node, resource("t", [("retention.ms", "5")]), resource("u", [("retention.ms", "x")]), validate_only=True
        )
        assert (good.error_code, bad.error_code) == (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        assert node.broker.image.topics["t"].overrides == {}


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (resource("t", [("retention.ms", "soon")]), ErrorCode.INVALID_CONFIG),
        (resource("t", [("no.such.setting", "1")]), ErrorCode.INVALID_CONFIG),
        (resource("t", [("retention.ms", None)]), ErrorCode.INVALID_REQUEST),
        (resource("t", [("retention.ms", "1"), ("retention.ms", "2")]), ErrorCode.INVALID_REQUEST),
        (resource("t", [(f"s{number}", "1") for number in range(1_000)]), ErrorCode.INVALID_REQUEST),
        (resource("nowhere", []), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (resource("1", [("num.partitions", "2")], BROKER), ErrorCode.INVALID_REQUEST),
        (resource("", [], GROUP), ErrorCode.INVALID_REQUEST),
        (resource("1", [("root", "DEBUG")], BROKER_LOGGER), ErrorCode.INVALID_REQUEST),
        (resource("t", [], 99), ErrorCode.INVALID_REQUEST),
    ],
)
async def test_one_bad_resource_does_not_harm_the_others(tmp_path, bad, code):
    async with running(tmp_path) as node:
        await node.topic("t", retention_ms="1000")
        await node.topic("good")
        refused, done = await alter(node, bad, resource("good", [("retention.ms", "7")]))
        assert (refused.error_code, done.error_code) == (code, 0)
        assert refused.error_message
        assert node.broker.image.topics["t"].overrides == {"retention.ms": "1000"}
        assert node.broker.image.topics["good"].overrides == {"retention.ms": "7"}


async def test_a_resource_that_is_named_twice_stays_as_it_is(tmp_path):
    async with running(tmp_path) as node:
        await node.topic("t")
        results = await alter(node, resource("t", [("retention.ms", "1")]), resource("t", [("retention.ms", "2")]))
        assert [result.error_code for result in results] == [ErrorCode.INVALID_REQUEST] * 2
        assert node.broker.image.topics["t"].overrides == {}


async def test_what_groups_have_committed_cannot_be_put_at_risk(tmp_path):
    async with running(tmp_path) as node:
        await node.topic("__consumer_offsets", cleanup_policy="compact")
        for policy in ("delete", "compact,delete"):
            (result,) = await alter(node, resource("__consumer_offsets", [("cleanup.policy", policy)]))
            assert result.error_code == ErrorCode.INVALID_CONFIG
        (result,) = await alter(
            node, resource("__consumer_offsets", [("cleanup.policy", "compact"), ("segment.bytes", "4096")])
        )
        assert result.error_code == 0
