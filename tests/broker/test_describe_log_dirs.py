import pytest

from clarion.wire.messages.replicas import DescribableLogDirTopic, DescribeLogDirsRequest
from tests.broker.harness import Node, running, versions_of


async def ask(node: Node, version: int = 4, **topics: tuple[int, ...]):
    asked = [DescribableLogDirTopic(topic=name, partitions=indexes) for name, indexes in topics.items()]
    reply = await node.ask(DescribeLogDirsRequest(topics=tuple(asked) if asked else None), version)
    assert reply.error_code == 0
    (result,) = reply.results
    return result


def sizes(result) -> dict[tuple[str, int], int]:
    return {
        (topic.name, one.partition_index): one.partition_size for topic in result.topics for one in topic.partitions
    }


@pytest.mark.parametrize("version", versions_of("DescribeLogDirs"))
async def test_every_version_tells_the_size_of_every_partition(tmp_path, version):
    async with running(tmp_path) as node:
        await node.topic("t", 2)
        await node.write("t", [1_700_000_000_000], partition=1)
        result = await ask(node, version)
        assert (result.error_code, result.log_dir) == (0, str(tmp_path))
        written = (tmp_path / "t-1" / f"{0:020d}.log").stat().st_size
        assert written > 0
        assert sizes(result) == {("t", 0): 0, ("t", 1): written}
        assert {(one.offset_lag, one.is_future_key) for one in result.topics[0].partitions} == {(0, False)}
        if version >= 4:
            assert result.total_bytes >= result.usable_bytes > 0


async def test_partitions_can_be_picked_and_unknown_ones_are_left_out(tmp_path):
    async with running(tmp_path) as node:
        await node.topic("t", 3)
        await node.topic("u")
        assert list(sizes(await ask(node, t=(1, 7), nowhere=(0,)))) == [("t", 1)]
