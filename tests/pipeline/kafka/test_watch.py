"""The long poll over several leaders: whoever has news is heard at once, whoever has none keeps its question."""

import os
import resource
import select
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from clarion.model.ids import TopicPartition
from clarion.pipeline.kafka.client import Client
from clarion.pipeline.kafka.connection import BrokerConnection
from clarion.pipeline.kafka.errors import ConnectionLostError
from clarion.pipeline.kafka.offsets import READ_COMMITTED
from clarion.pipeline.kafka.settings import ClientSettings
from clarion.pipeline.kafka.watch import Watch, WatchedPosition
from tests.pipeline.topics import create, fill, numbered
from tests.servers import ClarionProcess
from tests.waiting import wait_for

PATIENCE_MS = 20_000


class TwoBrokers:
    """As a cluster looks to a watch: topic `t0` is led by one broker, `t1` by the other."""

    def __init__(self, servers: list[ClarionProcess]) -> None:
        self.clients = [Client(ClientSettings((server.bootstrap,))) for server in servers]
        self.settings = self.clients[0].settings
        self.positions = {}
        for nth, client in enumerate(self.clients):
            topic = client.topics([f"t{nth}"])[f"t{nth}"]
            self.positions[TopicPartition(topic.name, 0)] = WatchedPosition(topic.topic_id, 0)

    def leader_epoch(self, topic: str, partition: int) -> int:
        return -1

    def leader(self, topic: str, partition: int) -> int:
        return int(topic[1:])

    def open_connection(self, broker: int) -> BrokerConnection:
        client = self.clients[broker]
        return client.open_connection(client.leader(f"t{broker}", 0))

    def forget_leaders(self, topics: set[str]) -> None:
        for client in self.clients:
            client.forget_leaders(topics)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[ClarionProcess]]:
    made = [ClarionProcess(tmp_path / f"data{nth}", durability="page-cache").start() for nth in range(2)]
    for nth, server in enumerate(made):
        create(server.bootstrap, f"t{nth}")
    yield made
    for server in made:
        server.close()


def test_news_of_one_leader_do_not_wait_for_the_other(servers):
    brokers = TwoBrokers(servers)
    watch = Watch(brokers, READ_COMMITTED)
    fill(servers[1].bootstrap, "t1", numbered(5))
    began = time.monotonic()
    news = watch.poll(brokers.positions, PATIENCE_MS)
    assert time.monotonic() - began < PATIENCE_MS / 1000 / 2
    assert {tp.topic: one.end_offset for tp, one in news.items()} == {"t1": 5}
    moved = {tp: one._replace(offset=5) if tp.topic == "t1" else one for tp, one in brokers.positions.items()}
    fill(servers[0].bootstrap, "t0", numbered(7))
    news = watch.poll(moved, PATIENCE_MS)  # the question that the first broker was still holding
    assert {tp.topic: one.end_offset for tp, one in news.items()} == {"t0": 7}
    watch.close()


def test_a_driver_with_thousands_of_open_files_hears_news(servers):
    with many_open_files(1_100):
        brokers = TwoBrokers(servers)
        watch = Watch(brokers, READ_COMMITTED)
        fill(servers[1].bootstrap, "t1", numbered(5))
        news = watch.poll(brokers.positions, PATIENCE_MS)
        assert {tp.topic: one.end_offset for tp, one in news.items()} == {"t1": 5}
        watch.close()


def is_readable(connection: BrokerConnection) -> bool:
    looking = select.poll()
    looking.register(connection, select.POLLIN)
    return bool(looking.poll(0))


@contextmanager
def many_open_files(count: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4 * count)), hard))
    with ExitStack() as stack:
        for _ in range(count):
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_silence_ends_with_the_wait(servers):
    brokers = TwoBrokers(servers)
    watch = Watch(brokers, READ_COMMITTED)
    assert watch.poll(brokers.positions, 50) == {} or all(
        one.end_offset == 0 for one in watch.poll(brokers.positions, 50).values()
    )
    watch.close()


def test_a_look_does_not_wait_and_takes_no_old_answer_for_news(servers):
    """Whoever asks at intervals would else hear what was true when the last question ran out, for ever one too late."""
    brokers = TwoBrokers(servers)
    watch = Watch(brokers, READ_COMMITTED)
    assert {one.end_offset for one in watch.look(brokers.positions).values()} == {0}
    watch.poll(brokers.positions, 1, 50)  # both keep the question for a while, and answer that there is nothing
    for poll in watch._polls.values():
        wait_for(lambda poll=poll: is_readable(poll.connection), what="the answer to the old question")
    fill(servers[1].bootstrap, "t1", numbered(5))
    assert {tp.topic: one.end_offset for tp, one in watch.look(brokers.positions).items()} == {"t0": 0, "t1": 5}
    watch.poll(brokers.positions, 1, PATIENCE_MS)  # the first keeps its question now
    began = time.monotonic()
    watch.look(brokers.positions)
    assert time.monotonic() - began < PATIENCE_MS / 1000 / 2
    watch.close()


def test_a_message_is_weighed(servers):
    brokers = TwoBrokers(servers[:1])
    fill(servers[0].bootstrap, "t0", numbered(100, size=492))
    (news,) = Watch(brokers, READ_COMMITTED).poll(brokers.positions, PATIENCE_MS).values()
    assert 500 < news.bytes_per_row < 520


def test_a_leader_that_is_gone_is_an_error_that_may_pass(servers):
    brokers = TwoBrokers(servers)
    watch = Watch(brokers, READ_COMMITTED)
    watch.poll(brokers.positions, 1)
    servers[0].kill9()
    with pytest.raises(ConnectionLostError):
        watch.poll(brokers.positions, PATIENCE_MS)
