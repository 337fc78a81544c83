"""A single broker's folder becomes the first of a cluster, with everything in it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from clarion.broker.broker import Broker
from clarion.catalog.database import CatalogDatabase
from clarion.cli import cluster_adopt
from clarion.model.subscription import Subscription
from clarion.testing import EmbeddedCluster, cluster, embedded
from tests.cli.conftest import Shell


def fill(data: Path) -> None:
    with embedded(data_dir=data, topics={"orders": 2, "kept": 1}) as broker:
        for number in range(10):
            broker.produce("orders", b"%d" % number, partition=number % 2)
        broker._run(lambda one: one.create_topic("alone", 1, {}, 1))


def adopt(data: Path, *words: str) -> str:
    done = Shell(None)("cluster", "adopt", "--data-dir", str(data), *words)
    assert done.status == 0, done.err
    return done.out


def check(brokers: EmbeddedCluster) -> None:
    brokers.wait_for(lambda: all(len(brokers._image(1).topics["orders"].partitions[at].replicas) == 3 for at in (0, 1)))
    brokers.wait_until_in_sync("orders")
    assert sorted(int(one.value) for one in brokers.messages("orders")) == list(range(10))
    assert brokers._image(1).topics["alone"].partitions[0].replicas == (1,)
    other = brokers.leader_of("orders") % 3 + 1
    brokers.kill(brokers.leader_of("orders"))
    assert brokers.leader_of("orders") in (1, 2, 3)
    assert other in brokers.running
    assert sorted(int(one.value) for one in brokers.messages("orders")) == list(range(10))


def test_its_topics_get_their_replicas_and_those_made_with_one_keep_one(tmp_path: Path):
    data = tmp_path / "data"
    fill(data)
    assert "adopted" in adopt(data)
    with cluster(brokers=3, data_dir=data) as brokers:
        check(brokers)


@pytest.mark.parametrize("interrupted", ["_put_registry_aside", "_move_content", "halfway"])
def test_what_was_interrupted_goes_on(tmp_path: Path, interrupted: str, monkeypatch: pytest.MonkeyPatch):
    data = tmp_path / "data"
    fill(data)

    class Interruption(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interruption

    with monkeypatch.context() as patched:
        if interrupted == "halfway":
            rename, left = os.rename, iter(range(4))

            def rename_some(*names: str) -> None:
                if next(left, None) is None:
                    raise Interruption
                rename(*names)

            patched.setattr(os, "rename", rename_some)
        else:
            patched.setattr(cluster_adopt, interrupted, interrupt)
        with pytest.raises(Interruption):
            Shell(None)("cluster", "adopt", "--data-dir", str(data))
    alone = Shell(None)("serve", "--data-dir", str(data), "--listen", "127.0.0.1:0")
    assert "--brokers" in alone.one_line_error()
    adopt(data)
    with cluster(brokers=3, data_dir=data) as brokers:
        check(brokers)


def test_what_is_no_single_broker_or_runs_is_refused(tmp_path: Path):
    shell = Shell(None)
    assert (
        "not the folder of a single broker" in shell("cluster", "adopt", "--data-dir", str(tmp_path)).one_line_error()
    )
    with embedded(data_dir=tmp_path / "data"):
        refused = shell("cluster", "adopt", "--data-dir", str(tmp_path / "data")).one_line_error()
        assert "is in use by another broker" in refused
        assert refused.count("stop") == 1
    with embedded(data_dir=tmp_path / "other"):
        pass
    adopt(tmp_path / "data", "--cluster", f"file:{tmp_path / 'store'}")
    again = shell("cluster", "adopt", "--data-dir", str(tmp_path / "other"), "--cluster", f"file:{tmp_path / 'store'}")
    assert "is there already" in again.one_line_error()


@pytest.mark.parametrize("has_store_elsewhere", [False, True])
def test_a_single_broker_does_not_start_with_what_was_adopted_and_leaves_it_as_it_is(
    tmp_path: Path, has_store_elsewhere: bool
):
    data = tmp_path / "data"
    fill(data)
    adopt(data, *(("--cluster", f"file:{tmp_path / 'store'}") if has_store_elsewhere else ()))
    folder = data if has_store_elsewhere else data / "broker-1"
    alone = Shell(None)("serve", "--data-dir", str(folder), "--listen", "127.0.0.1:0")
    assert "belongs to a broker of a cluster" in alone.one_line_error()
    assert not (folder / "registry.db").exists(), "with it, the cluster's broker would not start any more"
    if not has_store_elsewhere:
        with cluster(brokers=3, data_dir=data) as brokers:
            check(brokers)


def test_an_empty_registry_is_not_adopted(tmp_path: Path):
    data = tmp_path / "data"
    fill(data)
    (data / "registry.db").unlink()
    for left in data.glob("registry.db-*"):
        left.unlink()
    (data / "registry.db").touch()
    before = sorted(os.listdir(data))
    refused = Shell(None)("cluster", "adopt", "--data-dir", str(data))
    assert "its registry is empty" in refused.one_line_error(1)
    assert sorted(os.listdir(data)) == before, "nothing was changed"


def subscribe(data: Path) -> Subscription:
    catalog = CatalogDatabase(str(data / "catalog.db"))
    saved = catalog.save(Subscription(name="billing", topics=("orders",)), 0)
    catalog.close()
    return saved


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_its_subscriptions_are_the_clusters(tmp_path: Path, is_interrupted: bool, monkeypatch: pytest.MonkeyPatch):
    data = tmp_path / "data"
    fill(data)
    saved = subscribe(data)
    if is_interrupted:  # when they are in both places
        unlink = os.unlink

        def interrupt(path: str) -> None:
            if path.endswith("catalog.db"):
                raise KeyboardInterrupt
            unlink(path)

        with monkeypatch.context() as patched, suppress(KeyboardInterrupt):
            patched.setattr(os, "unlink", interrupt)
            Shell(None)("cluster", "adopt", "--data-dir", str(data))
        assert (data / "catalog.db").exists()
    adopt(data)
    assert not (data / "broker-1/catalog.db").exists()
    catalog = CatalogDatabase(str(data / "cluster/catalog.db"))
    news = catalog.news(0)
    catalog.close()
    assert news is not None
    assert news.changed == (saved,)


def test_subscriptions_in_sqlite_do_not_go_to_etcd(tmp_path: Path):
    data = tmp_path / "data"
    fill(data)
    subscribe(data)
    done = Shell(None)("cluster", "adopt", "--data-dir", str(data), "--cluster", "etcd://127.0.0.1:1")
    assert "keeps them in PostgreSQL" in done.one_line_error(1)
    assert (data / "registry.db").exists(), "nothing was changed"


def interrupted_adoption(data: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into a store elsewhere: the registry is copied, and the folder still that of a single broker."""

    def interrupt(*_: object) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(cluster_adopt, "_put_registry_aside", interrupt)
        with pytest.raises(OSError, match="full"):
            cluster_adopt.adopt(address, str(data))


