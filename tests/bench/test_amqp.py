"""What the bench says to RabbitMQ and hears from it: frames cut anywhere, confirms that speak for several."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from bench.load.dialects import ConfirmReplies
from bench.load.queues import QueueJob, run
from bench.peers.process import PeerUnavailable
from bench.peers.rabbitmq import RabbitServer

from bench import amqp


def confirm(tag: int, *, is_multiple: bool) -> bytes:
    return amqp.method(amqp.ACK, struct.pack(">QB", tag, is_multiple))


def delivery(tag: int) -> bytes:
    return amqp.method(amqp.DELIVER, amqp.short("a consumer") + struct.pack(">QB", tag, 0) + amqp.short("") * 2)


@pytest.mark.parametrize("size", [1, 3, 7, 8, 64])
def test_frames_are_found_however_they_are_cut(size: int) -> None:
    data = delivery(7) + amqp.publish("orders", b"body") + delivery(2**40)
    frames, found = amqp.Frames(), []
    for at in range(0, len(data), size):
        found += frames.feed(data[at : at + size])
    tags = [amqp.delivery_tag(said) for name, said in found if name == amqp.DELIVER]
    assert tags == [7, 2**40]


def test_every_message_is_acknowledged_by_itself() -> None:
    found = amqp.Frames().feed(amqp.acknowledgements([3, 1, 2]))
    assert [(name, struct.unpack(">QB", said)) for name, said in found] == [(amqp.ACK, (tag, 0)) for tag in (3, 1, 2)]


def test_a_confirm_may_speak_for_all_before_it() -> None:
    replies = ConfirmReplies(messages_per_frame=10)
    assert replies.feed(memoryview(confirm(9, is_multiple=True))) == 0
    assert replies.feed(memoryview(confirm(10, is_multiple=False))) == 1
    assert replies.feed(memoryview(confirm(45, is_multiple=True))) == 3


def test_a_message_that_was_refused_ends_the_round() -> None:
    with pytest.raises(RuntimeError, match="refused"):
        ConfirmReplies(1).feed(memoryview(amqp.method(amqp.NACK, struct.pack(">QB", 1, 0))))


def test_a_connection_that_is_closed_says_why() -> None:
    closed = amqp.method((10, 50), struct.pack(">H", 404) + amqp.short("NOT_FOUND - no queue") + bytes(4), channel=0)
    with pytest.raises(ConnectionError, match="NOT_FOUND"):
        amqp.Frames().feed(closed)


@pytest.mark.campaign  # a RabbitMQ of its own: ten seconds, where it is installed
def test_a_quorum_queue_is_emptied_one_by_one(tmp_path: Path) -> None:
    server = RabbitServer(tmp_path / "rabbit" / "data")
    try:
        with server:
            admin = amqp.AmqpConnection(server.address)
            admin.declare("orders")
            figures = run(
                QueueJob(dialect="rabbitmq", port=server.port, pids=server.pids, topic="orders", messages=5_000)
            )
            assert figures["messages"] >= 4_000
            assert figures["consumers_served"] == 4
            assert admin.messages("orders") == 0
            admin.close()
    except PeerUnavailable as reason:
        pytest.skip(str(reason))
