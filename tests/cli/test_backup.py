"""A backup of a broker under load, restored and started: nothing is missing that was acknowledged before it began."""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
from pathlib import Path

import pytest
from confluent_kafka import Producer

import clarion
from clarion.catalog.database import CatalogDatabase
from clarion.cli.backup_files import REGISTRY, copy_data_dir
from clarion.model.subscription import Subscription
from clarion.testing import embedded
from tests.waiting import wait_for

from .conftest import Broker, Shell

QUICK = ("--set", "log.retention.check.interval.ms=100", "--set", "log.cleaner.backoff.ms=100")
PLACE = (
    "--listen",
    "127.0.0.1:0",
    "--durability",
    "page-cache",
    "--log-level",
    "error",
    "--set",
    "offsets.topic.num.partitions=2",
)


class Load(threading.Thread):
    """Numbers in order into `plain`, a few keys again and again into `compacted`."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._producer = Producer(
            {"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 1, "log_level": 0}
        )
        self._must_end = threading.Event()
        self.acknowledged = 0

    def run(self) -> None:
        number = 0
        while not self._must_end.wait(0.02):  # enough for segments to come and go
            for _ in range(50):
                self._producer.produce("plain", b"%d" % number, on_delivery=self._arrived)
                self._producer.produce("compacted", b"%d" % number + bytes(200), key=b"%d" % (number % 7))
                number += 1
            self._producer.flush()

    def _arrived(self, error: object, _: object) -> None:
        assert error is None
        self.acknowledged += 1

    def end(self) -> None:
        self._must_end.set()
        self.join()


@pytest.fixture
def busy(tmp_path: Path):
    """A broker with small segments, retention and compaction at work, and a producer that does not stop."""
    broker = Broker(tmp_path / "data", *PLACE, *QUICK)
    clarion = Shell(broker.address)
    small = ["--config", "segment.bytes=65536"]
    assert clarion("topic", "create", "plain", *small).status == 0
    eager = ["--config", "cleanup.policy=compact", "--config", "min.cleanable.dirty.ratio=0.01"]
    assert clarion("topic", "create", "compacted", *small, *eager).status == 0
    load = Load(broker.address)
    load.start()
    wait_for(lambda: load.acknowledged > 2_000)
    assert clarion("consume", "plain", "--group", "readers", "--max", "1000").status == 0
    yield broker, load
    load.end()
    assert broker.stop() == 0


def test_a_backup_under_load_has_everything_that_was_acknowledged(busy, tmp_path):
    broker, load = busy
    for number in range(3):
        before = load.acknowledged
        copy, again = tmp_path / f"copy-{number}", tmp_path / f"again-{number}"
        made = Shell(None)("backup", str(copy), "--data-dir", str(broker.data_dir), "--json")
        assert made.status == 0, made.err
        assert json.loads(made.out)["partitions"] >= 4
        assert Shell(None)("restore", str(copy), "--data-dir", str(again)).status == 0
        restored = Broker(again, *PLACE)
        clarion = Shell(restored.address)
        values = [int(line) for line in clarion("consume", "plain").out.split()]
        assert values == list(range(len(values)))
        assert len(values) >= before
        assert clarion("consume", "compacted", "--format", "{key}").status == 0
        described = json.loads(clarion("group", "describe", "readers", "--json").out)
        (partition,) = described["partitions"]
        assert 1000 <= partition["committed"] <= partition["end_offset"]
        settings = json.loads(clarion("topic", "describe", "compacted", "--json").out)["settings"]
        assert {"segment.bytes", "cleanup.policy"} <= {each["name"] for each in settings}
        assert restored.stop() == 0
        wait_for(lambda before=before: load.acknowledged > before + 1_000)


def test_topics_that_come_and_go_meanwhile_do_no_harm(busy, tmp_path):
    broker, _ = busy
    has_ended = threading.Event()

    def come_and_go() -> None:
        clarion = Shell(broker.address)
        while not has_ended.is_set():
            clarion("topic", "create", "passing", "--partitions", "20")
            clarion("topic", "delete", "passing", "--yes")

    other = threading.Thread(target=come_and_go)
    other.start()
    try:
        for number in range(5):
            made = Shell(None)("backup", str(tmp_path / f"copy-{number}"), "--data-dir", str(broker.data_dir))
            assert made.status == 0, made.err
    finally:
        has_ended.set()
        other.join()
    assert Shell(None)("restore", str(tmp_path / "copy-4"), "--data-dir", str(tmp_path / "again")).status == 0
    restored = Broker(tmp_path / "again", *PLACE)
    assert "plain" in Shell(restored.address)("topic", "list").out
    assert restored.stop() == 0


def test_a_topic_that_is_deleted_and_made_again_meanwhile_keeps_nobody_from_starting(tmp_path):
    broker = Broker(tmp_path / "data", *PLACE)
    clarion = Shell(broker.address)
    for topic in ("kept", "passing"):
        assert clarion("produce", topic, stdin=b"before\n").status == 0
    (tmp_path / "copy").mkdir()
    for copied in copy_data_dir(broker.data_dir, tmp_path / "copy"):
        if copied.path == REGISTRY:
            assert clarion("topic", "delete", "passing", "--yes").status == 0
            assert clarion("produce", "passing", stdin=b"after\n").status == 0
    assert broker.stop() == 0
    restored = Broker(tmp_path / "copy", *PLACE)
    assert Shell(restored.address)("consume", "kept").out == "before\n"
    assert Shell(restored.address)("consume", "passing").out == ""
    assert restored.stop() == 0


def test_a_queue_that_is_read_during_a_backup_misses_nothing_after_it_is_restored(tmp_path):
    """Its place is copied before the messages it is a place among: otherwise it would wait behind their end."""
    (tmp_path / "copy").mkdir()
    with (
        embedded(topics=["Orders"], data_dir=tmp_path / "data", metrics_port=0) as broker,
        clarion.connect(broker.bootstrap) as bus,
    ):
        bus.subscribe("Orders", name="billing")
        bus.write("Orders", b"of before")
        assert read(bus, 1) == [b"of before"]
        is_read = False
        for copied in copy_data_dir(tmp_path / "data", tmp_path / "copy"):
            if copied.path.startswith("Orders-0/") and not is_read:
                bus.write_many("Orders", [b"of before"] * 5)
                assert read(bus, 5) == [b"of before"] * 5
                is_read = True
    with (
        embedded(data_dir=tmp_path / "copy", metrics_port=0) as restored,
        clarion.connect(restored.bootstrap) as bus,
    ):
        bus.write_many("Orders", [b"new"] * 10)
        assert read(bus, 20).count(b"new") == 10


def read(bus: clarion.Bus, count: int) -> list[bytes]:
    """As many, or those that come; each of them is done then."""
    with bus.read("Orders", subscription="billing", timeout=10) as reading:
        found = []
        while len(found) < count and (message := reading.next(timeout=3)) is not None:
            message.ack()
            found.append(message.value)
        return found


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """Of a broker that has ended."""
    broker = Broker(tmp_path / "data", *PLACE)
    assert Shell(broker.address)("produce", "t", stdin=b"kept\n").status == 0
    assert broker.stop() == 0
    assert Shell(None)("backup", str(tmp_path / "copy"), "--data-dir", str(broker.data_dir)).status == 0
    return tmp_path / "copy"


def test_a_backup_of_a_broker_that_does_not_run(backup, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    assert Shell(None)("restore", str(backup), "--data-dir", str(empty)).status == 0
    broker = Broker(empty, *PLACE)
    assert Shell(broker.address)("consume", "t").out == "kept\n"
    assert broker.stop() == 0
    assert {each.name for each in tmp_path.iterdir()} == {"data", "copy", "empty"}  # nothing is left lying about


def test_subscriptions_are_in_a_backup_also_while_their_catalog_is_open(backup, tmp_path):
    catalog = CatalogDatabase(str(tmp_path / "data/catalog.db"))
    saved = catalog.save(Subscription(name="billing", topics=("t",)), 0)
    assert Shell(None)("backup", str(tmp_path / "later"), "--data-dir", str(tmp_path / "data")).status == 0
    catalog.close()
    assert Shell(None)("restore", str(tmp_path / "later"), "--data-dir", str(tmp_path / "again")).status == 0
    restored = CatalogDatabase(str(tmp_path / "again/catalog.db"))
    news = restored.news(0)
    restored.close()
    assert news is not None
    assert news.changed == (saved,)


def test_a_data_directory_that_is_named_relative_to_where_one_is(backup, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Shell(None)("backup", "relative", "--data-dir", "data").status == 0
    assert _paths_in(tmp_path / "relative") == _paths_in(backup)
    assert "t-0/00000000000000000000.log" in _paths_in(tmp_path / "relative")


def _paths_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_what_was_changed_since_is_not_restored(backup, tmp_path):
    log = backup / "t-0" / "00000000000000000000.log"
    good = log.read_bytes()
    for bad in (good[:-1], good + b"x", bytes([good[0] ^ 1]) + good[1:]):
        log.write_bytes(bad)
        refused = Shell(None)("restore", str(backup), "--data-dir", str(tmp_path / "again")).one_line_error(1)
        assert f"{log} is not what was backed up" in refused
        assert not (tmp_path / "again").exists()


def test_a_mistake_is_one_line(backup, tmp_path):
    shell = Shell(None)
    assert "is not a broker's data directory" in shell("backup", "x", "--data-dir", str(tmp_path)).one_line_error(1)
    assert "not empty" in shell("backup", str(backup), "--data-dir", str(tmp_path / "data")).one_line_error(1)
    assert "not empty" in shell("restore", str(backup), "--data-dir", str(tmp_path / "data")).one_line_error(1)
    assert "is inside" in shell("backup", str(tmp_path / "data" / "x"), "--data-dir", str(tmp_path / "data")).err
    assert "is not a backup" in shell("restore", str(tmp_path), "--data-dir", "x").one_line_error(1)
    assert "is not a backup" in shell("restore", str(backup / "backup.json"), "--data-dir", "x").one_line_error(1)
    nowhere = shell("backup", "/proc/x", "--data-dir", str(tmp_path / "data")).one_line_error(1)
    assert nowhere.startswith("cannot back up")
    manifest = json.loads((backup / "backup.json").read_text())
    for change in ({"format": 2}, {"files": [{"path": "../x", "size": 0, "crc32c": 0}]}, {"files": 3}):
        (backup / "backup.json").write_text(json.dumps({**manifest, **change}))
        shell("restore", str(backup), "--data-dir", str(tmp_path / "again")).one_line_error(1)


def test_a_broker_of_a_cluster_is_not_backed_up_alone(backup, tmp_path):
    (tmp_path / "data" / "registry.db").unlink()
    refused = Shell(None)("backup", str(tmp_path / "z"), "--data-dir", str(tmp_path / "data")).one_line_error(1)
    assert "no registry.db" in refused
    assert "cluster" in refused


def test_a_registry_that_is_damaged_is_not_backed_up(backup, tmp_path):
    registry = tmp_path / "data" / "registry.db"
    shutil.copy(registry, tmp_path / "good.db")
    with sqlite3.connect(tmp_path / "good.db") as whole:
        assert whole.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    registry.write_bytes(registry.read_bytes()[:4096] + b"\xff" * 4096 + registry.read_bytes()[8192:])
    assert "is damaged" in Shell(None)(
        "backup", str(tmp_path / "y"), "--data-dir", str(tmp_path / "data")
    ).one_line_error(1)
