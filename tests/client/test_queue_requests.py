"""What single requests of a queue's reader may meet: delays, lost answers, refusals, TLS. Nothing is lost by them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import clarion
from clarion.client.bus import Bus
from clarion.testing import EmbeddedBroker, embedded
from tests.broker.harness import running
from tests.broker.share_words import QUICK
from tests.broker.test_tls import secure, signed_certificates

from .words import queue_settings, take


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with embedded(topics=["orders"]) as broker:
        queue_settings(broker.bootstrap, "orders")
        yield broker


@pytest.fixture
def bus(broker: EmbeddedBroker) -> Iterator[Bus]:
    with clarion.connect(broker.bootstrap) as bus:
        yield bus


def nothing_is_left(bus: Bus) -> bool:
    with bus.read("orders", subscription="orders", mode="queue") as reading:
        return reading.batch(timeout=0.5) == []


def test_words_that_overtake_a_fetch_are_said_again(broker: EmbeddedBroker, bus: Bus) -> None:
    bus.write_many("orders", [b"one", b"two"])
    with bus.read("orders", subscription="orders", mode="queue") as reading:
        for message in take(reading, 2):
            with broker.faults.delay("ShareFetch", 0.2, times=None):  # the numbers of requests come in another order
                message.ack()
                reading.flush()
    assert nothing_is_left(bus)


@pytest.mark.parametrize("api", ["ShareAcknowledge", "ShareFetch"])
def test_words_whose_answer_was_lost_count_all_the_same(broker: EmbeddedBroker, bus: Bus, api: str) -> None:
    bus.write_many("orders", [b"%d" % number for number in range(20)])
    with bus.read("orders", subscription="orders", mode="queue") as reading:
        seen = take(reading, 20)
        fault = broker.faults.drop_replies(api, times=2)
        for message in seen:
            message.ack()
        reading.flush()  # and does not say that something was lost
        fault.end()
    assert nothing_is_left(bus)


@pytest.mark.parametrize("error", ["NOT_LEADER_OR_FOLLOWER", "SHARE_SESSION_NOT_FOUND", "COORDINATOR_NOT_AVAILABLE"])
def test_refusals_that_pass_are_waited_for(broker: EmbeddedBroker, bus: Bus, error: str) -> None:
    bus.write("orders", b"one")
    with bus.read("orders", subscription="orders", mode="queue") as reading:
        (one,) = take(reading, 1)
        for api in ("ShareAcknowledge", "ShareFetch"):
            broker.faults.fail(api, error, times=3)
        one.ack()
        reading.flush()
        bus.write("orders", b"two")
        (two,) = take(reading, 1)
        two.ack()
    assert nothing_is_left(bus)


def test_a_refusal_for_good_is_raised_where_messages_are_read(broker: EmbeddedBroker, bus: Bus) -> None:
    with bus.read("orders", subscription="orders", mode="queue") as reading:
        broker.faults.fail("ShareFetch", "TOPIC_AUTHORIZATION_FAILED", times=None)
        with pytest.raises(clarion.NotAllowed):
            reading.next(timeout=60)


def test_a_member_that_its_group_has_forgotten_joins_again(broker: EmbeddedBroker, bus: Bus) -> None:
    broker.faults.fail("ShareGroupHeartbeat", "UNKNOWN_MEMBER_ID", times=2)
    with bus.read("orders", subscription="orders", mode="queue") as reading:
        bus.write("orders", b"one")
        (one,) = take(reading, 1)
        one.ack()
    assert nothing_is_left(bus)


async def test_queues_and_streams_through_tls(tmp_path: Path) -> None:
    (tmp_path / "tls").mkdir()
    certificates = signed_certificates(tmp_path / "tls")
    async with running(tmp_path / "data", listeners=(secure(certificates),), **QUICK) as node:
        address = node.server.addresses[0]
        settings = {"security.protocol": "ssl", "ssl.ca.location": str(certificates / "ca.pem")}
        await node.topic("orders", 1)
        node.broker.groups.configure_group("orders", share_auto_offset_reset="earliest")

        def story() -> None:
            with clarion.connect(f"localhost:{address.port}", settings=settings) as bus:
                bus.write("orders", b"secret")
                with bus.read("orders", subscription="orders", mode="queue") as reading:
                    (one,) = take(reading, 1)
                    one.ack()
                assert [one.value for one in take(bus.read("orders"), 1)] == [b"secret"]
            with pytest.raises(clarion.NotConnected, match=r"TLS|certificate"):
                clarion.connect(f"localhost:{address.port}", settings={"security.protocol": "ssl"})

        await asyncio.to_thread(story)
