"""Where a request of HTTP's is done: by the topic that was meant, and not by another one of its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from clarion.broker.authorizer import ANONYMOUS
from clarion.gateway.brokers import Brokers
from clarion.gateway.reading import MessageReader
from clarion.model.errors import ErrorCode, KafkaError
from clarion.wire.records import encode_batch
from tests.broker.harness import running


async def test_a_topic_that_was_made_anew_meanwhile_is_not_the_one_that_was_meant(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        brokers = Brokers(node.broker)
        meant = await node.broker.create_topic("orders", 1, {})
        batch = encode_batch([(None, b"v", (), 1)])
        assert await brokers.write(ANONYMOUS, meant, 0, batch) == 0
        await node.broker.delete_topic("orders")
        another = await node.broker.create_topic("orders", 1, {})
        for asked in (
            brokers.write(ANONYMOUS, meant, 0, batch),
            brokers.read(ANONYMOUS, meant, 0, 0),
            MessageReader(brokers).begin(ANONYMOUS, meant, [0], "earliest"),
        ):
            with pytest.raises(KafkaError, match="has been deleted") as refused:
                await asked
            assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await brokers.write(ANONYMOUS, another, 0, batch) == 0
