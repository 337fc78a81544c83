import asyncio

import pytest

from clarion.model.errors import ErrorCode
from clarion.wire.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    IncrementalConfigsResource,
)
from tests.broker.harness import Client, Node, running, versions_of

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


def resource(name: str, changes: list[tuple[str, int, str | None]], kind: int = TOPIC) -> IncrementalConfigsResource:
    configs = tuple(IncrementalConfig(name=key, config_operation=what, value=value) for key, what, value in changes)
    return IncrementalConfigsResource(resource_type=kind, resource_name=name, configs=configs)


async def alter(
    node: Node | Client, *resources: IncrementalConfigsResource, version: int = 1, validate_only: bool = False
):
    request = IncrementalAlterConfigsRequest(resources=resources, validate_only=validate_only)
    return (await node.ask(request, version)).responses


@pytest.mark.parametrize("version", versions_of("IncrementalAlterConfigs"))
async def test_every_version_sets_deletes_appends_and_subtracts(tmp_path, version):
    async with running(tmp_path) as node:
        await node.topic("t", retention_ms="1000", segment_bytes="4096")
        changes = [("retention.ms", DELETE, None), ("segment.ms", SET, "60000"), ("cleanup.policy", APPEND, "compact")]
        (result,) = await alter(node, resource("t", changes), version=version)
        assert (result.error_code, result.error_message, result.resource_name) == (0, None, "t")
        assert node.broker.image.topics["t"].overrides == {
            "segment.bytes": "4096",
            "segment.ms": "60000",
            "cleanup.policy": "delete,compact",
        }
        await alter(node, resource("t", [("cleanup.policy", SUBTRACT, "delete")]), version=version)
        assert node.partition("t", 0).settings.cleanup_policy == ("compact",)


async def test_validate_only_changes_nothing(tmp_path):
    async with running(tmp_path) as node:
        await node.topic("t")
        (result,) = await alter(node, resource("t", [("retention.ms", SET, "5")]), validate_only=True)
        assert result.error_code == 0
        assert node.broker.image.topics["t"].overrides == {}


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (resource("t", [("retention.ms", SET, "soon")]), ErrorCode.INVALID_CONFIG),
        (resource("t", [("retention.ms", SET, None)]), ErrorCode.INVALID_REQUEST),
        (resource("t", [("cleanup.policy", APPEND, None)]), ErrorCode.INVALID_REQUEST),
        (resource("t", [("no.such.setting", SET, "1")]), ErrorCode.INVALID_CONFIG),
        (resource("t", [("no.such.setting", APPEND, "1")]), ErrorCode.INVALID_CONFIG),
        (resource("t", [("retention.ms", APPEND, "1")]), ErrorCode.INVALID_CONFIG),
        (resource("t", [("retention.ms", 9, "1")]), ErrorCode.INVALID_REQUEST),
        (resource("t", [("compression.type", SET, "brotli")]), ErrorCode.INVALID_CONFIG),
        (resource("t", [("retention.ms", SET, "1"), ("retention.ms", DELETE, None)]), ErrorCode.INVALID_REQUEST),
        (resource("", [("retention.ms", SET, "1")]), ErrorCode.INVALID_REQUEST),
        (resource("nowhere", []), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (resource("1", [("num.partitions", SET, "2")], BROKER), ErrorCode.INVALID_REQUEST),
    ],
)
async def test_one_bad_resource_does_not_harm_the_others(tmp_path, bad, code):
    async with running(tmp_path) as node:
        await node.topic("t")
        await node.topic("good")
        refused, done = await alter(node, bad, resource("good", [("retention.ms", SET, "7")]))
        assert (refused.error_code, done.error_code) == (code, 0)
        assert refused.error_message
        assert node.broker.image.topics["t"].overrides == {}
        assert node.broker.image.topics["good"].overrides == {"retention.ms": "7"}


async def test_a_setting_that_nobody_knows_may_be_deleted(tmp_path):
    """MirrorMaker 2 copies a topic's settings, and deletes on the target whatever the source does not have."""
    async with running(tmp_path) as node:
        await node.topic("t", segment_bytes="4096")
        changes = [("no.such.setting", DELETE, None), ("retention.ms", SET, "5"), ("segment.bytes", DELETE, "4096")]
        (result,) = await alter(node, resource("t", changes))
        assert (result.error_code, result.error_message) == (0, None)
        assert node.broker.image.topics["t"].overrides == {"retention.ms": "5"}


async def test_of_changes_at_the_same_time_none_is_lost(tmp_path):
    names = ["retention.ms", "segment.ms", "segment.bytes", "retention.bytes", "max.message.bytes"]
    async with running(tmp_path) as node:
        await node.topic("t")
        clients = [await Client.connect(*node.server.addresses[0]) for _ in names]
        await asyncio.gather(
            *(alter(client, resource("t", [(name, SET, "50000")])) for client, name in zip(clients, names, strict=True))
        )
        assert node.broker.image.topics["t"].overrides == dict.fromkeys(names, "50000")
        for client in clients:
            client.close()
