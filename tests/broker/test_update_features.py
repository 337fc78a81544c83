import pytest

from clarion.model.errors import ErrorCode
from clarion.wire.messages.controller import FeatureUpdateKey, UpdateFeaturesRequest
from tests.broker.harness import Node, running, versions_of


async def update(node: Node, version: int, *updates: tuple[str, int], validate_only: bool = False):
    keys = tuple(FeatureUpdateKey(feature=feature, max_version_level=level) for feature, level in updates)
    return await node.ask(UpdateFeaturesRequest(feature_updates=keys, validate_only=validate_only), version)


@pytest.mark.parametrize("version", versions_of("UpdateFeatures"))
async def test_every_version_accepts_the_level_that_is_set_anyway(tmp_path, version):
    async with running(tmp_path) as node:
        reply = await update(node, version, ("group.version", 1), validate_only=version >= 1)
        assert (reply.error_code, reply.error_message) == (0, None)
        assert [one.error_code for one in reply.results] == ([0] if version < 2 else [])


@pytest.mark.parametrize("version", versions_of("UpdateFeatures"))
@pytest.mark.parametrize("wanted", [("group.version", 0), ("group.version", 2), ("nonsense", 1)])
async def test_any_other_level_is_refused_and_with_it_the_whole_request(tmp_path, wanted, version):
    async with running(tmp_path) as node:
        reply = await update(node, version, wanted, ("metadata.version", 1))
        assert (reply.error_code, reply.results) == (ErrorCode.INVALID_UPDATE_VERSION, ())
        assert wanted[0] in reply.error_message


async def test_a_feature_that_is_named_twice_is_refused(tmp_path):
    async with running(tmp_path) as node:
        reply = await update(node, 2, ("group.version", 1), ("group.version", 1))
        assert reply.error_code == ErrorCode.INVALID_REQUEST