async def leads_all(broker: Broker) -> bool:
    return all(one.is_leader for one in broker.partitions)


async def names_of_topics(broker: Broker) -> set[str]:
    return {*broker.image.topics}


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_broker_that_went_on_alone_after_an_interruption_is_adopted_as_it_is_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    data, address = tmp_path / "data", f"file:{tmp_path / 'store'}"
    fill(data)
    interrupted_adoption(data, address, monkeypatch)
    with embedded(data_dir=data, topics={"later": 1}) as broker:
        broker.produce("later", b"acknowledged")
        broker._run(lambda one: one.delete_topic("kept"))
    assert "3 topics" in adopt(data, "--cluster", address)
    with embedded(data_dir=data, cluster=address, node_id=1) as broker:
        wait_until(lambda: broker._run(leads_all))
        assert [one.value for one in broker.messages("later")] == [b"acknowledged"]
        assert "kept" not in broker._run(names_of_topics)


def test_a_broker_that_went_on_alone_is_not_adopted_by_a_cluster_that_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    data, address = tmp_path / "data", f"file:{tmp_path / 'store'}"
    fill(data)
    interrupted_adoption(data, address, monkeypatch)
    with embedded(data_dir=tmp_path / "another", cluster=address, node_id=2):
        pass
    with embedded(data_dir=data, topics={"later": 1}):
        pass
    refused = Shell(None)("cluster", "adopt", "--data-dir", str(data), "--cluster", address)
    assert "started alone since it was adopted" in refused.one_line_error(1)
    assert (data / "registry.db").exists()
