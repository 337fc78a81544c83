"""Kafka's tools move partitions, elect leaders, look at features and forget brokers of a cluster of three."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clarion.testing import EmbeddedCluster, cluster
from tests.kafka_tools.conftest import Tool, tool_for

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]  # it starts several JVMs


def replicas(brokers: EmbeddedCluster) -> tuple[int, ...]:
    return brokers._state("t", 0).replicas


@pytest.mark.campaign
def test_partitions_move_throttled_leaders_are_elected_and_brokers_forgotten(
    offline_tool: Tool, tmp_path: Path
) -> None:
    with cluster(brokers=3) as brokers:
        brokers[1]._run(lambda broker: broker.create_topic("t", 1, {}, 2, [(1, 2)]))
        brokers.leader_of("t")
        brokers[1].produce("t", "a message that moves")
        tool = tool_for(brokers.bootstrap)
        plan = tmp_path / "plan.json"
        plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [2, 3]}]}))
        which = ("--reassignment-json-file", str(plan))
        said = tool("reassign-partitions", *which, "--execute", "--throttle", "50000000")
        assert "Successfully started partition reassignment for t-0" in said
        brokers.wait_for(lambda: replicas(brokers) == (2, 3), 60)
        brokers.wait_until_in_sync("t")
        assert brokers[1]._call(lambda broker: broker.config.leader_throttled_rate) == 50_000_000
        assert brokers[1]._call(lambda broker: dict(broker.image.topics["t"].overrides)) == {
            "leader.replication.throttled.replicas": "0:1,0:2",
            "follower.replication.throttled.replicas": "0:3",
        }
        said = tool("reassign-partitions", *which, "--verify")
        assert "Reassignment of partition t-0 is completed." in said
        brokers.wait_for(lambda: not brokers[1]._call(lambda broker: broker.image.topics["t"].overrides), 60)
        assert [int(one.offset) for one in brokers.messages("t")] == [0]
        assert "No partition reassignments found." in tool("reassign-partitions", "--list")
        elected = tool("leader-election", "--election-type", "preferred", "--topic", "t", "--partition", "0")
        assert "t-0" in elected
        assert brokers.leader_of("t") == 2
        (ours,) = [line for line in tool("features", "describe").splitlines() if "clarion.version" in line]
        assert "FinalizedVersionLevel: 1" in ours
        brokers.stop(1)
        brokers.wait_for(lambda: 1 not in brokers._image(2).brokers, 60)
        left = ",".join(brokers[number].bootstrap for number in (2, 3))
        said = offline_tool("cluster", "unregister", "--bootstrap-server", left, "--id", "1")
        assert "Broker 1 is no longer registered." in said
