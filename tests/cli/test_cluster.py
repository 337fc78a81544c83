"""`clarion cluster` against three brokers in this process."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from clarion.cli.cluster import ClusterView, PartitionView, sentences
from clarion.cli.cluster_moves import MovingPartition, plan, without_leaving
from clarion.cli.cluster_watch import screen
from clarion.cluster.events import ClusterEvent
from clarion.testing import EmbeddedCluster, cluster
from tests.broker.test_tls import signed_certificates
from tests.cli.conftest import Shell
from tests.servers import ClarionProcess


@pytest.fixture(scope="module")
def brokers() -> Iterator[EmbeddedCluster]:
    with cluster(brokers=3, topics={"orders": 3}) as made:
        made.wait_until_in_sync("orders")
        yield made


@pytest.fixture
def clarion(brokers: EmbeddedCluster) -> Shell:
    return Shell(",".join(brokers[number].bootstrap for number in brokers.running))


def test_brokers_and_partitions_are_listed(brokers: EmbeddedCluster, clarion: Shell):
    listed = json.loads(clarion("cluster", "brokers", "--json").out)
    assert [(one["id"], one["address"]) for one in listed] == [(n, brokers[n].bootstrap) for n in (1, 2, 3)]
    assert sum(one["controller"] for one in listed) == 1
    assert sum(one["leads"] for one in listed) == 3
    assert [one["replicas"] for one in listed] == [3, 3, 3]
    partitions = json.loads(clarion("cluster", "partitions", "--topic", "orders", "--json").out)
    assert [(one["partition"], sorted(one["replicas"]), one["missing"]) for one in partitions] == [
        (index, [1, 2, 3], []) for index in (0, 1, 2)
    ]
    assert json.loads(clarion("cluster", "partitions", "--under-replicated", "--json").out) == []
    assert "there is no topic" in clarion("cluster", "partitions", "--topic", "nowhere").one_line_error()


def test_status_tells_in_sentences_what_is_missing(brokers: EmbeddedCluster, clarion: Shell):
    calm = clarion("cluster", "status").out
    assert "3 brokers" in calm
    assert "every replica has everything" in calm
    assert "away" not in calm
    brokers.kill(3)
    try:
        brokers.wait_for(lambda: all(3 not in brokers.in_sync("orders", index) for index in (0, 1, 2)))
        one_less = Shell(brokers[1].bootstrap)
        told = json.loads(one_less("cluster", "status", "--json").out)
        assert told["under_replicated"] == ["orders-0", "orders-1", "orders-2"]
        assert (told["brokers"], told["away"]) == ([1, 2], [3])
        shown = one_less("cluster", "status").out
        assert "broker 3 is away" in shown
        assert "replicas are missing" in shown
    finally:
        brokers.start(3)
        brokers.wait_until_in_sync("orders")


def test_what_was_decided_is_told_with_its_reason(brokers: EmbeddedCluster, clarion: Shell):
    store = brokers[1].data_dir.parent / "cluster"
    told = json.loads(clarion("cluster", "events", "--cluster", f"file:{store}", "--json").out)
    assert any("is the controller" in one["event"] for one in told)
    assert "write file:PATH or etcd" in clarion("cluster", "events", "--cluster", "nonsense").one_line_error()
    nowhere = store.parent / "nowhere"
    assert "there is no such folder" in clarion("cluster", "events", "--cluster", f"file:{nowhere}").one_line_error()
    assert not nowhere.exists()


def test_partitions_move_as_planned_and_nothing_moves_in_a_dry_run(brokers: EmbeddedCluster, clarion: Shell):
    brokers[1]._run(lambda broker: broker.create_topic("skewed", 6, {}, 1, [(1,)] * 6))
    brokers.wait_for(lambda: all("skewed" in brokers._image(one).topics for one in (1, 2, 3)))
    for number in range(6):
        brokers.leader_of("skewed", number)
        brokers[1].produce("skewed", b"%d" % number, partition=number)
    planned = json.loads(clarion("cluster", "rebalance", "--dry-run", "--json").out)
    assert sum(one["messages"] for one in planned) == 4
    assert brokers.leader_of("skewed", 5) == 1
    with_one_away = Shell(f"127.0.0.1:1,{brokers[2].bootstrap}")
    done = with_one_away("cluster", "rebalance")
    assert done.status == 0
    assert done.err.endswith(f"{len(planned)} partitions moved\n")
    brokers.wait_for(lambda: sorted(_leaders(brokers, "skewed")) == [1, 1, 2, 2, 3, 3])
    assert sorted(int(one.value) for one in brokers.messages("skewed")) == list(range(6))
    assert clarion("cluster", "rebalance", "--dry-run").out == "nothing has to move\n"
    refused = clarion("cluster", "drain", "2").one_line_error()
    assert "orders-0 has 3 replicas, and without broker 2 there are 2 brokers" in refused


def test_leaders_move_with_a_rebalance_even_where_they_would_not_by_themselves():
    with cluster(brokers=2, auto_leader_rebalance_enable=False) as brokers:
        brokers[1]._run(lambda broker: broker.create_topic("skewed", 4, {}, 2, [(1, 2)] * 4))
        brokers.wait_until_in_sync("skewed")
        assert Shell(brokers.bootstrap)("cluster", "rebalance").status == 0
        brokers.wait_for(lambda: sorted(_leaders(brokers, "skewed")) == [1, 1, 2, 2])


def _leaders(brokers: EmbeddedCluster, topic: str) -> list[int]:
    return [one.leader for one in brokers._image(1).topics[topic].partitions]


def view(*replicas: tuple[int, ...], leaders: tuple[int | None, ...] = ()) -> ClusterView:
    known = [{"id": number, "address": f"h:{number}", "rack": None} for number in (1, 2, 3)]
    leads = leaders or tuple(one[0] for one in replicas)
    some = [PartitionView("t", at, leads[at], list(one), list(one)) for at, one in enumerate(replicas)]
    return ClusterView("abc", 1, known, some)


def test_nobody_leads_is_said_first_and_topics_on_one_broker_are_named():
    told = sentences(view((1, 2), (3,), leaders=(1, None)))
    assert told[1].startswith("nobody leads 1 partition (t-1)")
    assert told[-1] == "on one broker alone: t"


def test_draining_moves_only_what_is_on_the_broker():
    moves = plan(view((1, 2), (2, 3), (3, 1)), [1, 2])
    assert {(one.partition, frozenset(one.after)) for one in moves if 3 in one.before} == {
        (1, frozenset({1, 2})),
        (2, frozenset({1, 2})),
    }


def test_what_is_being_moved_is_counted_where_it_will_be_and_gets_no_more_replicas():
    """Until it is done it has the old ones as well."""
    moving = PartitionView("t", 0, 1, [1, 3, 2], [1, 2])
    known = [{"id": one, "address": "", "rack": None} for one in (1, 2, 3, 4)]
    view = ClusterView("c", 1, known, [moving, *(PartitionView("u", at, 1, [1, 2], [1, 2]) for at in range(4))])
    ahead = without_leaving(view, [MovingPartition("t", 0, (1, 3, 2), (3,), (2,))])
    assert [one.replicas for one in ahead.partitions] == [[1, 3], *[[1, 2]] * 4]
    assert all(len(move.after) == 2 for move in plan(ahead, [1, 2, 3, 4]))
    assert any(len(move.after) == 3 for move in plan(view, [1, 2, 3, 4])), "this is what there would be else"


def test_a_drained_broker_gets_nothing_new_until_that_is_undone():
    with cluster(brokers=3) as brokers:
        clarion = Shell(",".join(brokers[number].bootstrap for number in brokers.running))
        refused = clarion("cluster", "drain", "9").one_line_error()
        assert "there is no broker 9; there are 1, 2, 3" in refused
        for name in ("before", "alone"):
            brokers[1]._run(lambda broker, name=name: broker.create_topic(name, 2, {}, 1, [(3,), (3,)]))
        assert clarion("cluster", "drain", "3").status == 0
        brokers.wait_for(lambda: all(3 not in _leaders(brokers, name) for name in ("before", "alone")))
        assert clarion("topic", "create", "after", "--partitions", "6").status == 0
        assert all(3 not in one.replicas for one in brokers._image(1).topics["after"].partitions)
        assert clarion("cluster", "rebalance", "--dry-run").out == "nothing has to move\n"
        assert _drained(clarion) == {1: False, 2: False, 3: True}
        brokers.kill(3)
        brokers.start(3)
        brokers.wait_for(lambda: 3 in brokers._image(1).brokers)
        assert clarion("topic", "create", "later", "--partitions", "6").status == 0
        assert all(3 not in one.replicas for one in brokers._image(1).topics["later"].partitions)
        assert clarion("cluster", "drain", "3", "--undo").status == 0
        brokers.wait_for(lambda: not brokers._image(1).brokers[3].is_leaving)
        assert clarion("topic", "create", "last", "--partitions", "6").status == 0
        assert any(3 in one.replicas for one in brokers._image(1).topics["last"].partitions)
        assert _drained(clarion) == {1: False, 2: False, 3: False}
        with brokers[2].faults.delay("DescribeConfigs", 20):
            assert _drained(clarion) == {1: False, 2: None, 3: False}


def _drained(clarion: Shell) -> dict[int, bool | None]:
    return {one["id"]: one["drained"] for one in json.loads(clarion("cluster", "brokers", "--json").out)}


def test_a_broker_is_drained_where_every_listener_wants_tls(tmp_path: Path):
    (tmp_path / "tls").mkdir()
    certificates = signed_certificates(tmp_path / "tls")
    words = ["--brokers", "2", "--tls-certificate", str(certificates / "broker.pem")]
    words += ["--tls-key", str(certificates / "broker.key"), "--tls-client-ca", str(certificates / "ca.pem")]
    files = {"ca": "ca.pem", "certificate": "client.pem", "key": "client.key"}
    secure = [word for name, file in files.items() for word in ("-X", f"ssl.{name}.location={certificates / file}")]
    with ClarionProcess(tmp_path / "data", durability="page-cache", args=words) as supervisor:
        clarion = Shell(supervisor.bootstrap)
        told = partial(clarion, "-X", "security.protocol=ssl", *secure)
        assert told("topic", "create", "t", "--partitions", "4", "--replication-factor", "1").status == 0
        drained = told("cluster", "drain", "2")
        assert drained.status == 0, drained.err
        partitions = json.loads(told("cluster", "partitions", "--topic", "t", "--json").out)
        assert [one["replicas"] for one in partitions] == [[1]] * 4
        assert "wants TLS" in clarion("cluster", "rebalance").one_line_error()


def test_where_no_events_are_kept_the_store_is_named(clarion: Shell):
    assert "there is no topic __cluster_events" in clarion("cluster", "events").one_line_error()


def test_who_starts_several_brokers_is_told_where_each_serves_http(tmp_path: Path):
    words = ["--brokers", "2", "--http", "127.0.0.1:0"]
    with ClarionProcess(tmp_path / "data", durability="page-cache", args=words) as supervisor:
        line = supervisor._output.read_text().strip()
        places = line.partition(f", data in {tmp_path / 'data'}, HTTP at ")[2].split(", ")
        assert len(places) == 2
        for number, place in enumerate(places, start=1):
            with urllib.request.urlopen(f"{place}/v1/cluster", timeout=60) as answer:
                assert json.load(answer)["broker_id"] == number


def test_events_are_read_from_their_topic_and_shown_with_all_else_on_one_screen():
    with cluster(brokers=3, topics={"orders": 3}, keeps_events=True, racks=("a", "b", "c")) as brokers:
        clarion = Shell(brokers.bootstrap)

        def told() -> list[str]:
            answer = clarion("cluster", "events", "--json")
            return [one["event"] for one in json.loads(answer.out)] if answer.status == 0 else []

        brokers.wait_for(lambda: any("is the controller" in one for one in told()), 60)
        brokers.wait_until_in_sync("orders")
        brokers.kill(3)
        brokers.wait_for(lambda: all(3 not in brokers.in_sync("orders", index) for index in (0, 1, 2)), 60)
        brokers.wait_for(lambda: any("broker 3 is gone" in one for one in told()), 60)
        assert len(json.loads(clarion("cluster", "events", "--json", "--limit", "1").out)) == 1
        with ExitStack() as failing:
            for number in brokers.running:
                failing.enter_context(brokers[number].faults.fail("ListOffsets", "NOT_LEADER_OR_FOLLOWER", times=None))
            error = clarion("cluster", "events").one_line_error()
        assert "__cluster_events cannot be read" in error
        assert "Not leader for partition; ask the cluster's store" in error
        shown = clarion("cluster", "status", "--watch", "--count", "1").out
        assert max(map(len, shown.splitlines())) <= 80
        assert "replicas are missing" in shown
        assert [line for line in shown.splitlines() if line.startswith("3 ") and "away" in line]
        assert "broker 3 is gone" in shown


def test_a_screen_fits_and_shows_the_worst_first():
    some = [PartitionView("t" * 40, at, 1 if at else None, [1, 2, 3], [1, 2]) for at in range(50)]
    told = ClusterView("abc", 1, [{"id": one, "address": f"h{one}:9092", "rack": "r"} for one in (1, 2)], some)
    events = [ClusterEvent(number, 1_700_000_000_000, f"event {number} " + "x" * 200) for number in range(30)]
    filled = {("t" * 40, 0, 3): 0.42}
    lines = screen(told, events, filled, 80, 24)
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    listed = [line for line in lines if line.startswith("ttt")]
    assert "nobody" in listed[0]
    assert "3 (42%)" in listed[0]
    assert any(line.startswith("… and ") for line in lines)
    assert "event 29" in lines[-1]
    assert not any("event 0 " in line for line in lines)
