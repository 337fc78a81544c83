"""Idempotent producers: every message once and in order, whatever happens to the broker."""

import pytest

from tests.clients.adapters import Confluent
from tests.clients.adapters.model import EARLIEST, PATIENCE_S, Client, Outgoing
from tests.waiting import wait_for

COUNT = 600


@pytest.mark.needs("idempotence")
def test_an_idempotent_producer_is_served(client: Client, topic: str) -> None:
    sent = [Outgoing(b"%d" % n) for n in range(100)]
    client.produce(topic, sent, idempotent=True)
    client.produce(topic, sent, idempotent=True)
    assert [m.value for m in client.read(topic, 0, EARLIEST, 200)] == [r.value for r in sent] * 2


@pytest.mark.needs("idempotence", "acks")
@pytest.mark.parametrize("kill", [True, False], ids=["killed", "stopped"])
def test_a_broker_restart_in_mid_stream_neither_loses_nor_repeats_nor_reorders(
    client: Client, unique: str, own_server, kill: bool
) -> None:
    admin = Confluent(own_server.bootstrap)
    client = type(client)(own_server.bootstrap)
    admin.create_topic(unique)
    stream = client.stream(idempotent=True)
    for n in range(COUNT // 3):
        stream.send(unique, Outgoing(b"%d" % n))
    wait_for(lambda: stream.acknowledged() > 10, what="the first acknowledgements")
    for n in range(COUNT // 3, 2 * COUNT // 3):
        stream.send(unique, Outgoing(b"%d" % n))
    own_server.restart(kill=kill)
    for n in range(2 * COUNT // 3, COUNT):
        stream.send(unique, Outgoing(b"%d" % n))
    acks = stream.finish()
    assert acks == [(0, n) for n in range(COUNT)], "acknowledged offsets follow the order of sending, without gaps"
    found = Confluent(own_server.bootstrap).read(unique, 0, EARLIEST, COUNT, seconds=PATIENCE_S)
    assert [m.value for m in found] == [b"%d" % n for n in range(COUNT)]
    client.close()
