"""The load on a cluster: where topics are placed, how pauses are counted, and frames that find their leaders."""

from __future__ import annotations

import pytest
from bench.frames import ClusterState, PartitionState
from bench.load import LoadFailed, run_job
from bench.load.cluster import ClusterAdmin, brokers_known_at, is_led_without, is_placed, is_replicated, rotated
from bench.load.failover import Acknowledged
from bench.peers.cluster import KafkaCluster
from bench.rows.cluster import CONNECTIONS

from clarion.testing import cluster


def test_every_broker_leads_a_third_and_a_connection_has_one_leader():
    for partitions in (3, 100, 1000):
        placed = rotated(partitions)
        assert all(sorted(replicas) == [1, 2, 3] for replicas in placed)
        for line in range(CONNECTIONS):
            assert len({placed[one][0] for one in range(line % partitions, partitions, CONNECTIONS)}) == 1
        led = [sum(replicas[0] == broker for replicas in placed) for broker in (1, 2, 3)]
        assert max(led) - min(led) <= 1


@pytest.mark.parametrize(
    ("leader", "in_sync", "placed", "replicated"),
    [(1, (1, 2, 3), True, True), (2, (1, 2, 3), False, True), (1, (1, 2), False, False), (-1, (), False, False)],
)
def test_a_topic_is_ready_when_led_as_placed_and_in_sync(leader, in_sync, placed, replicated):
    others = {1: PartitionState(0, 2, (1, 2, 3)), 2: PartitionState(0, 3, (1, 2, 3))}
    state = ClusterState({1: 1, 2: 2, 3: 3}, 0, {0: PartitionState(0, leader, in_sync)} | others)
    assert is_placed(state, 3) is placed
    assert is_replicated(state) is replicated


@pytest.mark.parametrize(
    ("leader", "in_sync", "is_so"), [(2, (2, 3), True), (2, (1, 2, 3), False), (1, (1, 2, 3), False), (-1, (2,), False)]
)
def test_others_have_taken_over_when_they_lead_all_and_count_without_the_dead(leader, in_sync, is_so):
    others = {1: PartitionState(0, 2, (2, 3)), 2: PartitionState(0, 3, (3,))}
    state = ClusterState({2: 2, 3: 3}, 0, {0: PartitionState(0, leader, in_sync)} | others)
    assert is_led_without(state, 1) is is_so


def test_a_topic_that_nobody_has_heard_of_is_not_replicated():
    assert not is_replicated(ClusterState({1: 1}, 3, {}))


def test_the_longest_pause_since_the_kill_counts_of_the_worst_partition():
    heard = Acknowledged({0: 0.0, 3: 0.0})
    heard.note(0, 9.0)  # before the kill: not a pause of the failover
    heard.begin(10.0)
    assert not heard.all_since(10.0)
    for partition, now in ((0, 10.1), (0, 10.9), (0, 11.0), (3, 12.5)):
        heard.note(partition, now)
    assert heard.pauses == {0: pytest.approx(0.8), 3: 2.5}
    assert heard.all_since(10.5)
    assert not heard.all_since(11.0)


def test_kafkas_brokers_form_one_quorum_and_replicate_everything(tmp_path):
    members = KafkaCluster(tmp_path / "data", fsync=True).members
    settings = [member.settings() for member in members]
    assert [one["node.id"] for one in settings] == ["1", "2", "3"]
    (voters,) = {one["controller.quorum.voters"] for one in settings}
    assert [voter.partition("@")[0] for voter in voters.split(",")] == ["1", "2", "3"]
    for one in settings:
        assert {value for name, value in one.items() if name.endswith("replication.factor")} == {"3"}
        assert {value for name, value in one.items() if name.endswith(("min.isr", "insync.replicas"))} == {"2"}
        assert one["log.flush.interval.messages"] == "1"
        assert "controller.quorum.bootstrap.servers" not in one


def test_load_is_routed_to_leaders_and_every_message_is_counted_at_them():
    with cluster(brokers=3) as brokers:
        address = ("127.0.0.1", int(brokers.bootstrap.split(",")[0].rpartition(":")[2]))
        assert brokers_known_at(address) == 3
        admin = ClusterAdmin(address)
        admin.create("orders")
        assert len(set(admin.leaders("orders"))) == 3
        bounds = {"dialect": "clarion", "port": address[1], "pids": [], "topic": "orders", "partitions": 3}
        figures = run_job(
            "produce", is_cluster=True, acks=-1, connections=CONNECTIONS, seconds=60.0, bytes_max=3_000_000, **bounds
        )
        frames = int(figures["requests"]) + CONNECTIONS
        assert admin.messages("orders") == frames * 63
        with pytest.raises(LoadFailed, match="several leaders"):
            run_job("produce", is_cluster=True, acks=-1, connections=1, **bounds)
        admin.close()


def test_a_broker_that_is_not_there_knows_nobody():
    assert brokers_known_at(("127.0.0.1", 1)) == 0
