"""JoinGroup at the door: what cannot be joined is refused in every version."""

from pathlib import Path

from clarion.model.errors import ErrorCode
from clarion.wire.messages.groups import JoinGroupRequest
from tests.broker.harness import running, versions_of


async def test_a_group_without_a_name_is_refused_in_every_version(tmp_path: Path):
    async with running(tmp_path) as node:
        for version in versions_of("JoinGroup"):
            request = JoinGroupRequest(
                group_id="", session_timeout=6000, member_id="", protocol_type="consumer", protocols=()
            )
            reply = await node.ask(request, version)
            assert reply.error_code == ErrorCode.INVALID_GROUP_ID, f"v{version}"
