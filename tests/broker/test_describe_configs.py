import pytest

from clarion.broker.config import ListenerConfig
from clarion.model.errors import ErrorCode
from clarion.model.topic_settings import TOPIC_SETTINGS
from clarion.wire.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from tests.broker.harness import Node, running, versions_of

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
FROM_TOPIC, FROM_BROKER, DEFAULT = 1, 4, 5


async def describe(
    node: Node, kind: int, name: str, version: int = 4, keys: list[str] | None = None, *, synonyms=False, docs=False
):
    asked = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=None if keys is None else tuple(keys)
    )
    request = DescribeConfigsRequest(resources=(asked,), include_synonyms=synonyms, include_documentation=docs)
    (result,) = (await node.ask(request, version)).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


def by_name(result) -> dict:
    assert (result.error_code, result.error_message) == (0, None)
    return {config.name: config for config in result.configs}


@pytest.mark.parametrize("version", versions_of("DescribeConfigs"))
async def test_every_version_lists_every_setting_with_value_and_source(tmp_path, version):
    async with running(tmp_path, topic_defaults={"segment.bytes": "5000"}) as node:
        await node.topic("t", retention_ms="1000")
        told = by_name(await describe(node, TOPIC, "t", version))
        assert told.keys() == TOPIC_SETTINGS.keys()
        assert (told["retention.ms"].value, told["retention.ms"].config_source) == ("1000", FROM_TOPIC)
        assert (told["segment.bytes"].value, told["segment.bytes"].config_source) == ("5000", FROM_BROKER)
        assert (told["max.message.bytes"].value, told["max.message.bytes"].config_source) == ("1048588", DEFAULT)
        assert not any(config.is_sensitive or config.read_only for config in told.values())
        assert all(config.synonyms == () for config in told.values())
        if version >= 3:
            assert told["retention.ms"].config_type == 5
            assert told["retention.ms"].documentation is None


async def test_synonyms_tell_what_stands_behind_a_value(tmp_path):
    async with running(tmp_path, topic_defaults={"retention.ms": "2000"}) as node:
        await node.topic("t", retention_ms="1000")
        told = by_name(await describe(node, TOPIC, "t", synonyms=True))
        assert [(one.name, one.value, one.source) for one in told["retention.ms"].synonyms] == [
            ("retention.ms", "1000", FROM_TOPIC),
            ("log.retention.ms", "2000", FROM_BROKER),
            ("log.retention.hours", "168", DEFAULT),
        ]
        assert told["segment.ms"].synonyms == (), "log.roll.ms has no default: log.roll.hours has"
        assert [(one.name, one.source) for one in told["segment.bytes"].synonyms] == [("log.segment.bytes", DEFAULT)]


async def test_documentation_and_single_settings_come_when_asked_for(tmp_path):
    async with running(tmp_path) as node:
        await node.topic("t")
        told = by_name(await describe(node, TOPIC, "t", keys=["retention.ms", "nonsense"], docs=True))
        assert list(told) == ["retention.ms"]
        assert "kept" in told["retention.ms"].documentation
        assert by_name(await describe(node, TOPIC, "t", keys=[])).keys() == TOPIC_SETTINGS.keys()


async def test_the_broker_tells_its_own_settings_by_kafkas_names(tmp_path):
    listeners = (ListenerConfig(port=0, advertised_host="broker.example", advertised_port=99),)
    async with running(tmp_path, listeners=listeners, default_partitions=7, node_id=3) as node:
        told = by_name(await describe(node, BROKER, "3", synonyms=True, docs=True))
        values = {name: config.value for name, config in told.items()}
        assert values["num.partitions"] == "7"
        assert values["advertised.listeners"] == "PLAINTEXT://broker.example:99"
        assert values["log.dirs"] == str(tmp_path)
        assert values["message.max.bytes"] == "1048588"
        assert (values["log.retention.ms"], values["log.retention.hours"]) == (None, "168")
        assert values["auto.create.topics.enable"] == "true"
        assert values["min.insync.replicas"] == "1"
        assert told["num.partitions"].config_source == FROM_BROKER
        assert told["auto.create.topics.enable"].config_source == DEFAULT
        assert all(config.documentation and config.config_type for config in told.values())
        assert told["num.partitions"].read_only
        assert not told["log.retention.ms"].read_only
        assert list(told) == sorted(told)


async def test_nothing_was_changed_for_all_brokers_at_run_time(tmp_path):
    async with running(tmp_path) as node:
        assert by_name(await describe(node, BROKER, "")) == {}


async def test_many_topics_in_one_request_are_all_told_and_repetitions_once(tmp_path):
    async with running(tmp_path) as node:
        names = [f"t{number}" for number in range(150)]
        for number, name in enumerate(names):
            await node.topic(name, retention_ms=str(1000 + number % 3))
        resources = [DescribeConfigsResource(resource_type=TOPIC, resource_name=name) for name in names]
        request = DescribeConfigsRequest(resources=tuple(resources * 2), include_synonyms=False)
        results = (await node.ask(request, 4)).results
        assert [result.resource_name for result in results] == names
        values = [by_name(result)["retention.ms"].value for result in results]
        assert values == [str(1000 + number % 3) for number in range(150)]


async def test_a_request_for_too_many_resources_gets_an_error_for_those_that_are_too_many(tmp_path):
    async with running(tmp_path) as node:
        resources = [DescribeConfigsResource(resource_type=GROUP, resource_name=f"g{n}") for n in range(10_002)]
        results = (
            await node.ask(DescribeConfigsRequest(resources=tuple(resources), include_synonyms=False), 4)
        ).results
        assert [result.error_code for result in results[9_999:]] == [0, *[ErrorCode.INVALID_REQUEST] * 2]


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "nowhere", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "a/b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "2", ErrorCode.INVALID_REQUEST),
        (BROKER, "one", ErrorCode.INVALID_REQUEST),
        (BROKER_LOGGER, "", ErrorCode.INVALID_REQUEST),
        (BROKER_LOGGER, "2", ErrorCode.INVALID_REQUEST),
        (GROUP, "", ErrorCode.INVALID_REQUEST),
        (CLIENT_METRICS, "", ErrorCode.INVALID_REQUEST),
        (99, "t", ErrorCode.INVALID_REQUEST),
    ],
)
async def test_what_does_not_exist_is_an_error_with_a_reason(tmp_path, kind, name, code):
    async with running(tmp_path) as node:
        result = await describe(node, kind, name)
        assert (result.error_code, result.configs) == (code, ())
        assert result.error_message
