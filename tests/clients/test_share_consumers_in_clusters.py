"""confluent-kafka's share consumer over three brokers, of which those that lead and coordinate are killed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import AcknowledgeType

from clarion.model.names import OFFSETS_TOPIC, SHARE_STATE_TOPIC
from clarion.testing.embedded_cluster import EmbeddedCluster, cluster
from tests.clients.test_share_consumers import PATIENCE_SECONDS, consumer, made, some

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def brokers() -> Iterator[EmbeddedCluster]:
    with cluster(brokers=3, share_state_partitions=3, offsets_partitions=3, session_seconds=10.0) as three:
        yield three


def test_consumers_share_what_three_brokers_lead(brokers: EmbeddedCluster) -> None:
    made(brokers.bootstrap, "t", 300, partitions=3)
    assert {brokers.leader_of("t", index) for index in range(3)} == {1, 2, 3}
    seen: list[bytes | None] = []
    with consumer(brokers.bootstrap, "t") as one, consumer(brokers.bootstrap, "t") as other:
        while len(seen) < 300:
            for who in (one, other):
                seen += [message.value() for message in some_of(who)]
    assert sorted(seen) == sorted(b"%d" % number for number in range(300))


@pytest.mark.parametrize("who", ["leader", SHARE_STATE_TOPIC, OFFSETS_TOPIC])
def test_what_was_said_holds_when_a_broker_is_killed(brokers: EmbeddedCluster, who: str) -> None:
    made(brokers.bootstrap, "t", 10)
    with consumer(brokers.bootstrap, "t", share_acknowledgement_mode="explicit") as one:
        for message in some(one, 10):
            one.acknowledge(message, AcknowledgeType.ACCEPT if message.offset() % 2 else AcknowledgeType.RELEASE)
        assert list(one.commit_sync(timeout=PATIENCE_SECONDS).values()) == [None]
    topic = "t" if who == "leader" else who
    brokers.wait_until_in_sync(topic)
    brokers.kill(brokers.leader_of(topic))
    with consumer(brokers.bootstrap, "t", share_acknowledgement_mode="explicit") as later:
        again = some(later, 5)
        assert sorted(message.offset() for message in again) == [0, 2, 4, 6, 8]
        assert {message.delivery_count() for message in again} == {2}


def some_of(who) -> list:
    return [message for message in who.poll(timeout=0.2) if message.error() is None]
