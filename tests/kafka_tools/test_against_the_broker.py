"""kafka-topics and its sisters find the broker they expect. A JVM takes a second or two, so each test is a story."""

import json
import re
from pathlib import Path

import pytest

from tests.kafka_tools.conftest import Tool
from tests.waiting import wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]  # each starts several JVMs


def test_topics_are_created_listed_described_altered_and_deleted(tool: Tool, unique: str) -> None:
    assert "Created topic" in tool(
        "topics", "--create", "--topic", unique, "--partitions", "2", "--config", "retention.ms=3600000"
    )
    tool("topics", "--alter", "--topic", unique, "--partitions", "3")
    described = tool("topics", "--describe", "--topic", unique)
    assert re.search(r"PartitionCount: 3\s+ReplicationFactor: 1\s+Configs: \S*retention.ms=3600000", described)
    assert re.search(r"TopicId: [\w-]{22}\b", described)
    assert len(re.findall(r"Partition: \d\s+Leader: 1\s+Replicas: 1\s+Isr: 1", described)) == 3
    assert unique in tool("topics", "--list").splitlines()
    tool("topics", "--delete", "--topic", unique)
    wait_for(lambda: unique not in tool("topics", "--list").splitlines(), what="the topic to be gone")


def test_configs_are_described_and_altered(tool: Tool, unique: str) -> None:
    which = ("--entity-type", "topics", "--entity-name", unique)
    tool("topics", "--create", "--topic", unique, "--config", "retention.ms=3600000")
    assert "retention.ms=3600000" in tool("configs", "--describe", *which)
    changes = ("--add-config", "max.message.bytes=2000000", "--delete-config", "retention.ms")
    assert "Completed updating" in tool("configs", "--alter", *which, *changes)
    assert re.search(
        r"max.message.bytes=2000000 sensitive=false synonyms=\{DYNAMIC_TOPIC_CONFIG",
        tool("configs", "--describe", *which),
    )
    everything = tool("configs", "--describe", "--all", *which)
    assert "  retention.ms=604800000 sensitive=false" in everything
    for name in (
        "cleanup.policy=delete",
        "compression.type=producer",
        "segment.bytes=1073741824",
        "min.insync.replicas=1",
    ):
        assert f"  {name} sensitive=false" in everything


@pytest.mark.campaign
def test_settings_of_brokers_groups_metrics_and_loggers_change_at_run_time(tool: Tool, unique: str) -> None:
    everybody = ("--entity-type", "brokers", "--entity-default")
    try:
        assert "Completed updating" in tool("configs", "--alter", *everybody, "--add-config", "log.roll.ms=77777777")
        assert "log.roll.ms=77777777 sensitive=false synonyms={DYNAMIC_DEFAULT_BROKER_CONFIG" in tool(
            "configs", "--describe", *everybody
        )
    finally:
        tool("configs", "--alter", *everybody, "--delete-config", "log.roll.ms")
    group = ("--entity-type", "groups", "--entity-name", unique)
    tool("configs", "--alter", *group, "--add-config", "consumer.session.timeout.ms=50000")
    described = tool("configs", "--describe", *group)
    assert "consumer.session.timeout.ms=50000 sensitive=false synonyms={DYNAMIC_GROUP_CONFIG" in described
    metrics = ("--entity-type", "client-metrics", "--entity-name", unique)
    tool("configs", "--alter", *metrics, "--add-config", "interval.ms=5000,metrics=org.apache.kafka")
    assert "interval.ms=5000" in tool("configs", "--describe", *metrics)
    loggers = ("--entity-type", "broker-loggers", "--entity-name", "1")
    tool("configs", "--alter", *loggers, "--add-config", "clarion.cluster=ERROR")
    assert "clarion.cluster=ERROR" in tool("configs", "--describe", *loggers)


@pytest.mark.campaign
def test_elections_moves_and_votes_find_the_one_node_in_order(tool: Tool, unique: str) -> None:
    tool("topics", "--create", "--topic", unique)
    elected = tool("leader-election", "--election-type", "preferred", "--topic", unique, "--partition", "0")
    assert f"Valid replica already elected for partitions {unique}-0" in elected
    assert "No partition reassignments found." in tool("reassign-partitions", "--list")
    status = tool("metadata-quorum", "describe", "--status")
    assert re.search(r"LeaderId:\s+1\b", status)
    tool("console-producer", "--topic", unique, stdin="one\n")
    producers = tool("transactions", "describe-producers", "--topic", unique, "--partition", "0")
    assert re.search(r"^\d+\s+0\s+-1\s+0\s+\d+\s+None", producers, re.MULTILINE)


