"""Settings that change while the broker runs. The answers are those of Apache Kafka 4.3 to the same requests."""

import asyncio
import threading

import pytest

from clarion.broker.config import Durability
from clarion.model.errors import ErrorCode
from clarion.model.group_settings import GROUP_SETTINGS
from clarion.model.setting_kinds import LONG_MAX
from clarion.wire.messages.configs import AlterableConfig as NewConfig
from clarion.wire.messages.configs import (
    AlterConfigsRequest,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    IncrementalConfigsResource,
)
from clarion.wire.messages.configs import AlterConfigsResource as NewConfigs
from clarion.wire.messages.groups import ConsumerGroupHeartbeatRequest
from tests.broker.disks import StoryDisk
from tests.broker.harness import Client, Node, running, until
from tests.broker.talk import batch

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
QUICK = {"durability": Durability.PAGE_CACHE}
ALL, ONE = "", "1"


async def alter(node: Node, kind: int, name: str, *changes: tuple[str, int, str | None], validate_only: bool = False):
    configs = tuple(IncrementalConfig(name=key, config_operation=what, value=value) for key, what, value in changes)
    resource = IncrementalConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=validate_only)
    (answer,) = (await node.ask(request, 1)).responses
    return answer.error_code, answer.error_message


async def told(node: Node, kind: int, name: str) -> dict:
    asked = DescribeConfigsResource(resource_type=kind, resource_name=name)
    request = DescribeConfigsRequest(resources=(asked,), include_synonyms=True)
    (result,) = (await node.ask(request, 4)).results
    assert result.error_code == 0, result.error_message
    return {config.name: config for config in result.configs}


def behind(config) -> list[tuple[str, str | None, int]]:
    return [(one.name, one.value, one.source) for one in config.synonyms]


# Brokers: what is told


async def test_a_topic_inherits_from_this_broker_then_from_all_then_from_the_start(tmp_path):
    async with running(tmp_path, topic_defaults={"max.message.bytes": "1000"}, **QUICK) as node:
        await node.topic("t")
        assert await alter(node, BROKER, ALL, ("log.retention.ms", SET, "2000000")) == (0, None)
        assert await alter(node, BROKER, ALL, ("message.max.bytes", SET, "3000")) == (0, None)
        assert await alter(node, BROKER, ONE, ("message.max.bytes", SET, "2000")) == (0, None)
        topic = await told(node, TOPIC, "t")
        assert behind(topic["retention.ms"]) == [("log.retention.ms", "2000000", 3), ("log.retention.hours", "168", 5)]
        assert behind(topic["max.message.bytes"]) == [
            ("message.max.bytes", "2000", 2),
            ("message.max.bytes", "3000", 3),
            ("message.max.bytes", "1000", 4),
            ("message.max.bytes", "1048588", 5),
        ]
        assert (topic["max.message.bytes"].value, topic["max.message.bytes"].config_source) == ("2000", 2)
        broker = await told(node, BROKER, ONE)
        assert (broker["message.max.bytes"].value, broker["message.max.bytes"].config_source) == ("2000", 2)
        assert behind(broker["log.retention.ms"]) == behind(topic["retention.ms"])
        everybody = await told(node, BROKER, ALL)
        assert {name: (one.value, one.config_source) for name, one in everybody.items()} == {
            "log.retention.ms": ("2000000", 3),
            "message.max.bytes": ("3000", 3),
        }
        assert behind(everybody["message.max.bytes"]) == [("message.max.bytes", "3000", 3)]


