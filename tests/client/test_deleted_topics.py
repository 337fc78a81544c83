"""A topic that is deleted under its writers and readers: nobody makes it anew, and nobody waits for it in silence."""

from __future__ import annotations

import pytest

import clarion
from clarion.client.bus import Bus
from clarion.model.errors import ErrorCode
from clarion.testing import EmbeddedBroker


def test_a_write_makes_no_topic_anew_that_was_deleted(bus: Bus, broker: EmbeddedBroker, topic: str) -> None:
    bus.write(topic, b"while it is there")
    with clarion.connect(broker.bootstrap) as another:
        another.delete_topic(topic)
    with pytest.raises(clarion.UnknownTopic, match=rf"was deleted; bus.create\('{topic}'\)") as caught:
        bus.write(topic, b"too late")
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(clarion.UnknownTopic):
        bus.write_many(topic, [b"too", b"late"])
    assert topic not in broker.topics()


def test_a_topic_that_is_made_anew_is_written_to_by_those_who_wrote_to_the_one_before(
    bus: Bus, broker: EmbeddedBroker, topic: str
) -> None:
    bus.write(topic, b"before")
    with clarion.connect(broker.bootstrap) as another:
        another.delete_topic(topic)
        with pytest.raises(clarion.UnknownTopic):
            bus.write(topic, b"in between")
        another.create(topic)
    assert bus.write(topic, b"after").offset == 0
