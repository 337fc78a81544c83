from clarion.model.errors import ErrorCode
from clarion.wire.messages.metadata import Cursor, DescribeTopicPartitionsRequest, TopicRequest
from tests.broker.harness import Node, running


async def ask(node: Node, *names: str, limit: int = 2000, cursor: Cursor | None = None):
    topics = tuple(TopicRequest(name=name) for name in names)
    request = DescribeTopicPartitionsRequest(topics=topics, response_partition_limit=limit, cursor=cursor)
    return await node.ask(request, 0)


def listed(reply) -> list[tuple[str, list[int]]]:
    return [(topic.name, [one.partition_index for one in topic.partitions]) for topic in reply.topics]


async def test_a_topic_is_described_with_its_partitions(tmp_path):
    async with running(tmp_path) as node:
        await node.topic("t", 2)
        reply = await ask(node, "t")
        (topic,) = reply.topics
        assert (topic.error_code, topic.topic_id, topic.is_internal) == (0, node.broker.image.topics["t"].id, False)
        assert topic.topic_authorized_operations == 3576
        for partition in topic.partitions:
            assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (1, (1,), (1,))
            assert partition.leader_epoch == node.partition("t", 0).leader_epoch
            assert partition.eligible_leader_replicas == partition.last_known_elr == partition.offline_replicas == ()
        assert reply.next_cursor is None


async def test_the_pages_of_all_topics_together_are_all_partitions_once(tmp_path):
    async with running(tmp_path) as node:
        for name, count in (("b", 3), ("a", 2), ("c", 1), ("d", 4)):
            await node.topic(name, count)
        whole = [(name, index) for name, count in (("a", 2), ("b", 3), ("c", 1), ("d", 4)) for index in range(count)]
        for limit in (1, 2, 3, 5, 10, 2000):
            found, cursor, pages = [], None, 0
            while pages == 0 or cursor is not None:
                reply = await ask(node, limit=limit, cursor=cursor)
                page = [(name, index) for name, indexes in listed(reply) for index in indexes]
                assert 0 < len(page) <= limit
                found, cursor, pages = found + page, reply.next_cursor, pages + 1
            assert found == whole
            assert pages == -(-len(whole) // limit)


async def test_a_cursor_points_at_the_first_partition_that_did_not_fit(tmp_path):
    async with running(tmp_path) as node:
        await node.topic("a", 2)
        await node.topic("b", 2)
        reply = await ask(node, "b", "a", limit=3)
        assert listed(reply) == [("a", [0, 1]), ("b", [0])]
        assert reply.next_cursor == Cursor(topic_name="b", partition_index=1)
        assert (await ask(node, "b", "a", limit=2)).next_cursor == Cursor(topic_name="b", partition_index=0)


async def test_a_limit_that_makes_no_sense_still_makes_progress(tmp_path):
    async with running(tmp_path) as node:
        await node.topic("a", 2)
        assert listed(await ask(node, "a", limit=0)) == [("a", [0])]
        assert listed(await ask(node, "a", limit=-5)) == [("a", [0])]


async def test_a_cursor_may_point_at_what_is_gone(tmp_path):
    async with running(tmp_path) as node:
        await node.topic("a", 2)
        await node.topic("c", 2)
        assert listed(await ask(node, cursor=Cursor(topic_name="b", partition_index=1))) == [("c", [0, 1])]
        assert listed(await ask(node, cursor=Cursor(topic_name="c", partition_index=9))) == [("c", [])]


async def test_a_cursor_outside_of_what_is_asked_for_is_refused(tmp_path):
    async with running(tmp_path) as node:
        await node.topic("a", 2)
        await node.topic("b", 2)
        for cursor in (Cursor(topic_name="c", partition_index=0), Cursor(topic_name="a", partition_index=-1)):
            reply = await ask(node, "a", "b", cursor=cursor)
            assert {topic.name: topic.error_code for topic in reply.topics} == dict.fromkeys("ab", 42)
            assert reply.next_cursor is None


async def test_unknown_topics_have_an_error_of_their_own(tmp_path):
    async with running(tmp_path) as node:
        await node.topic("t")
        reply = await ask(node, "t", "nowhere", "a/b")
        assert {topic.name: topic.error_code for topic in reply.topics} == {
            "t": 0,
            "nowhere": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "a/b": ErrorCode.INVALID_TOPIC_EXCEPTION,
        }
