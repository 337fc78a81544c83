"""Heartbeats with regular expressions over thousands of topics leave the others their turns."""

import asyncio
import threading
from uuid import uuid4

from clarion.broker import group_service
from clarion.broker.config import Durability
from clarion.groups.topics import TopicInfo, TopicsView
from clarion.model.errors import ErrorCode
from clarion.wire.messages.groups import ConsumerGroupHeartbeatRequest
from clarion.wire.messages.metadata import FindCoordinatorRequest, MetadataRequest, MetadataRequestTopic
from tests.broker.harness import running, until
from tests.loop_turns import watched_turns

COSTLY = "|".join(f".*{number}.*a" for number in range(200))
TOPICS = 4_000


def heartbeat(regex: str | None, epoch: int = 0) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        member_epoch=epoch,
        rebalance_timeout=60_000,
        subscribed_topic_regex=regex,
        topic_partitions=() if epoch == 0 else None,
    )


async def test_a_costly_expression_is_resolved_beside_the_loop(tmp_path):
    async with running(tmp_path, durability=Durability.PAGE_CACHE) as node:
        await node.ask(FindCoordinatorRequest(key="g"), 2)
        service = node.server.groups
        view = TopicsView({f"topic-name-{n:05}": TopicInfo(uuid4(), 1) for n in range(TOPICS)})
        service._view = view  # as if so many were there: making them takes longer than the rest of the test
        for shard in service.shards:
            shard.coordinator.on_topics_changed(view)
        async with watched_turns("a costly expression"):
            reply = await node.ask(heartbeat(COSTLY), 1)
        assert reply.error_code == ErrorCode.NONE, reply.error_message
        assert view.resolved == {COSTLY: ()}


async def test_nobodys_long_request_waits_for_a_costly_expression(tmp_path, monkeypatch):
    has_begun, may_go = threading.Event(), threading.Event()
    resolve = group_service.resolve

    def costly(*what):
        has_begun.set()
        assert may_go.wait(60)
        return resolve(*what)

    monkeypatch.setattr(group_service, "resolve", costly)
    async with running(tmp_path, durability=Durability.PAGE_CACHE) as node, node.another() as other:
        await node.topic("log-a")
        await node.ask(FindCoordinatorRequest(key="g"), 2)
        joining = asyncio.create_task(node.ask(heartbeat("log-.*"), 1))
        await until(has_begun.is_set)
        names = tuple(MetadataRequestTopic(name=f"topic-{number}") for number in range(2_000))
        try:
            reply = await other.ask(MetadataRequest(topics=names, allow_auto_topic_creation=False), 9)
            assert len(reply.topics) == len(names)
            assert not joining.done()
        finally:
            may_go.set()
        assert (await joining).error_code == ErrorCode.NONE


async def test_a_new_topic_reaches_a_group_that_subscribes_by_expression(tmp_path):
    async with running(tmp_path, durability=Durability.PAGE_CACHE) as node:
        await node.topic("log-a")
        await node.ask(FindCoordinatorRequest(key="g"), 2)
        joined = await node.ask(heartbeat("log-.*"), 1)
        assert [len(one.partitions) for one in joined.assignment.topic_partitions] == [1]
        await node.topic("log-b")
        await until(lambda: "log-b" in node.server.groups._view.topics)
        again = await node.ask(heartbeat(None, joined.member_epoch), 1)
        assert len(again.assignment.topic_partitions) == 2
