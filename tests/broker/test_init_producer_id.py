import asyncio

import pytest

from clarion.cluster import StoreError
from clarion.cluster.sqlite_store import SqliteStore
from clarion.model.errors import ErrorCode
from clarion.wire.messages.logs import InitProducerIdRequest
from clarion.wire.messages.topics import CreatableTopic, CreateTopicsRequest
from tests.broker.harness import Client, Node, running, versions_of


async def ask(node: Node | Client, version: int = 5, **more):
    return await node.ask(InitProducerIdRequest(transaction_timeout=60_000, **more), version)


@pytest.mark.parametrize("version", versions_of("InitProducerId"))
async def test_every_version_gives_a_fresh_id_with_epoch_0(tmp_path, version):
    async with running(tmp_path) as node:
        first, second = await ask(node, version), await ask(node, version)
        assert (first.error_code, first.producer_epoch, second.producer_epoch) == (0, 0, 0)
        assert first.producer_id != second.producer_id


@pytest.mark.parametrize("version", versions_of("InitProducerId"))
async def test_a_transactional_id_is_refused_for_good_at_once(tmp_path, version):
    async with running(tmp_path) as node:
        reply = await ask(node, version, transactional_id="tx")
        assert reply.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert (reply.producer_id, reply.producer_epoch) == (-1, -1)
        assert (await ask(node, version, transactional_id="")).error_code == ErrorCode.INVALID_REQUEST


async def test_a_producer_that_had_an_id_gets_a_new_one(tmp_path):
    async with running(tmp_path) as node:
        old = (await ask(node)).producer_id
        reply = await ask(node, producer_id=old, producer_epoch=3)
        assert (reply.error_code, reply.producer_epoch) == (0, 0)
        assert reply.producer_id != old


async def test_an_id_without_an_epoch_makes_no_sense(tmp_path):
    async with running(tmp_path) as node:
        assert (await ask(node, producer_id=7)).error_code == ErrorCode.INVALID_REQUEST
        assert (await ask(node, producer_epoch=7)).error_code == ErrorCode.INVALID_REQUEST


async def test_ids_are_never_given_twice_not_even_by_the_next_start(tmp_path):
    given = []
    for _ in range(2):
        async with running(tmp_path) as node:
            clients = [await Client.connect(*node.server.addresses[0]) for _ in range(5)]
            for _ in range(3):
                given += [reply.producer_id for reply in await asyncio.gather(*map(ask, clients))]
            for client in clients:
                client.close()
    assert len(set(given)) == 30


async def test_ids_and_topics_can_be_made_at_the_same_time(tmp_path):
    """Both write to the store."""
    async with running(tmp_path) as node:
        client = await Client.connect(*node.server.addresses[0])
        await asyncio.gather(*(node.topic(f"t{number}") for number in range(10)), ask(client))
        client.close()
    async with running(tmp_path) as node:
        assert len(node.broker.image.topics) == 10


async def test_an_id_is_not_held_up_by_a_topic_that_takes_its_time(tmp_path):
    """Nor is the first one of a block, which is written to the store."""
    async with running(tmp_path) as node, node.broker._changing:
        for _ in range(2):
            assert (await asyncio.wait_for(ask(node), 60)).error_code == 0


async def test_while_the_store_does_not_answer_who_needs_it_is_told_to_ask_again(tmp_path, monkeypatch):
    async def away(*asked):
        raise StoreError("it is away")

    async with running(tmp_path) as node:
        monkeypatch.setattr(SqliteStore, "get", away)
        monkeypatch.setattr(SqliteStore, "transact", away)
        assert (await ask(node)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        wanted = CreatableTopic(name="t", num_partitions=1, replication_factor=1, assignments=(), configs=())
        (refused,) = (await node.ask(CreateTopicsRequest(topics=(wanted,), validate_only=False), 7)).topics
        assert refused.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert "did not answer" in refused.error_message
        monkeypatch.undo()
        assert (await ask(node)).error_code == 0
