"""UnregisterBroker: a broker that is away and holds nothing is forgotten; all others are not."""

from __future__ import annotations

from pathlib import Path

from clarion.cluster.schema import life_key
from clarion.model.errors import ErrorCode
from clarion.wire.messages.controller import UnregisterBrokerRequest
from tests.broker.harness import Node, running, until
from tests.broker.test_cluster import cluster_of
from tests.broker.test_dynamic_settings import BROKER, SET, alter


async def unregister(node: Node, broker_id: int) -> tuple[int, str | None]:
    reply = await node.ask(UnregisterBrokerRequest(broker_id=broker_id), 0)
    return reply.error_code, reply.error_message


async def test_only_who_is_away_and_holds_nothing_is_forgotten(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 2) as cluster:
        node = cluster[1]
        assert await alter(cluster[2], BROKER, "2", ("log.cleaner.backoff.ms", SET, "7000")) == (0, None)
        await node.broker.create_topic("t", 1, {}, 1, [(2,)])
        code, why = await unregister(node, 2)
        assert (code, why) == (ErrorCode.INVALID_REQUEST, "Broker 2 is running. Stop it first.")
        await cluster.stop(2)
        await cluster.everybody_knows(1)
        code, why = await unregister(node, 2)
        assert (code, "1 partitions still have a replica there" in (why or "")) == (ErrorCode.INVALID_REQUEST, True)
        await node.broker.delete_topic("t")
        await until(lambda: "t" not in node.broker.image.topics)
        assert await unregister(node, 2) == (0, None)
        assert await node.server.store.get(life_key(2)) is None
        assert not node.broker.settings.get("broker", "2")
        assert (await unregister(node, 2))[0] == ErrorCode.BROKER_ID_NOT_REGISTERED
        await cluster.start(2)
        await cluster.everybody_knows(1, 2)


async def test_a_broker_that_is_alone_knows_no_others(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        assert (await unregister(node, 1))[0] == ErrorCode.INVALID_REQUEST
        assert (await unregister(node, 2))[0] == ErrorCode.BROKER_ID_NOT_REGISTERED
