"""Every alert fires in the trouble it is about, and in no calm broker."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from clarion.broker import metrics_page
from clarion.broker.config import ListenerConfig, TlsConfig
from clarion.gateway.loop_share import LoopShare
from clarion.model.errors import KafkaError
from clarion.testing import EmbeddedBroker, EmbeddedCluster, cluster, embedded
from tests.broker.harness import running, until
from tests.broker.test_scrubbing import FIRST, flip, look_at_all, sealed
from tests.gateway.asking import Asker
from tests.gateway.endpoint import endpoint
from tests.gateway.push_words import pushing, subscribe, write

from .test_files import alert_rules

Numbers = dict[str, float]
LOG_DIRS = bytes.fromhex("0023 0002 00000001 ffff 00 00 00")  # DescribeLogDirs v2 of everything
RULES = {rule["alert"]: rule["expr"] for rule in alert_rules()}


@pytest.fixture(autouse=True)
def fresh_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """These stories look again at once."""
    monkeypatch.setattr(metrics_page, "FRESH_SECONDS", 0.0)


def scrape(address: tuple[str, int]) -> Numbers:
    with urllib.request.urlopen(f"http://{address[0]}:{address[1]}/metrics", timeout=30) as page:
        lines = [line.rpartition(" ") for line in page.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines if name}


def numbers(broker: EmbeddedBroker) -> Numbers:
    return scrape(broker._life.server.metrics_address)


def fires(alert: str, before: Numbers, after: Numbers) -> bool:
    """The few forms of Prometheus's language that our rules are written in."""
    rule = re.sub(
        r"on \([\w, ]+\) group_left \(\) ", "", RULES[alert]
    )  # which series belong together: there is one broker
    left, comparison, right = re.fullmatch(r"(.+) (<|>|==) (.+)", rule).groups()
    one, other = _value(left, before, after), _value(right, before, after)
    return {"<": one < other, ">": one > other, "==": one == other}[comparison]


def _value(text: str, before: Numbers, after: Numbers) -> float:
    if found := re.fullmatch(r"histogram_quantile\(([\d.]+), sum by \([\w, ]+\) \(rate\((\w+)(.*)\[5m\]\)\)\)", text):
        return _quantile(float(found[1]), found[2] + found[3].replace("}", ","), before, after)
    if found := re.fullmatch(r"increase\((\w+)\[5m\]\)", text):
        return _total(found[1], after) - _total(found[1], before)
    if found := re.fullmatch(r"sum by \([\w, ]+\) \((\w+)\)|(\w*[a-z]\w*)", text):
        return _total(found[1] or found[2], after)
    if found := re.fullmatch(r"([\d.]+) \* (\w+)", text):
        return float(found[1]) * _total(found[2], after)
    return float(text)


def _quantile(share: float, series: str, before: Numbers, after: Numbers) -> float:
    """The bound of the bucket it is in: Prometheus says a little less. Nothing, if nothing was counted."""
    bounds = re.compile(re.escape(series if "{" in series else f"{series}{{") + r'le="(.+)"}')
    grown = {float(found[1]): after[name] - before.get(name, 0) for name in after if (found := bounds.fullmatch(name))}
    assert grown, series
    return min((bound for bound, count in grown.items() if count >= share * grown[float("inf")] > 0), default=0.0)


def _total(name: str, page: Numbers) -> float:
    found = [value for series, value in page.items() if series == name or series.startswith(name + "{")]
    return sum(found)


def offline(broker: EmbeddedBroker, _: pytest.MonkeyPatch) -> None:
    broker.produce("t", "x")
    with broker.faults.disk_error("write"), pytest.raises(KafkaError):
        broker.produce("t", "y")


def refused(broker: EmbeddedBroker, _: pytest.MonkeyPatch) -> None:
    first = socket.create_connection((broker.host, broker.port))
    broker.wait_for(lambda: broker._life.server.net.connections)
    with socket.create_connection((broker.host, broker.port)) as second:
        assert second.recv(1) == b""
    first.close()


def malformed(broker: EmbeddedBroker, _: pytest.MonkeyPatch) -> None:
    for _number in range(6):
        with socket.create_connection((broker.host, broker.port)) as browser:
            browser.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert browser.recv(1) == b""


def behind(broker: EmbeddedBroker, _: pytest.MonkeyPatch) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 100})
    for _number in range(100_001):
        producer.produce("t", b"x")
        producer.poll(0)
    producer.flush()
    consumer.commit(offsets=[TopicPartition("t", 0, 0)], asynchronous=False)
    consumer.close()


