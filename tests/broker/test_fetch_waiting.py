"""The long poll: it ends with enough data, with bad news or with its time, and leaves nothing when its client goes."""

import asyncio
import gc
import time

import pytest

from clarion.broker.apis.k01_fetch import Fetch
from clarion.broker.config import Durability
from clarion.model.errors import ErrorCode
from tests.broker.harness import running, until
from tests.broker.talk import NEW_SESSION, batch

T0, T1 = ("t", 0), ("t", 1)
QUICK = {"durability": Durability.PAGE_CACHE}
LONG = 20_000


def is_waiting(node, topic="t", index=0) -> bool:
    return any(session.on_news for session in node.partition(topic, index).watchers)


async def test_it_ends_as_soon_as_there_is_a_message(tmp_path):
    async with running(tmp_path, **QUICK) as node, node.another() as reader:
        await node.topic()
        began = time.monotonic()
        reader.post_fetch({T0: 0}, max_wait=LONG)
        await until(lambda: is_waiting(node))
        await node.client.produce({T0: batch(b"news")})
        assert (await reader.fetched()).values() == [b"news"]
        assert time.monotonic() - began < 10
        assert not node.partition().watchers


async def test_it_ends_with_its_time_and_says_where_the_log_stands(tmp_path):
    async with running(tmp_path, **QUICK) as node, node.another() as reader:
        await node.topic()
        began = time.monotonic()
        answer = await reader.fetch({T0: 0}, max_wait=100)
        assert 0.09 < time.monotonic() - began < 10
        assert (answer.errors(), answer.partitions[T0].high_watermark) == ({T0: 0}, 0)
        assert not node.partition().watchers


async def test_several_partitions_add_up_to_the_wanted_bytes(tmp_path):
    async with running(tmp_path, **QUICK) as node, node.another() as reader:
        await node.topic(partitions=2)
        one = len(batch(b"x" * 1000))
        reader.post_fetch({T0: 0, T1: 0}, max_wait=LONG, min_bytes=2 * one)
        await until(lambda: is_waiting(node))
        await node.client.produce({T0: batch(b"x" * 1000)})
        await asyncio.sleep(0.02)
        assert is_waiting(node)
        await node.client.produce({T1: batch(b"x" * 1000)})
        answer = await reader.fetched()
        assert [len(answer.records(*place)) for place in (T0, T1)] == [one, one]


async def test_what_was_there_before_counts_too(tmp_path):
    async with running(tmp_path, **QUICK) as node, node.another() as reader:
        await node.topic()
        one = len(batch(b"x" * 1000))
        await node.client.produce({T0: batch(b"x" * 1000)})
        reader.post_fetch({T0: 0}, max_wait=LONG, min_bytes=2 * one)
        await until(lambda: is_waiting(node))
        await node.client.produce({T0: batch(b"x" * 1000)})
        assert len((await reader.fetched()).records()) == 2 * one


async def test_a_roll_in_between_hides_nothing(tmp_path):
    async with running(tmp_path, **QUICK) as node, node.another() as reader:
        await node.topic(segment_bytes="1100")
        one = len(batch(b"x" * 1000))
        reader.post_fetch({T0: 0}, max_wait=LONG, min_bytes=3 * one)
        await until(lambda: is_waiting(node))
        for _ in range(3):
            await node.client.produce({T0: batch(b"x" * 1000)})
        assert len((await reader.fetched()).records()) == 3 * one


async def test_nobody_waits_for_more_than_an_answer_may_hold(tmp_path):
    async with running(tmp_path, **QUICK) as node, node.another() as reader:
        await node.topic()
        await node.client.produce({T0: batch(b"x" * 5000)})
        answer = await reader.fetch({T0: 0}, max_wait=LONG, min_bytes=1_000_000, max_bytes=2000)
        assert len(answer.records()) > 5000


@pytest.mark.parametrize(("min_bytes", "max_wait"), [(0, LONG), (1, 0), (1, -1)])
async def test_who_needs_not_wait_is_answered_at_once(tmp_path, min_bytes, max_wait):
    async with running(tmp_path, **QUICK) as node, node.another() as reader:
        await node.topic()
        answer = await asyncio.wait_for(reader.fetch({T0: 0}, max_wait=max_wait, min_bytes=min_bytes), 60)
        assert answer.errors() == {T0: 0}


