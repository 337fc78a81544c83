"""Kafka's own share consumer (Java) and kafka-share-groups find a broker that serves queues."""

import re

import pytest

from tests.kafka_tools.conftest import Tool

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]  # each starts several JVMs


def begin_at_the_start(tool: Tool, group: str, **more: str) -> None:
    settings = {"share.auto.offset.reset": "earliest", **more}
    told = ",".join(f"{name}={value}" for name, value in settings.items())
    tool("configs", "--alter", "--entity-type", "groups", "--entity-name", group, "--add-config", told)


def consume(tool: Tool, topic: str, group: str, count: int, *more: str) -> list[str]:
    """What the console's share consumer gets until it has so many, or nothing comes any more."""
    limits = ("--max-messages", str(count), "--timeout-ms", "60000")
    said = tool("console-share-consumer", "--topic", topic, "--group", group, *limits, *more)
    return said.splitlines()


def test_records_are_shared_accepted_released_and_rejected(tool: Tool, unique: str) -> None:
    tool("topics", "--create", "--topic", unique, "--partitions", "1")
    begin_at_the_start(tool, unique, **{"share.delivery.count.limit": "2"})
    tool("console-producer", "--topic", unique, stdin="one\ntwo\nthree\n")
    shown = ("--formatter-property", "print.delivery=true", "--formatter-property", "print.offset=true")
    first = consume(tool, unique, unique, 3, "--release", *shown)
    assert sorted(line.split()[-1] for line in first) == ["one", "three", "two"]
    again = consume(tool, unique, unique, 3, *shown)
    assert sorted(line.split()[-1] for line in again) == ["one", "three", "two"]
    assert all("Delivery:2" in line for line in again), again
    described = tool("share-groups", "--describe", "--group", unique)
    (row,) = re.findall(rf"^{unique}\s+{unique}\s+0\s+(\d+)\s+(\d+)", described, re.MULTILINE)
    assert row == ("3", "0"), described


@pytest.mark.campaign
def test_share_groups_are_listed_described_moved_and_deleted(tool: Tool, unique: str) -> None:
    tool("topics", "--create", "--topic", unique, "--partitions", "2")
    begin_at_the_start(tool, unique)
    tool("console-producer", "--topic", unique, stdin="one\ntwo\n")
    assert sorted(consume(tool, unique, unique, 2)) == ["one", "two"]
    assert unique in tool("share-groups", "--list")
    assert "Empty" in tool("share-groups", "--describe", "--group", unique, "--state")
    which = ("--group", unique, "--topic", unique)
    moved = tool("share-groups", "--reset-offsets", *which, "--to-earliest", "--execute")
    assert re.search(rf"{unique}\s+{unique}\s+0\s+0", moved), moved
    assert sorted(consume(tool, unique, unique, 2)) == ["one", "two"]
    tool("share-groups", "--delete-offsets", *which)
    tool("share-groups", "--delete", "--group", unique)
    assert unique not in tool("share-groups", "--list")