def late(broker: EmbeddedBroker, _: pytest.MonkeyPatch) -> None:
    broker.faults.freeze(seconds=1.0)
    broker.wait_for(lambda: not broker.faults.is_frozen)
    broker.wait_for(lambda: _total("clarion_event_loop_lag_seconds", numbers(broker)) > 0.5)


def slow(broker: EmbeddedBroker, _: pytest.MonkeyPatch) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all"})
    with broker.faults.slow_disk(seconds=1.5):
        producer.produce("t", b"x")
        producer.flush()


def held(broker: EmbeddedBroker, _: pytest.MonkeyPatch) -> None:
    """A group that has stopped needs more than the disk has left."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    by_need = ConfigEntry("clarion.retention.by", "subscriptions", incremental_operation=AlterConfigOpType.SET)
    topic = ConfigResource(ConfigResource.Type.TOPIC, "t", incremental_configs=[by_need])
    admin.incremental_alter_configs([topic])[topic].result(60)
    for _number in range(20):
        broker.produce("t", "x" * 1_000)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "gone"})
    consumer.commit(offsets=[TopicPartition("t", 0, 0)], asynchronous=False)
    consumer.close()
    broker.faults.disk_full(free_bytes=5_000)
    broker.wait_for(lambda: 0 <= numbers(broker)["clarion_disk_free_bytes"] <= 5_000, 60)
    broker.wait_for(lambda: _total("clarion_retention_held_bytes", numbers(broker)) > 15_000, 60)


def turned_away(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it had used up its share of the event loop: how that comes about is told in tests/gateway."""
    asker = Asker(broker.http_url)
    assert asker.get("/v1/topics").status == 200
    monkeypatch.setattr(LoopShare, "is_over", True)
    for _number in range(6):
        assert asker.get("/v1/topics").status == 429


def nothing(_: EmbeddedBroker, __: pytest.MonkeyPatch) -> None:
    """The broker was started in trouble."""


TROUBLES: dict[str, tuple[dict[str, Any], Callable[[EmbeddedBroker, pytest.MonkeyPatch], None]]] = {
    "ClarionPartitionOffline": ({}, offline),
    "ClarionDiskFull": ({"reserve_bytes": 1 << 60}, nothing),
    "ClarionDiskFillsUp": ({"reserve_bytes": 1 << 60}, nothing),
    "ClarionConnectionsRefused": ({"max_connections": 1}, refused),
    "ClarionMisbehavingClient": ({}, malformed),
    "ClarionGroupLag": ({}, behind),
    "ClarionProduceSlow": ({"durability": "fsync"}, slow),
    "ClarionFlushesSlow": ({"durability": "fsync"}, slow),
    "ClarionEventLoopLate": ({}, late),
    "ClarionCatalogAway": ({"catalog": "postgresql://nobody@127.0.0.1:1/listens"}, nothing),
    "ClarionMessagesHeld": ({"retention_check_seconds": 0.05}, held),
    "ClarionHttpRefused": ({}, turned_away),
}
OF_A_CLUSTER = {
    "ClarionPartitionWithoutLeader",
    "ClarionUnderMinInSync",
    "ClarionUnderReplicated",
    "ClarionNoController",
}
# Prometheus knows of the first by itself; the others have stories of their own below.
ELSEWHERE = {"ClarionDown", "ClarionRequestErrors", "ClarionTlsHandshakesFail"} | OF_A_CLUSTER
ELSEWHERE |= {"ClarionPartitionDamaged", "ClarionEndpointFails"}


def test_every_alert_has_a_story() -> None:
    assert {*RULES} == {*TROUBLES} | ELSEWHERE