async def test_min_insync_replicas_of_a_topic_shows_where_it_comes_from(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t")
        assert (await told(node, TOPIC, "t"))["min.insync.replicas"].config_source == 5
        await alter(node, BROKER, ALL, ("min.insync.replicas", SET, "1"))
        assert behind((await told(node, TOPIC, "t"))["min.insync.replicas"]) == [
            ("min.insync.replicas", "1", 3),
            ("min.insync.replicas", "1", 5),
        ]


async def test_a_name_that_nobody_knows_is_kept_and_its_value_is_not_told(tmp_path):
    """As Kafka does: it may belong to a plugin, and be a password."""
    async with running(tmp_path, **QUICK) as node:
        for name in (ALL, ONE):
            assert await alter(node, BROKER, name, ("some.plugin", SET, "secret")) == (0, None)
        strange = (await told(node, BROKER, ONE))["some.plugin"]
        assert (strange.value, strange.is_sensitive, strange.read_only, strange.config_type) == (None, True, True, 0)
        assert behind(strange) == [("some.plugin", None, 2), ("some.plugin", None, 3)]
        assert (await told(node, BROKER, ALL))["some.plugin"].value is None


@pytest.mark.parametrize(
    ("name", "change", "code", "words"),
    [
        (ONE, ("num.partitions", SET, "3"), 42, "Cannot update these configs dynamically: [num.partitions]"),
        (ALL, ("num.partitions", SET, "3"), 42, "Cannot update these configs dynamically: [num.partitions]"),
        (ONE, ("log.retention.hours", SET, "1"), 42, "Cannot update these configs dynamically: [log.retention.hours]"),
        (ONE, ("log.retention.ms", SET, "x"), 42, "Invalid value x for configuration log.retention.ms: Not a number"),
        (ONE, ("log.cleanup.policy", SET, "burn"), 42, "String must be one of: compact, delete"),
        (ONE, ("log.retention.ms", SET, None), 42, "Null value not supported for : log.retention.ms"),
        (ONE, ("log.retention.ms", APPEND, "5"), 40, "log.retention.ms"),
        (ONE, ("max.connections", SET, "0"), 42, "Value must be at least 1"),
        ("99", ("log.retention.ms", SET, "5"), 42, "Unexpected broker id, expected 1, but received 99"),
        ("x", ("log.retention.ms", SET, "5"), 42, "Node id must be an integer, but it is: x"),
    ],
)
async def test_what_cannot_be_changed_is_refused_as_kafka_refuses_it(tmp_path, name, change, code, words):
    async with running(tmp_path, **QUICK) as node:
        refused, message = await alter(node, BROKER, name, change)
        assert refused == code
        assert words in message
        assert await told(node, BROKER, ALL) == {}


async def test_what_goes_with_no_topic_that_inherits_it_is_refused(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", max_compaction_lag_ms="1000")
        code, message = await alter(node, BROKER, ALL, ("log.cleaner.min.compaction.lag.ms", SET, "2000"))
        assert (code, "max.compaction.lag.ms" in message) == (42, True)


async def test_read_only_and_unknown_names_may_be_deleted_and_validation_changes_nothing(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        assert await alter(node, BROKER, ONE, ("num.partitions", DELETE, None)) == (0, None)
        assert await alter(node, BROKER, ONE, ("nonsense", DELETE, None)) == (0, None)
        assert await alter(node, BROKER, ONE, ("max.connections", SET, "5"), validate_only=True) == (0, None)
        assert (await told(node, BROKER, ONE))["max.connections"].config_source == 5


async def test_the_old_request_replaces_everything_that_was_changed(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await alter(node, BROKER, ALL, ("log.retention.ms", SET, "5000"), ("log.roll.ms", SET, "60000"))
        new = NewConfigs(
            resource_type=BROKER, resource_name=ALL, configs=(NewConfig(name="log.roll.ms", value="70000"),)
        )
        (answer,) = (await node.ask(AlterConfigsRequest(resources=(new,), validate_only=False), 2)).responses
        assert answer.error_code == 0
        assert {name: one.value for name, one in (await told(node, BROKER, ALL)).items()} == {"log.roll.ms": "70000"}


# Brokers: what changes


async def test_topics_take_up_a_new_default_unless_they_have_their_own(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic("inherits", 2)
        await node.topic("own", retention_ms="7")
        await alter(node, BROKER, ALL, ("log.retention.ms", SET, "5000"), ("log.segment.bytes", SET, "4096"))
        assert [
            one.settings.retention_ms for one in node.broker.partitions.of_topic(node.broker.image.topics["inherits"])
        ] == [5000, 5000]
        assert node.partition("inherits").log.config.segment_bytes == 4096
        assert node.partition("own").settings.retention_ms == 7
        await node.topic("later")
        assert node.partition("later").settings.retention_ms == 5000
        await alter(node, BROKER, ALL, ("log.retention.ms", DELETE, None))
        assert node.partition("inherits").settings.retention_ms == 604_800_000


async def test_a_smaller_message_limit_holds_at_once(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t")
        large = {("t", 0): batch(b"x" * 2000)}
        assert (await node.client.produce(large))["t", 0].error_code == 0
        await alter(node, BROKER, ONE, ("message.max.bytes", SET, "1000"))
        assert (await node.client.produce(large))["t", 0].error_code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize(
    ("name", "value", "refusal"),
    [
        ("min.insync.replicas", "2", ErrorCode.NOT_ENOUGH_REPLICAS),
        ("log.cleanup.policy", "compact", ErrorCode.INVALID_RECORD),
    ],
)
async def test_a_new_default_holds_for_a_producer_that_goes_on_as_before(tmp_path, name, value, refusal):
    async with running(tmp_path, **QUICK) as node, node.another() as producer:
        await node.topic()
        codes = [(await producer.produce({("t", 0): batch(b"v")}))["t", 0].error_code for _ in range(2)]
        assert await alter(node, BROKER, ALL, (name, SET, value)) == (0, None)
        codes += [(await producer.produce({("t", 0): batch(b"v")}))["t", 0].error_code]
        assert codes == [0, 0, refusal]


@pytest.mark.uncompiled
async def test_large_batches_are_compressed_anew_aside_for_a_producer_that_goes_on_as_before(tmp_path):
    async with running(tmp_path, **QUICK) as node, node.another() as producer:
        await node.topic()
        for _ in range(2):
            assert (await producer.produce({("t", 0): batch(b"v")}))["t", 0].error_code == 0
        assert await alter(node, BROKER, ALL, ("compression.type", SET, "gzip")) == (0, None)
        partition, threads = node.partition(), []
        preparation = partition.preparation

        def watched(records, budget):
            threads.append(threading.current_thread())
            return preparation(records, budget)

        partition.preparation = watched
        assert (await producer.produce({("t", 0): batch(bytes(900_000))}))["t", 0].error_code == 0
        assert threads != [threading.main_thread()]


async def test_a_list_is_edited_from_what_holds(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t")
        await alter(node, BROKER, ONE, ("log.cleanup.policy", APPEND, "compact"))
        assert node.partition().settings.cleanup_policy == ("delete", "compact")
        await alter(node, BROKER, ONE, ("log.cleanup.policy", SUBTRACT, "delete"))
        assert node.partition().settings.cleanup_policy == ("compact",)


async def test_the_number_of_connections_is_limited_anew(tmp_path):
    async with running(tmp_path, **QUICK) as node, node.another() as second:
        await second.fetch({})
        await alter(node, BROKER, ONE, ("max.connections", SET, "2"))
        third = await Client.connect(*node.server.addresses[0])
        assert await third.is_refused()
        third.close()
        assert (await second.fetch({})).error == 0, "who is there may stay"
        await alter(node, BROKER, ONE, ("max.connections", DELETE, None))
        async with node.another() as fourth:
            assert (await fourth.fetch({})).error == 0


async def test_changes_outlive_a_restart(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t")
        await alter(node, BROKER, ALL, ("log.retention.ms", SET, "5000"), ("max.connections", SET, "77"))
        await alter(node, BROKER, ONE, ("producer.id.expiration.ms", SET, "1234"))
    async with running(tmp_path, **QUICK) as node:
        assert node.partition().settings.retention_ms == 5000
        assert node.server.net.limits.connections_max == 77
        assert node.broker.config.producer_id_expiration_ms == 1234
        assert (await told(node, BROKER, ONE))["max.connections"].value == "77"


async def test_what_another_version_has_stored_and_this_one_cannot_read_keeps_nobody_from_starting(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t")
        await node.broker.settings.change("broker", ALL, lambda now: {"log.retention.ms": "a while"})
        await node.broker.settings.change("broker", ONE, lambda now: {"max.connections": "many"})
        await node.broker.settings.change("group", "g", lambda now: {"consumer.session.timeout.ms": "a while"})
    async with running(tmp_path, **QUICK) as node:
        assert node.partition().settings.retention_ms == 604_800_000
        assert (await told(node, TOPIC, "t"))["retention.ms"].value == "604800000"
        assert (await told(node, BROKER, ALL))["log.retention.ms"].value == "a while"
        assert (await told(node, GROUP, "g"))["consumer.session.timeout.ms"].value == "a while"


async def test_a_setting_that_can_no_longer_be_takes_no_other_with_it(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t")
        kept_for_ever, often = ("log.retention.ms", SET, "-1"), ("log.cleaner.max.compaction.lag.ms", SET, "1000")
        assert await alter(node, BROKER, ALL, kept_for_ever, often, ("message.max.bytes", SET, "3000")) == (0, None)
        assert await alter(node, BROKER, ONE, ("message.max.bytes", SET, "2000")) == (0, None)
        one = {**node.broker.settings.get("broker", ONE), "log.segment.bytes": "a few"}
        await node.broker.settings.change("broker", ONE, lambda _: one)  # as another version may have stored it
    async with running(tmp_path, topic_defaults={"log.cleaner.min.compaction.lag.ms": "5000"}, **QUICK) as node:
        settings = node.partition("t").settings
        assert settings.retention_ms == -1
        assert settings.max_message_bytes == 2000
        assert (settings.min_compaction_lag_ms, settings.max_compaction_lag_ms) == (5000, LONG_MAX)
        assert settings.segment_bytes == 1 << 30


async def test_of_changes_at_the_same_time_none_is_lost_and_the_last_one_holds(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        for number in range(30):
            await node.topic(f"t{number}", segment_ms=str(1000 + number))
        clients = [await Client.connect(*node.server.addresses[0]) for _ in range(5)]
        names = [
            "log.retention.ms",
            "log.roll.jitter.ms",
            "log.segment.bytes",
            "message.max.bytes",
            "log.retention.bytes",
        ]

        async def change(client: Client, name: str, value: str) -> None:
            configs = (IncrementalConfig(name=name, config_operation=SET, value=value),)
            resource = IncrementalConfigsResource(resource_type=BROKER, resource_name=ALL, configs=configs)
            request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
            (answer,) = (await client.ask(request, 1)).responses
            assert answer.error_code == 0

        for value in ("50000", "60000"):
            await asyncio.gather(*(change(*each, value) for each in zip(clients, names, strict=True)))
        settings = node.partition("t7").settings
        assert settings.segment_ms == 1007
        assert {settings.retention_ms, settings.segment_bytes, settings.max_message_bytes} == {60_000}
        for client in clients:
            client.close()


async def test_a_topic_that_is_made_meanwhile_inherits_what_holds_in_the_end(tmp_path):
    disk = StoryDisk()
    async with running(tmp_path, disk=disk, **QUICK) as node:
        await node.topic("t")
        opening, go_on = threading.Event(), threading.Event()

        def wait_here(path: str) -> None:
            if "slow-0" in path:
                opening.set()
                go_on.wait(10)

        disk.on_open = wait_here
        making = asyncio.ensure_future(node.topic("slow"))
        await until(opening.is_set)  # what it inherits is decided, and its files are being made
        changing = asyncio.ensure_future(alter(node, BROKER, ALL, ("log.retention.ms", SET, "5000")))
        async with node.another() as client:
            assert (await client.fetch({})).error == 0  # the change has had time to come before the topic
        go_on.set()
        await making
        assert await changing == (0, None)
        assert node.partition("slow").settings.retention_ms == node.partition("t").settings.retention_ms == 5000


# Groups


async def heartbeat(node: Node, group: str = "g", epoch: int = 0):
    request = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id="m",
        member_epoch=epoch,
        subscribed_topic_names=("t",) if epoch == 0 else None,
        rebalance_timeout=1000 if epoch == 0 else -1,
        topic_partitions=() if epoch == 0 else None,
    )
    return await node.ask(request, 1)


async def test_a_group_has_kafkas_settings_and_their_defaults(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        listed = await told(node, GROUP, "nobody knows it")
        assert len(listed) == 17
        assert {one.config_source for one in listed.values()} == {5}
        assert behind(listed["consumer.session.timeout.ms"]) == [("group.consumer.session.timeout.ms", "45000", 5)]
        assert behind(listed["share.auto.offset.reset"]) == [("share.auto.offset.reset", "latest", 5)]


async def test_members_hear_a_groups_own_times_with_their_next_heartbeat(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t")
        first = await heartbeat(node)
        assert (first.error_code, first.heartbeat_interval) == (0, 5000)
        changes = [("consumer.heartbeat.interval.ms", SET, "9000"), ("consumer.session.timeout.ms", SET, "50000")]
        assert await alter(node, GROUP, "g", *changes) == (0, None)
        assert (await heartbeat(node, epoch=first.member_epoch)).heartbeat_interval == 9000
        assert (await heartbeat(node, "other")).heartbeat_interval == 5000
        listed = await told(node, GROUP, "g")
        assert behind(listed["consumer.session.timeout.ms"]) == [
            ("consumer.session.timeout.ms", "50000", 8),
            ("group.consumer.session.timeout.ms", "45000", 5),
        ]
        assert listed["consumer.session.timeout.ms"].config_source == 8
    async with running(tmp_path, **QUICK) as node:
        await until(lambda: node.server.groups.shards and not any(one.is_loading for one in node.server.groups.shards))
        assert (await heartbeat(node, epoch=first.member_epoch)).heartbeat_interval == 9000
        assert await alter(node, GROUP, "g", *((name, DELETE, None) for name, _, _ in changes)) == (0, None)
        assert (await heartbeat(node, epoch=first.member_epoch)).heartbeat_interval == 5000


@pytest.mark.parametrize(
    ("name", "change", "code", "words"),
    [
        ("g", ("nonsense", SET, "1"), 40, "Unknown group config name: nonsense"),
        ("", ("consumer.session.timeout.ms", SET, "50000"), 42, "Default group resources are not allowed."),
        ("g", ("consumer.session.timeout.ms", SET, "x"), 40, "Not a number of type INT"),
        (
            "g",
            ("consumer.session.timeout.ms", SET, "1"),
            40,
            "consumer.session.timeout.ms must be greater than or equal to group.consumer.min.session.timeout.ms",
        ),
        (
            "g",
            ("consumer.heartbeat.interval.ms", SET, "60000"),
            40,
            "consumer.heartbeat.interval.ms must be less than or equal to group.consumer.max.heartbeat.interval.ms",
        ),
        (
            "g",
            ("consumer.heartbeat.interval.ms", APPEND, "1"),
            40,
            "Can't APPEND to key consumer.heartbeat.interval.ms",
        ),
        ("g" * 9000, ("consumer.session.timeout.ms", SET, "50000"), 24, "longer than"),
    ],
)
async def test_a_groups_setting_that_cannot_be_is_refused(tmp_path, name, change, code, words):
    async with running(tmp_path, **QUICK) as node:
        refused, message = await alter(node, GROUP, name, change)
        assert refused == code
        assert words in message
        assert node.broker.settings.names("group") == []


async def test_a_broker_with_short_times_of_its_own_lets_groups_have_them_too(tmp_path):
    async with running(tmp_path, group_consumer_session_timeout_ms=6000, **QUICK) as node:
        assert await alter(node, GROUP, "g", ("consumer.session.timeout.ms", SET, "6000")) == (0, None)
        assert await alter(node, GROUP, "g", ("nonsense", DELETE, None)) == (0, None)


def test_every_default_of_a_group_is_legal():
    for name, declared in GROUP_SETTINGS.items():
        text = str(declared.default).lower() if declared.kind == 1 else str(declared.default)
        assert declared.read(text) == declared.default, name


# Clients' metrics


async def test_a_subscription_to_clients_metrics_is_kept(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        listed = await told(node, CLIENT_METRICS, "m")
        assert {name: (one.value, one.config_source, one.config_type) for name, one in listed.items()} == {
            "interval.ms": ("300000", 5, 3),
            "match": ("", 5, 7),
            "metrics": ("", 5, 7),
        }
        changes = [("interval.ms", SET, "1000"), ("match", SET, "client_id=a.*"), ("metrics", SET, "org.apache.kafka")]
        assert await alter(node, CLIENT_METRICS, "m", *changes) == (0, None)
        listed = await told(node, CLIENT_METRICS, "m")
        assert behind(listed["match"]) == [("match", "client_id=a.*", 7)]
    async with running(tmp_path, **QUICK) as node:
        assert (await told(node, CLIENT_METRICS, "m"))["interval.ms"].value == "1000"


@pytest.mark.parametrize(
    ("name", "change", "code", "words"),
    [
        ("m", ("nonsense", SET, "a"), 42, "Unknown client metrics configuration: nonsense"),
        ("", ("metrics", SET, "a"), 42, "Subscription name can't be empty"),
        ("m", ("metrics", APPEND, "b"), 40, "Can't APPEND to key metrics because its type is not LIST."),
        ("m", ("match", SET, "client_id=["), 40, "Illegal client matching pattern: client_id=["),
        ("m", ("match", SET, "foo=a"), 40, "Illegal client matching pattern: foo=a"),
        ("m", ("interval.ms", SET, "x"), 40, "Invalid value x for configuration interval.ms: Not a number of type INT"),
        ("m", ("interval.ms", SET, "1"), 42, "interval must be between 100 and 3600000 (1 hour)"),
    ],
)
async def test_a_subscription_that_cannot_be_is_refused(tmp_path, name, change, code, words):
    async with running(tmp_path, **QUICK) as node:
        refused, message = await alter(node, CLIENT_METRICS, name, change)
        assert refused == code
        assert words in message
