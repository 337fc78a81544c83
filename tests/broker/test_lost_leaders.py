"""Who asks for metadata in the moment in which a leader is lost hears of its successor, or after a while of what is."""

from __future__ import annotations

import asyncio
from uuid import UUID

from clarion.broker.broker import Broker
from clarion.broker.lost_leaders import LostLeaders
from clarion.cluster import BrokerRegistration, ClusterImage, Endpoint, PartitionState
from clarion.cluster.coordination import Change, Entry, KeyEvent, Revision
from clarion.cluster.image import EMPTY
from clarion.cluster.schema import (
    TopicEntry,
    broker_key,
    partition_key,
    topic_key,
    write_broker,
    write_partition,
    write_topic,
)
from clarion.testing import cluster
from tests.raw_client import RawClient

FOR_EVER = 3600.0
TOPIC = UUID(int=1)


class Told:
    """What brokers hear from the store."""

    def __init__(self) -> None:
        self._revision = 0
        self.image = EMPTY
        for broker in (1, 2, 3):
            here = BrokerRegistration(broker, broker, (Endpoint("h", broker),), None)
            self._put(broker_key(broker), write_broker(here))
        self._put(topic_key("t"), write_topic(TopicEntry(TOPIC, 1, {}, None)))
        self.lead(1)

    def lead(self, leader: int) -> ClusterImage:
        return self._put(partition_key(TOPIC, 0), write_partition(PartitionState(leader, 0, (1, 2, 3), (1, 2, 3))))

    def leave(self, broker: int) -> ClusterImage:
        return self._put(broker_key(broker), None)

    def leaders(self) -> list[int]:
        return [state.leader for state in self.image.topics["t"].partitions]

    def _put(self, key: str, value: bytes | None) -> ClusterImage:
        self._revision += 1
        at = Revision(self._revision)
        entry = None if value is None else Entry(key, value, at, at)
        self.image = self.image.after(Change(at, (KeyEvent(key, entry),)))
        return self.image


async def is_waiting(task: asyncio.Future[None]) -> bool:
    for _ in range(20):
        await asyncio.sleep(0)
    return not task.done()


async def test_who_asks_waits_from_the_lost_connection_to_the_election():
    told, lost = Told(), LostLeaders(FOR_EVER)
    lost.on_image(told.image)
    assert not lost
    lost.lose(1)
    asking = asyncio.ensure_future(lost.replaced(told.leaders))
    assert await is_waiting(asking)
    lost.on_image(told.leave(1))
    assert await is_waiting(asking), "its lease has ended, and nobody leads yet"
    lost.on_image(told.lead(2))
    await asking
    assert not lost


async def test_who_was_not_connected_waits_from_the_end_of_the_lease():
    told, lost = Told(), LostLeaders(FOR_EVER)
    lost.on_image(told.image)
    lost.on_image(told.leave(1))
    asking = asyncio.ensure_future(lost.replaced(told.leaders))
    assert await is_waiting(asking)
    lost.on_image(told.lead(3))
    await asking


async def test_who_asks_about_others_does_not_wait_and_nobody_does_for_one_who_led_nothing():
    told, lost = Told(), LostLeaders(FOR_EVER)
    lost.on_image(told.image)
    lost.lose(1)
    await lost.replaced(lambda: [2, 3])
    lost.lose(2)
    await lost.replaced(lambda: [2])


async def test_a_loss_that_comes_together_with_the_question_is_heard_first():
    """As when a busy broker finds both in its sockets at once."""
    told, lost = Told(), LostLeaders(FOR_EVER)
    lost.on_image(told.image)
    asking = asyncio.ensure_future(lost.replaced(told.leaders))
    await asyncio.sleep(0)
    lost.lose(1)
    assert await is_waiting(asking)
    lost.find(1)
    await asking


async def test_a_leader_that_answers_again_was_not_lost():
    told, lost = Told(), LostLeaders(FOR_EVER)
    lost.on_image(told.image)
    lost.lose(1)
    asking = asyncio.ensure_future(lost.replaced(told.leaders))
    assert await is_waiting(asking)
    lost.find(1)
    await asking


async def test_nobody_waits_for_long():
    told, lost = Told(), LostLeaders(0.01)
    lost.on_image(told.image)
    lost.lose(1)
    await lost.replaced(told.leaders)
    assert not lost


def test_the_first_answer_after_the_death_of_a_leader_names_its_successor():
    """Not the dead one, after which librdkafka waits for a second, and not that there is none."""
    with cluster(brokers=3, topics=["t"]) as brokers:
        brokers.wait_until_in_sync("t")
        led_by = brokers.leader_of("t")
        asked = brokers[next(one for one in (1, 2, 3) if one != led_by)]
        asked._call(be_patient)
        group = asked._call(lambda broker: group_coordinated_by(broker, led_by))
        with RawClient(asked.bootstrap) as client:
            brokers.kill(led_by)
            brokers.wait_for(lambda: asked._call(lambda broker: knows_of_loss(broker, led_by)))
            told = client.ask("metadata", 9, topics=[{"name": "t"}], allow_auto_topic_creation=False)
            assert told.topics[0].partitions[0].leader_id not in (led_by, -1)
            if group is not None:
                found = client.ask("find_coordinator", 4, key_type=0, coordinator_keys=[group])
                assert found.coordinators[0].node_id not in (led_by, -1)


def be_patient(broker: Broker) -> None:
    assert broker.node is not None
    broker.node.lost_leaders.wait_seconds = FOR_EVER


def group_coordinated_by(broker: Broker, leader: int) -> str | None:
    return next((one for one in map(str, range(100)) if broker.groups.runtime.leader_of(one) == leader), None)


def knows_of_loss(broker: Broker, leader: int) -> bool:
    assert broker.node is not None
    return bool(broker.node.lost_leaders) or broker.image.topics["t"].partitions[0].leader != leader