@pytest.mark.parametrize("alert", TROUBLES)
def test_the_alert_fires_in_its_trouble(alert: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config, make_trouble = TROUBLES[alert]
    with embedded(topics=["t"], metrics_port=0, **config) as broker:
        before = numbers(broker)
        make_trouble(broker, monkeypatch)
        assert fires(alert, before, numbers(broker))
        broker.faults.clear()


def test_a_calm_broker_fires_none() -> None:
    with embedded(topics=["t"], metrics_port=0) as broker:
        before = numbers(broker)
        broker.produce("t", "x")
        after = numbers(broker)
    late = {"ClarionEventLoopLate", "ClarionProduceSlow", "ClarionFlushesSlow"}  # a busy machine may be
    calm = {*RULES} - {"ClarionDown"} - late
    assert [alert for alert in calm if fires(alert, before, after)] == []


def test_an_error_inside_the_broker_fires_an_alert(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: str) -> None:
        raise RuntimeError("an error of our own")

    broker = embedded(topics=["t"], metrics_port=0).start()
    before = numbers(broker)
    with monkeypatch.context() as patch, socket.create_connection((broker.host, broker.port)) as client:
        patch.setattr(shutil, "disk_usage", broken)  # DescribeLogDirs asks it, and expects only OSError
        client.sendall(len(LOG_DIRS).to_bytes(4, "big") + LOG_DIRS)
        client.recv(1)
    assert fires("ClarionRequestErrors", before, numbers(broker))
    broker.close()
    assert "an error of our own" in str(broker.failures)


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[str, str]:
    certificate, key = tmp_path / "broker.pem", tmp_path / "broker.key"
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=broker", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", *words, *names], check=True, capture_output=True)
    return str(certificate), str(key)


async def test_clients_without_tls_fire_an_alert(tmp_path: Path, certificate: tuple[str, str]) -> None:
    listener = ListenerConfig("127.0.0.1", 0, tls=TlsConfig(*certificate, None))
    async with running(tmp_path / "data", listeners=(listener,), metrics_port=0) as node:
        before = await asyncio.to_thread(scrape, node.server.metrics_address)
        for _number in range(6):
            reader, writer = await asyncio.open_connection(*node.server.addresses[0])
            writer.write(b"no TLS at all, but plain text")
            assert await reader.read(1) in (b"", b"\x15")  # nothing, or an alert of TLS
            writer.close()
        assert fires("ClarionTlsHandshakesFail", before, await asyncio.to_thread(scrape, node.server.metrics_address))


async def test_a_file_that_the_disk_has_changed_fires_an_alert(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await node.topic()
        await sealed(node, b"first", b"second")
    flip(tmp_path / "t-0" / FIRST)
    async with running(tmp_path, metrics_port=0) as node:
        before = await asyncio.to_thread(scrape, node.server.metrics_address)
        assert not fires("ClarionPartitionDamaged", before, before)
        await look_at_all(node.server.housekeeping.scrubber)
        after = await asyncio.to_thread(scrape, node.server.metrics_address)
        assert fires("ClarionPartitionDamaged", before, after)


async def test_an_endpoint_that_fails_fires_an_alert(tmp_path: Path) -> None:
    async with endpoint() as place, pushing(tmp_path, metrics_port=0) as node:
        place.answer(503, "down")
        await subscribe(node, place.push(), max_deliveries=100)
        before = await asyncio.to_thread(scrape, node.server.metrics_address)
        assert not fires("ClarionEndpointFails", before, before)
        await write(node, *(b"%d" % number for number in range(20)))
        await until(lambda: node.broker.endpoints.of("hook").circuit == "open")
        after = await asyncio.to_thread(scrape, node.server.metrics_address)
        assert fires("ClarionEndpointFails", before, after)


def together(brokers: EmbeddedCluster, but: int | None = None) -> Numbers:
    """The sums of what the brokers that run say, without one of them."""
    pages = [numbers(brokers[one]) for one in brokers.running if one != but]
    return {name: sum(page.get(name, 0.0) for page in pages) for name in set().union(*pages)}


def test_brokers_that_die_fire_the_alerts_of_a_cluster() -> None:
    with cluster(brokers=3, topics=["t"], metrics_port=0) as brokers:
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic("alone", 3, 1)])["alone"].result(60)
        brokers.wait_for(lambda: together(brokers)["clarion_active_controller"] == 1, 60)
        calm = together(brokers)
        assert [alert for alert in OF_A_CLUSTER if fires(alert, calm, calm)] == []
        (controller,) = [one for one in (1, 2, 3) if numbers(brokers[one])["clarion_active_controller"]]
        assert fires("ClarionNoController", calm, together(brokers, but=controller))
        first, second = (one for one in (3, 2, 1) if one != controller)
        brokers.kill(first)
        brokers.wait_for(lambda: fires("ClarionUnderReplicated", calm, together(brokers)), 60)
        brokers.wait_for(lambda: fires("ClarionPartitionWithoutLeader", calm, together(brokers)), 60)
        brokers.kill(second)
        brokers.wait_for(lambda: fires("ClarionUnderMinInSync", calm, together(brokers)), 60)