async def test_an_empty_fetch_is_answered_at_once(tmp_path):
    async with running(tmp_path, **QUICK) as node, node.another() as reader:
        assert (await asyncio.wait_for(reader.fetch({}, max_wait=LONG), 60)).partitions == {}
        assert (await asyncio.wait_for(reader.fetch({}, max_wait=LONG, session=NEW_SESSION), 60)).partitions == {}


async def test_an_error_of_one_partition_ends_the_wait(tmp_path):
    async with running(tmp_path, **QUICK) as node, node.another() as reader:
        await node.topic()
        answer = await asyncio.wait_for(reader.fetch({T0: 0, ("nowhere", 0): 0}, max_wait=LONG), 60)
        assert answer.errors() == {T0: 0, ("nowhere", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


@pytest.mark.parametrize("version", [12, 13])
async def test_a_topic_that_is_deleted_ends_the_wait(tmp_path, version):
    async with running(tmp_path, **QUICK) as node, node.another() as reader:
        await node.topic()
        place = (node.broker.image.topics["t"].id, 0) if version == 13 else T0
        reader.post_fetch({place: 0}, version=version, max_wait=LONG)
        await until(lambda: is_waiting(node))
        await node.broker.delete_topic("t")
        code = ErrorCode.UNKNOWN_TOPIC_ID if version == 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await reader.fetched()).errors() == {place: code}


@pytest.mark.parametrize("session", [NEW_SESSION, (0, -1)])
async def test_a_client_that_goes_leaves_no_timer_and_no_watcher(tmp_path, session):
    async with running(tmp_path, **QUICK) as node:
        await node.topic(partitions=3)
        for _ in range(10):
            async with node.another() as reader:
                reader.post_fetch({("t", index): 0 for index in range(3)}, session=session, max_wait=LONG)
                await until(lambda: is_waiting(node))
                reader.reset()
            await until(lambda: len(node.server.net.connections) == 1)
        assert not is_waiting(node)
        await node.client.produce({T0: batch(b"v")})
        node.broker.sessions.expire(asyncio.get_running_loop().time() + 1_000)
        assert not any(node.partition("t", index).watchers for index in range(3))
        gc.collect()
        assert not [one for one in gc.get_objects() if isinstance(one, Fetch)]


@pytest.mark.uncompiled
async def test_a_mistake_while_waiting_ends_that_connection_and_the_produce_is_served(tmp_path, monkeypatch):
    async with running(tmp_path, **QUICK) as node, node.another() as reader:
        await node.topic()
        reader.post_fetch({T0: 0}, max_wait=LONG)
        await until(lambda: is_waiting(node))
        monkeypatch.setattr(Fetch, "_reply", lambda self, found: 1 // 0)
        produced = await node.client.produce({T0: batch(b"v")})
        assert produced[T0].error_code == 0
        assert await reader.is_refused()
        assert not node.partition().watchers


async def test_a_produce_behind_a_waiting_fetch_on_one_connection_wakes_it_and_keeps_the_order(tmp_path):
    from tests.broker.talk import produce_frame, read_produced

    async with running(tmp_path, **QUICK) as node:
        await node.topic()
        node.client.post_fetch({T0: 0}, max_wait=LONG)
        node.client.post(produce_frame({T0: batch(b"v")}))
        assert (await node.client.fetched()).values() == [b"v"]
        assert read_produced(await node.client.next_frame(), 9)[T0].base_offset == 0


async def test_a_hundred_readers_get_each_message_once_it_is_there(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic()
        readers = [await type(node.client).connect(*node.server.addresses[0]) for _ in range(100)]
        for number in range(3):
            for reader in readers:
                reader.post_fetch({T0: number}, max_wait=LONG)
            await until(lambda: sum(bool(one.on_news) for one in node.partition().watchers) == 100)
            await node.client.produce({T0: batch(b"%d" % number)})
            for reader in readers:
                assert (await reader.fetched()).values() == [b"%d" % number]
        for reader in readers:
            reader.close()
