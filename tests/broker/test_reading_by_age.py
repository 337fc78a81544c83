"""Whether a message is too old for a subscription is judged as retention does: by a time that can be trusted."""

from __future__ import annotations

from clarion.broker.authorizer import ANONYMOUS
from clarion.model.subscription import STREAM, Subscription
from clarion.wire.records import encode_batch
from tests.broker import group_words
from tests.broker.harness import Node
from tests.broker.kept import HOUR, Kept, commit, keeping
from tests.broker.queue_words import subscribe
from tests.broker.share_words import joined

DAY = 24 * HOUR
FORTNIGHT_MS = 14 * DAY * 1000
YEAR = 365 * DAY
NO_TIME = -1


async def write(node: Node, *timed: tuple[bytes, int]) -> None:
    for value, at in timed:
        sent = bytes(encode_batch([(None, value, (), at)]))
        assert (await node.client.produce({("t", 0): sent}))["t", 0].error_code == 0


async def jump(kept: Kept) -> None:
    """Forward, while the broker runs, which notices."""
    await kept.house.retain()
    kept.clock.advance(YEAR)
    await kept.house.retain()
    assert not kept.node.broker.clock_trust.is_trusted()


async def stream(node: Node) -> None:
    one = Subscription(name="bank", topics=("t",), mode=STREAM, retention_ms=FORTNIGHT_MS)
    await node.broker.subscriptions.create(one, ANONYMOUS)


async def test_a_queue_gets_messages_that_carry_no_time(tmp_path, clock):
    async with keeping(tmp_path, clock) as node:
        await node.topic()
        await subscribe(node, retention_ms=FORTNIGHT_MS, message_ttl_ms=HOUR * 1000)
        now_ms = clock.now_ms()
        await write(node, (b"old", now_ms - 20 * DAY * 1000), (b"none", NO_TIME), (b"zero", 0), (b"now", now_ms))
        assert await (await joined(node)).fetch(max_wait=60_000) == {1: 1, 2: 1, 3: 1}


async def test_a_queue_passes_nothing_over_because_the_clock_has_jumped(tmp_path, clock):
    async with keeping(tmp_path, clock) as node:
        await node.topic()
        await subscribe(node, retention_ms=FORTNIGHT_MS)
        await write(node, (b"young", clock.now_ms()))
        await jump(Kept(node, clock))
        assert await (await joined(node)).fetch(max_wait=60_000) == {0: 1}


async def test_no_message_of_a_queue_expires_because_the_clock_has_jumped(tmp_path, clock):
    async with keeping(tmp_path, clock) as node:
        await node.topic()
        await subscribe(node, message_ttl_ms=HOUR * 1000)
        await write(node, (b"young", clock.now_ms()))
        await jump(Kept(node, clock))
        assert await (await joined(node)).fetch(max_wait=60_000) == {0: 1}


async def test_a_stream_is_sent_past_nothing_because_the_clock_has_jumped(tmp_path, clock):
    async with keeping(tmp_path, clock) as node:
        await node.topic()
        await stream(node)
        await write(node, (b"a", clock.now_ms()), (b"b", clock.now_ms()))
        await commit(node, "bank", 1)
        await jump(Kept(node, clock))
        assert await group_words.committed(node, "bank") == 1


async def test_a_stream_is_not_sent_past_messages_that_carry_no_time(tmp_path, clock):
    async with keeping(tmp_path, clock) as node:
        await node.topic()
        await stream(node)
        await write(node, (b"a", NO_TIME), (b"b", NO_TIME))
        await commit(node, "bank", 1)
        assert await group_words.committed(node, "bank") == 1


async def test_a_stream_is_not_sent_past_messages_without_a_time_behind_old_ones(tmp_path, clock):
    async with keeping(tmp_path, clock) as node:
        await node.topic()
        await stream(node)
        await write(node, (b"old", clock.now_ms() - 20 * DAY * 1000), (b"a", NO_TIME), (b"b", NO_TIME))
        await commit(node, "bank", 0)
        assert await group_words.committed(node, "bank") == 1
        await commit(node, "bank", 2)
        assert await group_words.committed(node, "bank") == 2


async def test_a_queue_that_begins_an_hour_ago_begins_there_also_when_the_clock_has_jumped(tmp_path, clock):
    async with keeping(tmp_path, clock) as node:
        await node.topic()
        await write(node, (b"old", clock.now_ms() - 2 * HOUR * 1000), (b"young", clock.now_ms()))
        await jump(Kept(node, clock))
        await subscribe(node, start="by_duration:PT1H")
        assert await (await joined(node)).fetch(max_wait=60_000) == {1: 1}
