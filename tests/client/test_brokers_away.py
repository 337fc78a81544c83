"""While no broker answers, an application hears just that; and what is asked meanwhile waits for it to come back."""

from __future__ import annotations

import logging
import threading
import time

import pytest
from confluent_kafka.admin import AdminClient

import clarion
from clarion.client.library_errors import library_log
from clarion.testing import embedded


def test_a_broker_that_is_away_is_not_taken_for_one_without_subscriptions() -> None:
    with embedded(metrics_port=0) as broker, clarion.connect(broker.bootstrap) as bus:
        bus.create("orders")
        bus.subscribe("orders", name="billing")
        with clarion.connect(broker.bootstrap, timeout=5) as another:
            another.subscriptions()
            broker.kill()
            for ask in (
                lambda: another.subscribe("orders", name="new"),
                lambda: another.subscriptions(),
                lambda: another.read("orders", subscription="billing"),
            ):
                with pytest.raises((clarion.NotConnected, clarion.Timeout)):
                    ask()
        broker.start()


def test_subscriptions_are_made_when_the_broker_is_back() -> None:
    with embedded(metrics_port=0) as broker, clarion.connect(broker.bootstrap) as bus:
        bus.create("orders")
        bus.subscribe("orders", name="before")
        broker.kill()
        back = threading.Timer(1.0, broker.start)
        back.start()
        try:
            assert bus.subscribe("orders", name="after").name == "after"
        finally:
            back.join()


def test_a_stream_goes_on_when_partitions_are_looked_for_while_nobody_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("clarion.client.stream_source._LOOK_SECONDS", 0.0)
    with embedded() as broker, clarion.connect(broker.bootstrap, timeout=10) as bus:
        bus.create("orders")
        bus.write("orders", b"before")
        with bus.read("orders") as reading:
            assert reading.next(timeout=10) is not None
            _wait_for_coordinators(broker.bootstrap)
            broker.kill()
            assert reading.next(timeout=1) is None
            broker.start()
            bus.write("orders", b"after")
            found = reading.next(timeout=20)
            assert found is not None
            assert found.value == b"after"


def test_lines_of_the_library_are_printed_for_nobody_and_not_repeated(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    log = library_log()
    assert log is library_log() is logging.getLogger("clarion.librdkafka")
    for port in range(100):
        log.error("unlike any other: Connect to ipv4#127.0.0.1:%s failed", port)
    log.error("unlike any other: disconnected")
    assert [record.getMessage() for record in caplog.records if record.name == log.name] == [
        "unlike any other: Connect to ipv4#127.0.0.1:0 failed",
        "unlike any other: disconnected",
    ]
    assert any(isinstance(handler, logging.NullHandler) for handler in log.handlers)
    assert capsys.readouterr().err == ""


def _wait_for_coordinators(bootstrap: str) -> None:
    """Their topic is made for the first who looks for one: a broker that is killed over it has failed a request."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    while "__consumer_offsets" not in admin.list_topics(timeout=10).topics:
        time.sleep(0.02)