def test_console_producer_and_consumer_pass_messages_and_the_group_tool_sees_and_moves_the_group(
    tool: Tool, unique: str
) -> None:
    group = f"{unique}-group"
    tool("topics", "--create", "--topic", unique, "--partitions", "3")
    keyed = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    tool("console-producer", "--topic", unique, *keyed, stdin="a:1\nb:2\nc:3\n")
    consume = ("--topic", unique, "--group", group, "--from-beginning", "--timeout-ms", "60000", "--max-messages", "3")
    found = tool("console-consumer", *consume, "--formatter-property", "print.key=true")
    assert {line for line in found.splitlines() if "\t" in line} == {"a\t1", "b\t2", "c\t3"}
    assert group in tool("consumer-groups", "--list").splitlines()
    assert sum(_committed(tool("consumer-groups", "--describe", "--group", group), group).values()) == 3
    tool("consumer-groups", "--reset-offsets", "--group", group, "--topic", unique, "--to-earliest", "--execute")
    assert set(_committed(tool("consumer-groups", "--describe", "--group", group), group).values()) == {0}
    state = tool("consumer-groups", "--describe", "--group", group, "--state")
    assert re.search(r"\bEmpty\b", state)
    assert "successful" in tool("consumer-groups", "--delete", "--group", group)


def test_the_new_group_protocol_works_for_the_java_consumer(tool: Tool, unique: str) -> None:
    """The Java client subscribes by KIP-848's heartbeat, and the group tool describes it by key 69."""
    tool("console-producer", "--topic", unique, stdin="one\ntwo\n")
    command = ("--topic", unique, "--group", unique, "--from-beginning", "--max-messages", "2", "--timeout-ms", "60000")
    found = tool("console-consumer", *command, "--command-property", "group.protocol=consumer")
    assert {"one", "two"} <= set(found.splitlines())
    assert sum(_committed(tool("consumer-groups", "--describe", "--group", unique), unique).values()) == 2


def test_the_java_producer_with_its_defaults_is_acknowledged_and_offsets_are_told(
    tool: Tool, unique: str, tmp_path: Path
) -> None:
    """Its defaults are idempotence and acks=all."""
    report = tool("verifiable-producer", "--topic", unique, "--max-messages", "100")
    events = [json.loads(line) for line in report.splitlines() if line.startswith("{")]
    acknowledged = [event["offset"] for event in events if event["name"] == "producer_send_success"]
    assert sorted(acknowledged) == list(range(100))
    assert tool("get-offsets", "--topic", unique).split() == [f"{unique}:0:100"]
    assert tool("get-offsets", "--topic", unique, "--time", "earliest").split() == [f"{unique}:0:0"]
    plan = tmp_path / "delete.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": unique, "partition": 0, "offset": 40}]}))
    assert "low_watermark: 40" in tool("delete-records", "--offset-json-file", str(plan))
    assert tool("get-offsets", "--topic", unique, "--time", "-2").split() == [f"{unique}:0:40"]
    (newest,) = tool("get-offsets", "--topic", unique, "--time", "max-timestamp").split()
    assert 40 <= int(newest.rpartition(":")[2]) < 100


def test_log_dirs_and_api_versions_are_told(tool: Tool, unique: str) -> None:
    tool("console-producer", "--topic", unique, stdin="x\n")
    told = json.loads(tool("log-dirs", "--describe", "--topic-list", unique).splitlines()[-1])
    ((directory,),) = [broker["logDirs"] for broker in told["brokers"]]
    assert directory["error"] is None
    assert [(log["partition"], log["size"] > 0) for log in directory["partitions"]] == [(f"{unique}-0", True)]
    versions = tool("broker-api-versions")
    assert re.search(r"Produce\(0\): 0 to \d+ \[usable: \d+\]", versions)
    assert re.search(r"Fetch\(1\): 4 to \d+ \[usable: \d+\]", versions)


def _committed(description: str, group: str) -> dict[tuple[str, str], int]:
    """Committed offset by topic and partition, out of the tool's table."""
    rows = (line.split() for line in description.splitlines() if line.startswith(group + " "))
    return {(row[1], row[2]): int(row[3]) for row in rows}
