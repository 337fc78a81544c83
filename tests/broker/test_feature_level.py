"""The cluster's feature level: told to clients, raised when all know it, and older brokers stay away from then on."""

from __future__ import annotations

from pathlib import Path

import pytest

from clarion.cluster import schema
from clarion.cluster.coordination import Put
from clarion.cluster.features import CLUSTER_FEATURE, FeatureLevelError
from clarion.cluster.schema import LEVEL
from clarion.model.errors import ErrorCode
from clarion.wire.messages.controller import FeatureUpdateKey, UpdateFeaturesRequest
from clarion.wire.messages.metadata import ApiVersionsRequest
from tests.broker.harness import Node, running, until
from tests.broker.test_cluster import Cluster, cluster_of


async def levels(node: Node) -> tuple[int, int]:
    """The highest that the broker knows, and the one in force."""
    asked = ApiVersionsRequest(client_software_name="tests", client_software_version="1")
    reply = await node.ask(asked, 3)
    known = {one.name: one.max_version for one in reply.supported_features}
    in_force = {one.name: one.max_version_level for one in reply.finalized_features}
    return known.get(CLUSTER_FEATURE, 0), in_force.get(CLUSTER_FEATURE, 0)


async def raise_to(node: Node, level: int, *, validate_only: bool = False) -> tuple[int, str | None]:
    update = FeatureUpdateKey(feature=CLUSTER_FEATURE, max_version_level=level)
    reply = await node.ask(UpdateFeaturesRequest(feature_updates=(update,), validate_only=validate_only), 1)
    return reply.error_code, reply.error_message


async def test_a_broker_that_is_too_old_for_its_cluster_says_so_and_does_not_start(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 1) as cluster:
        await cluster[1].server.store.transact([], [Put(LEVEL, b"7")])
        with pytest.raises(FeatureLevelError, match=r"at feature level 7, .* knows levels up to 1: start a newer one"):
            await cluster.start(2)
        assert set(cluster[1].broker.image.brokers) == {1}


async def test_the_level_rises_when_all_know_it_and_never_falls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path)
    try:
        monkeypatch.setattr(schema, "FEATURE_LEVEL", 2)  # of a newer version
        await cluster.start(1)
        monkeypatch.undo()
        await cluster.start(3)
        await cluster.everybody_knows(1, 3)
        monkeypatch.setattr(schema, "FEATURE_LEVEL", 2)
        assert await levels(cluster[1]) == (2, 1)
        code, why = await raise_to(cluster[1], 2)
        assert code == ErrorCode.INVALID_UPDATE_VERSION
        assert "broker 3 does not know level 2 yet" in (why or "")
        await cluster.stop(3)
        await cluster.everybody_knows(1)
        assert await raise_to(cluster[1], 2, validate_only=True) == (0, None)
        assert await levels(cluster[1]) == (2, 1)
        assert await raise_to(cluster[1], 2) == (0, None)
        await until(lambda: cluster[1].broker.image.feature_level == 2)
        assert await levels(cluster[1]) == (2, 2)
        assert (await raise_to(cluster[1], 3))[0] == ErrorCode.INVALID_UPDATE_VERSION
        code, why = await raise_to(cluster[1], 1)
        assert code == ErrorCode.INVALID_UPDATE_VERSION
        assert "cannot be lowered" in (why or "")
        monkeypatch.undo()
        with pytest.raises(FeatureLevelError):
            await cluster.start(3)
    finally:
        await cluster.close()


async def test_a_broker_without_a_cluster_has_no_such_level(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        assert await levels(node) == (0, 0)
        assert (await raise_to(node, 1))[0] == ErrorCode.INVALID_UPDATE_VERSION
