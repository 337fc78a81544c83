from clarion.model.errors import ErrorCode
from clarion.wire.messages.configs import ListConfigResourcesRequest
from tests.broker.harness import Node, running

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32


async def ask(node: Node, version: int, *types: int) -> list[tuple[int, str]]:
    reply = await node.ask(ListConfigResourcesRequest(resource_types=types), version)
    assert reply.error_code == 0
    return [(one.resource_type, one.resource_name) for one in reply.config_resources]


async def test_version_0_asks_for_client_metrics_and_there_are_none(tmp_path):
    async with running(tmp_path) as node:
        await node.topic("t")
        assert await ask(node, 0) == []


async def test_version_1_lists_the_types_that_are_asked_for(tmp_path):
    async with running(tmp_path) as node:
        await node.topic("t")
        await node.topic("u")
        assert await ask(node, 1) == [(TOPIC, "t"), (TOPIC, "u"), (BROKER, "1"), (BROKER_LOGGER, "1")]
        assert await ask(node, 1, TOPIC) == [(TOPIC, "t"), (TOPIC, "u")]
        assert await ask(node, 1, BROKER, BROKER) == [(BROKER, "1")]
        assert await ask(node, 1, GROUP, CLIENT_METRICS) == []


async def test_groups_and_subscriptions_are_listed_when_somebody_has_set_something(tmp_path):
    async with running(tmp_path) as node:
        await node.broker.settings.change("group", "g", lambda now: {"consumer.session.timeout.ms": "50000"})
        await node.broker.settings.change("client-metrics", "m", lambda now: {"metrics": "*"})
        assert await ask(node, 0) == [(CLIENT_METRICS, "m")]
        assert await ask(node, 1, GROUP, CLIENT_METRICS) == [(CLIENT_METRICS, "m"), (GROUP, "g")]


async def test_a_type_that_nobody_knows_is_refused(tmp_path):
    async with running(tmp_path) as node:
        reply = await node.ask(ListConfigResourcesRequest(resource_types=(TOPIC, 77)), 1)
        assert (reply.error_code, reply.config_resources) == (ErrorCode.UNSUPPORTED_VERSION, ())
