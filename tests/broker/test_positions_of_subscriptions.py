"""How far a stream subscription has read is remembered for as long as there is the subscription."""

from __future__ import annotations

import pytest

from clarion.broker.authorizer import ANONYMOUS
from clarion.model.subscription import CONSUMED, STREAM, Subscription
from tests.broker.harness import Node, until
from tests.broker.kept import HOUR, Kept, commit, keeping

OFTEN = {"offsets_retention_check_interval_ms": 1, "offsets_partitions": 1}
DAY = 24 * HOUR


def has_committed(node: Node, group: str) -> bool:
    return node.broker.groups.committed_offset(group, node.partition().tp) is not None


@pytest.mark.parametrize("retention_ms", [14 * DAY * 1000, CONSUMED])
async def test_its_position_outlives_that_of_a_group_that_nobody_has_named(tmp_path, clock, retention_ms):
    async with keeping(tmp_path, clock, **OFTEN) as node:
        await node.topic()
        one = Subscription(name="bank", topics=("t",), mode=STREAM, retention_ms=retention_ms)
        await node.broker.subscriptions.create(one, ANONYMOUS)
        kept = Kept(node, clock)
        await kept.write(b"a", b"b")
        for group in ("bank", "any"):
            await commit(node, group, 1)
        await kept.pass_time(8 * DAY)
        await until(lambda: not has_committed(node, "any"))
        await commit(node, "any", 1)
        await kept.pass_time(8 * DAY)
        await until(lambda: not has_committed(node, "any"))
        assert has_committed(node, "bank")
        await node.broker.subscriptions.delete("bank", ANONYMOUS)
        await until(lambda: not has_committed(node, "bank"))
