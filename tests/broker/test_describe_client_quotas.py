import pytest

from clarion.model.errors import ErrorCode
from clarion.wire.messages.controller import ComponentData, DescribeClientQuotasRequest
from tests.broker.harness import Node, running, versions_of


async def describe(node: Node, *components: tuple[str, int, str | None], version: int = 1, strict: bool = False):
    asked = tuple(ComponentData(entity_type=kind, match_type=how, match=name) for kind, how, name in components)
    return await node.ask(DescribeClientQuotasRequest(components=asked, strict=strict), version)


@pytest.mark.parametrize("version", versions_of("DescribeClientQuotas"))
@pytest.mark.parametrize("asked", [[], [("user", 0, "me"), ("client-id", 2, None)], [("ip", 1, None)]])
async def test_nobody_has_a_quota(tmp_path, version, asked):
    async with running(tmp_path) as node:
        reply = await describe(node, *asked, version=version, strict=True)
        assert (reply.error_code, reply.error_message, reply.entries) == (0, None, ())


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ([("user", 0, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 1, "me")], ErrorCode.INVALID_REQUEST),
        ([("user", 2, "me")], ErrorCode.INVALID_REQUEST),
        ([("user", 3, None)], ErrorCode.INVALID_REQUEST),
        ([("", 2, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 2, None), ("user", 0, "me")], ErrorCode.INVALID_REQUEST),
        ([("ip", 2, None), ("user", 2, None)], ErrorCode.INVALID_REQUEST),
        ([("team", 2, None)], ErrorCode.UNSUPPORTED_VERSION),
    ],
)
async def test_a_filter_that_cannot_be_is_refused(tmp_path, asked, code):
    async with running(tmp_path) as node:
        reply = await describe(node, *asked)
        assert (reply.error_code, reply.entries) == (code, None)
        assert reply.error_message
