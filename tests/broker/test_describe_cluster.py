import pytest

from clarion.model.errors import ErrorCode
from clarion.wire.messages.metadata import DescribeClusterRequest
from tests.broker.harness import Node, running, versions_of


async def ask(node: Node, version: int = 2, *, operations: bool = False, endpoint_type: int = 1):
    request = DescribeClusterRequest(include_cluster_authorized_operations=operations, endpoint_type=endpoint_type)
    return await node.ask(request, version)


@pytest.mark.parametrize("version", versions_of("DescribeCluster"))
async def test_every_version_tells_who_is_there(tmp_path, version):
    async with running(tmp_path) as node:
        reply = await ask(node, version)
        assert (reply.error_code, reply.cluster_id, reply.controller_id) == (0, node.broker.image.cluster_id, 1)
        (broker,) = reply.brokers
        assert (broker.broker_id, broker.host, broker.port) == (1, *node.server.addresses[0])
        assert not broker.is_fenced
        assert reply.cluster_authorized_operations == -(2**31)
        assert (await ask(node, version, operations=True)).cluster_authorized_operations == 8096


async def test_questions_for_controllers_and_strangers_are_refused(tmp_path):
    async with running(tmp_path) as node:
        for endpoint_type, code in ((2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (9, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)):
            reply = await ask(node, endpoint_type=endpoint_type)
            assert (reply.error_code, reply.brokers) == (code, ())
            assert reply.error_message
