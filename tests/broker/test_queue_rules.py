"""What a subscription adds to a share group: delays, back-off, dead letters, due times, time to live, order of keys."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime
from pathlib import Path

import pytest

from clarion.broker.authorizer import ANONYMOUS
from clarion.broker.share_records import moment_ms
from clarion.broker.subscription_actions import SubscriptionActions
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.subscription import AT_MOST_ONCE
from clarion.queues.share_window import RUNS_MAX
from clarion.testing.clock import ShiftedClock
from tests.broker.harness import Node, running, until
from tests.broker.queue_words import content, subscribe, texts, write
from tests.broker.share_words import (
    ACCEPT,
    QUICK,
    REJECT,
    RELEASE,
    RENEW,
    acknowledgement,
    earliest,
    joined,
    offsets,
    produce,
    values,
)

HOUR_MS = 3_600_000
LETTERS = "g.dead-letters"


def share_of(node: Node, index: int = 0):
    leader = node.broker.shares.leaders.known("g", node.broker.image.topics["t"].id, index)
    assert leader is not None
    return leader.share


async def started(node: Node, **rules) -> None:
    await node.topic("t", 1)
    await subscribe(node, **rules)


async def test_a_record_released_with_a_delay_comes_no_earlier_also_after_a_restart(tmp_path: Path) -> None:
    clock = ShiftedClock()
    async with running(tmp_path, clock=clock, **QUICK) as node:
        await node.topic("t", 1)
        await earliest(node)
        await produce(node, b"one", b"two")
        consumer = await joined(node)
        assert await consumer.fetch() == {0: 1, 1: 1}
        later = acknowledgement(0, 0, RELEASE, delay_ms=HOUR_MS)
        assert await consumer.acknowledge(later, (1, 1, RELEASE)) is ErrorCode.NONE
        assert await consumer.fetch() == {1: 2}
        assert await consumer.fetch([(1, 1, ACCEPT)]) == {}
    async with running(tmp_path, clock=clock, **QUICK) as node:
        consumer = await joined(node)
        await consumer.fetch()
        await until(lambda: share_of(node).next_deadline_ms())
        assert await consumer.fetch() == {}
    clock.advance(hours=2)
    async with running(tmp_path, clock=clock, **QUICK) as node:
        assert await (await joined(node)).fetch(max_wait=60_000) == {0: 2}


async def test_what_comes_to_nothing_waits_longer_each_time(tmp_path: Path) -> None:
    clock = ShiftedClock()
    waited = []
    async with running(tmp_path, clock=clock, **QUICK) as node:
        await started(node, backoff_min_ms=HOUR_MS, backoff_max_ms=3 * HOUR_MS)
        await produce(node, b"one")
    for deliveries in (1, 2, 3):
        async with running(tmp_path, clock=clock, **QUICK) as node:
            await subscribe(node, backoff_min_ms=HOUR_MS, backoff_max_ms=3 * HOUR_MS)
            consumer = await joined(node)
            assert await consumer.fetch(max_wait=60_000) == {0: deliveries}
            assert await consumer.acknowledge((0, 0, RELEASE)) is ErrorCode.NONE
            (run,) = share_of(node).runs()
            waited.append((run.until_ms - asyncio.get_running_loop().time() * 1000) / HOUR_MS)
        clock.advance(hours=4)  # while it runs, it would be a clock that is set
    # Half of it is chance.
    for hours, most in zip(waited, (1, 2, 3), strict=True):
        assert most / 2 - 0.1 < hours <= most


async def test_a_lock_is_extended_by_as_much_as_is_asked_for(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await started(node, ack_timeout_ms=30_000)
        await produce(node, b"one", b"two")
        consumer = await joined(node)
        assert len(await consumer.fetch()) == 2
        longer = acknowledgement(0, 0, RENEW, extend_ms=HOUR_MS)
        assert await consumer.acknowledge(longer, (1, 1, RENEW), is_renew_ack=True) is ErrorCode.NONE
        first, second = share_of(node).runs()
        assert first.until_ms - second.until_ms == HOUR_MS - 30_000
        for bad in ({"extend_ms": 13 * HOUR_MS}, {"delay_ms": 10**15}, {"reason": "x" * 1_000}):
            refused = await consumer.acknowledge(acknowledgement(0, 0, RENEW, **bad), is_renew_ack=True)
            assert refused is ErrorCode.INVALID_REQUEST


async def test_what_is_rejected_becomes_a_dead_letter_with_the_whole_record_and_the_reason(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 3)
        await subscribe(node)
        await write(node, (b"k", b"v", (("h", b"1"), ("clarion-dead-letter-reason", b"old")), 1_234), partition=2)
        consumer = await joined(node)
        assert await consumer.fetch(max_wait=60_000) == {0: 1}
        because = acknowledgement(0, 0, REJECT, reason="no such customer")
        assert await consumer.acknowledge(because, index=2) is ErrorCode.NONE
        await until(lambda: share_of(node, 2).start_offset == 1)
        assert node.broker.image.topics[LETTERS].partition_count == 3
        (letter,) = await content(node, LETTERS, 2)
        assert (letter.key, letter.value, letter.timestamp) == (b"k", b"v", 1_234)
        told = texts(letter.headers)
        assert abs(int(told.pop("clarion-dead-letter-time")) - node.broker.clock.now_ms()) < 600_000
        assert told == {
            "h": "1",
            "clarion-dead-letter-subscription": "g",
            "clarion-dead-letter-topic": "t",
            "clarion-dead-letter-partition": "2",
            "clarion-dead-letter-offset": "0",
            "clarion-dead-letter-deliveries": "1",
            "clarion-dead-letter-reason": "no such customer",
        }


async def test_a_leader_that_is_one_no_longer_writes_no_dead_letter_of_what_its_successor_delivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, **QUICK) as node:
        await started(node)
        await produce(node, b"one")
        consumer = await joined(node)
        assert await consumer.fetch(max_wait=60_000) == {0: 1}

        async def refused(*_: object) -> int:
            await asyncio.sleep(0.5)  # the letter would be there by now
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, "a later leader has read this state")

        with monkeypatch.context() as other_leads:
            other_leads.setattr(node.broker.shares.states, "write", refused)
            assert await consumer.acknowledge((0, 0, REJECT)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert LETTERS not in node.broker.image.topics
        again = await joined(node, "second")
        assert await again.fetch(max_wait=60_000) == {0: 2}
        assert await again.acknowledge((0, 0, ACCEPT)) is ErrorCode.NONE
        assert LETTERS not in node.broker.image.topics


async def test_after_the_last_delivery_a_record_is_a_dead_letter_also_if_the_broker_ended_meanwhile(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, **QUICK) as node:
        await started(node, max_deliveries=2, dead_letter_topic="graves")
        await produce(node, b"one", b"two")
        consumer = await joined(node)
        assert len(await consumer.fetch()) == 2
        assert await consumer.acknowledge((0, 1, RELEASE)) is ErrorCode.NONE
        assert await consumer.fetch() == {0: 2, 1: 2}
        assert await consumer.acknowledge((0, 0, RELEASE)) is ErrorCode.NONE
        await until(lambda: "graves" in node.broker.image.topics)
    async with running(tmp_path, **QUICK) as node:
        await subscribe(node, max_deliveries=2, dead_letter_topic="graves")
        consumer = await joined(node)
        assert await consumer.fetch() == {}
        await until(lambda: share_of(node).start_offset == 2)
        found = await content(node, "graves")
        assert {record.value for record in found} == {b"one", b"two"}
        assert {texts(record.headers)["clarion-dead-letter-deliveries"] for record in found} == {"2"}


async def test_a_record_whose_dead_letter_cannot_be_written_stays_and_is_not_lost_by_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await started(node)
        await node.topic(LETTERS, 1, min_insync_replicas="2")
        await produce(node, b"one", b"two")
        consumer = await joined(node)
        assert len(await consumer.fetch()) == 2
        because = acknowledgement(0, 0, REJECT, reason="broken")
        assert await consumer.acknowledge(because, (1, 1, ACCEPT)) is ErrorCode.NONE
        assert await consumer.fetch() == {}
        assert (await offsets(node))["t", 0].start_offset == 0
    async with running(tmp_path, **QUICK) as node:
        await subscribe(node)
        consumer = await joined(node)
        assert await consumer.fetch() == {}
        assert share_of(node).given_up_count
        await node.broker.configure_topic(LETTERS, lambda _: {})
        await until(lambda: share_of(node).start_offset == 2)
        (letter,) = await content(node, LETTERS)
        assert (letter.value, texts(letter.headers)["clarion-dead-letter-reason"]) == (b"one", "broken")


async def test_without_a_subscription_what_is_rejected_is_given_up_as_in_kafka(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await earliest(node)
        await produce(node, b"one")
        consumer = await joined(node)
        assert await consumer.fetch() == {0: 1}
        assert await consumer.acknowledge(acknowledgement(0, 0, REJECT, reason="broken")) is ErrorCode.NONE
        assert (await offsets(node))["t", 0].start_offset == 1
        assert LETTERS not in node.broker.image.topics


async def test_a_paused_subscription_delivers_nothing_until_it_goes_on(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await started(node, paused=True)
        await produce(node, b"one")
        consumer = await joined(node)
        assert consumer.partitions == (), "what nobody has read yet begins when it goes on"
        await subscribe(node)
        await consumer.beat()
        assert await consumer.fetch(max_wait=60_000) == {0: 1}


async def test_who_waits_at_a_paused_subscription_is_woken_when_it_goes_on(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await started(node)
        consumer = await joined(node)
        assert await consumer.fetch() == {}
        await subscribe(node, paused=True)
        await produce(node, b"one")
        waiting = asyncio.create_task(consumer.fetch(max_wait=60_000))
        await until(lambda: node.broker.shares.leaders.known("g", consumer.topic_id, 0)._line)
        await subscribe(node)
        assert await waiting == {0: 1}


async def test_what_is_due_later_holds_up_nothing_and_comes_when_it_is_due(tmp_path: Path) -> None:
    clock = ShiftedClock()
    async with running(tmp_path, clock=clock, **QUICK) as node:
        await started(node)
        tomorrow_ms = clock.now_ms() + 24 * HOUR_MS
        later = (("clarion-deliver-at", b"%d" % tomorrow_ms),)
        an_hour = datetime.fromtimestamp((clock.now_ms() + HOUR_MS) / 1000, UTC).isoformat().encode()
        await write(node, *[(None, b"tomorrow", later)] * 3_000)
        await write(node, (None, b"in an hour", (("clarion-deliver-at", an_hour),)), (None, b"now"))
        consumer = await joined(node)
        assert values(await consumer.ask(max_wait=60_000)) == [b"now"]
        share = share_of(node)
        assert share.open_count == 1
        assert share.run_count <= 6, "records that wait take an entry each"
    clock.advance(hours=2)
    async with running(tmp_path, clock=clock, **QUICK) as node:
        await subscribe(node)
        consumer = await joined(node)
        assert values(await consumer.ask(max_wait=60_000)) == [b"in an hour", b"now"]
        clock.advance(hours=23)
        share_of(node)  # the wall clock was set: whoever fetches next is told
        await consumer.acknowledge((3_000, 3_001, ACCEPT))
        assert len(await consumer.fetch(max_wait=60_000, max_records=2_000)) >= 2_000


async def test_more_records_than_have_room_for_a_time_each_hold_up_nothing_either(tmp_path: Path) -> None:
    count, draw = 60_000, random.Random(1)
    async with running(tmp_path, **QUICK) as node:
        await started(node)
        soon_ms = node.broker.clock.now_ms() + 30_000
        later = [(("clarion-deliver-at", b"%d" % (soon_ms + at // 2)),) for at in range(count)]
        draw.shuffle(later)
        for first in range(0, count, 1_000):
            await write(node, *((None, b"later", header) for header in later[first : first + 1_000]))
        await write(node, (None, b"now"))
        consumer = await joined(node)
        assert values(await consumer.ask(max_wait=20_000)) == [b"now"]
        assert share_of(node).run_count < RUNS_MAX


async def test_what_has_lived_too_long_is_not_delivered(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await started(node, message_ttl_ms=HOUR_MS, dead_letter_topic=LETTERS)
        now_ms = node.broker.clock.now_ms()
        old = (("clarion-ttl-ms", b"1000"),)
        await write(
            node,
            (None, b"old", (), now_ms - 2 * HOUR_MS),
            (None, b"short", old, now_ms - 2_000),
            (None, b"fresh"),
        )
        consumer = await joined(node)
        assert values(await consumer.ask()) == [b"fresh"]
        assert await consumer.acknowledge((2, 2, ACCEPT)) is ErrorCode.NONE
        await until(lambda: share_of(node).start_offset == 3)
        letters = await content(node, LETTERS)
        assert [(one.value, texts(one.headers)["clarion-dead-letter-reason"]) for one in letters] == [
            (b"old", "expired"),
            (b"short", "expired"),
        ]


async def test_a_subscription_does_not_read_past_its_own_retention(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await started(node, retention_ms=HOUR_MS)
        await write(node, (None, b"old", (), node.broker.clock.now_ms() - 2 * HOUR_MS), (None, b"fresh"))
        consumer = await joined(node)
        assert values(await consumer.ask()) == [b"fresh"]
        assert LETTERS not in node.broker.image.topics


async def test_at_most_once_holds_also_when_a_member_goes_with_what_it_has(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await started(node, guarantee=AT_MOST_ONCE)
        await produce(node, b"one")
        consumer = await joined(node)
        assert await consumer.fetch(max_wait=60_000) == {0: 1}
        assert await consumer.acknowledge(epoch=-1) is ErrorCode.NONE
        await until(lambda: share_of(node).start_offset == 1)
        assert [one.value for one in await content(node, LETTERS)] == [b"one"]


async def test_a_dead_letter_that_is_too_large_holds_up_no_others_and_has_none_written_twice(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("graves", 1, **{"max.message.bytes": "100000"})
        await started(node, dead_letter_topic="graves")
        large = random.Random(1).randbytes(300_000)
        behind = [b"%d" % at + large[:60_000] for at in range(3)]  # together they would be too large as well
        for value in (b"before", large, *behind):
            await write(node, (None, value))
        consumer = await joined(node)
        assert len(await consumer.fetch(max_wait=60_000)) == 5
        assert await consumer.acknowledge((0, 4, REJECT)) is ErrorCode.NONE
        await until(lambda: [(run.first, run.last) for run in share_of(node).given_up(10)] == [(1, 1)])
        assert [one.value for one in await content(node, "graves")] == [b"before", *behind]


async def test_six_hundred_dead_letters_that_their_topic_refuses_hold_up_no_others(tmp_path: Path) -> None:
    """More than are written at a time. When their topic takes them, they are written too."""
    async with running(tmp_path, **QUICK) as node:
        await node.topic("graves", 1, **{"cleanup.policy": "compact"})
        await started(node, dead_letter_topic="graves")
        await write(node, *[(None, b"no key")] * 600, *[(b"k", b"behind")] * 500)
        consumer = await joined(node)
        assert len(await consumer.fetch(max_records=2_000, max_wait=60_000)) == 1_100
        assert await consumer.acknowledge((0, 1_099, REJECT)) is ErrorCode.NONE
        await until(lambda: [(run.first, run.last) for run in share_of(node).given_up(2_000)] == [(0, 599)])
        assert [one.value for one in await content(node, "graves")] == [b"behind"] * 500
        await node.broker.configure_topic("graves", lambda _: {})
        await until(lambda: share_of(node).start_offset == 1_100)
        assert [one.value for one in await content(node, "graves")] == [*[b"behind"] * 500, *[b"no key"] * 600]


async def test_a_dead_letter_that_its_topic_refuses_for_having_no_key_holds_up_no_others(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("graves", 1, **{"cleanup.policy": "compact"})
        await started(node, dead_letter_topic="graves")
        await write(node, (b"k", b"before"), (None, b"no key"), (b"l", b"behind"))
        consumer = await joined(node)
        assert len(await consumer.fetch(max_wait=60_000)) == 3
        assert await consumer.acknowledge((0, 2, REJECT)) is ErrorCode.NONE
        await until(lambda: [(run.first, run.last) for run in share_of(node).given_up(10)] == [(1, 1)])
        assert [one.value for one in await content(node, "graves")] == [b"before", b"behind"]
        await node.broker.configure_topic("graves", lambda _: {})
        await until(lambda: share_of(node).start_offset == 3)
        assert [one.value for one in await content(node, "graves")] == [b"before", b"behind", b"no key"]


async def test_what_was_small_enough_only_because_it_was_compressed_becomes_a_dead_letter_too_and_goes_back(
    tmp_path: Path,
) -> None:
    large = bytes(3_000_000)
    async with running(tmp_path, **QUICK) as node:
        await started(node)
        await write(node, (None, large), compression=1)
        consumer = await joined(node)
        assert await consumer.fetch(max_wait=60_000) == {0: 1}
        assert await consumer.acknowledge((0, 0, REJECT)) is ErrorCode.NONE
        await until(lambda: share_of(node).start_offset == 1)
        assert [one.value for one in await content(node, LETTERS)] == [large]
        redriven = await SubscriptionActions(node.broker).redrive("g", ANONYMOUS)
        assert redriven.sent == 1
        assert await consumer.fetch(max_wait=60_000) == {1: 1}


async def test_a_leader_that_does_not_know_yet_what_is_committed_loses_no_dead_letter(tmp_path: Path) -> None:
    """A new leader's watermark may be behind: what lies beyond it is not lost, it only cannot be read yet."""
    async with running(tmp_path, **QUICK) as node:
        await started(node, dead_letter_topic="graves")
        await node.topic("graves", 1, **{"max.message.bytes": "60"})  # too few for any letter
        await produce(node, b"one")
        consumer = await joined(node)
        assert await consumer.fetch(max_wait=60_000) == {0: 1}
        assert await consumer.acknowledge((0, 0, REJECT)) is ErrorCode.NONE
    async with running(tmp_path, **QUICK) as node:
        await subscribe(node, dead_letter_topic="other-graves")
        role, partition = node.partition()._leader, node.partition()
        assert role is not None
        end, before = partition.high_watermark, partition.log.position_of(0)
        partition.high_watermark = role.high_watermark = before
        consumer = await joined(node)
        assert await consumer.fetch() == {}
        assert await consumer.fetch() == {}
        partition.high_watermark = role.high_watermark = end
        await consumer.fetch()
        await until(lambda: share_of(node).start_offset == 1)
        assert [one.value for one in await content(node, "other-graves")] == [b"one"]


@pytest.mark.parametrize("compression", [0, 1])
async def test_no_record_of_a_key_is_delivered_while_an_earlier_one_is_under_way(
    tmp_path: Path, compression: int
) -> None:
    rules = {"per_key_order": True, "backoff_min_ms": HOUR_MS, "backoff_max_ms": HOUR_MS}
    clock = ShiftedClock()
    async with running(tmp_path, clock=clock, **QUICK) as node, node.another() as other:
        await started(node, **rules)
        keys = (b"a", b"a", b"b", None, b"b", b"a", None)
        await write(node, *[(key, b"%d" % at) for at, key in enumerate(keys)], compression=compression)
        first, second = await joined(node, "x"), await joined(node, "y", other)
        assert await first.fetch() == {0: 1, 2: 1, 3: 1, 6: 1}
        assert await second.fetch() == {}
        assert await first.acknowledge((0, 0, ACCEPT), (2, 2, RELEASE), (3, 3, ACCEPT)) is ErrorCode.NONE
        # The next of `a` may go, and `b` waits for what was released.
        assert await second.fetch() == {1: 1}
    async with running(tmp_path, clock=clock, **QUICK) as node:
        await subscribe(node, **rules)
        consumer = await joined(node, "x")
        assert await consumer.fetch(max_wait=60_000) == {1: 2, 6: 2}
        clock.advance(hours=2)
        assert await consumer.acknowledge((1, 1, ACCEPT), (6, 6, ACCEPT)) is ErrorCode.NONE
        assert await consumer.fetch(max_wait=60_000) == {5: 1}


def test_times_are_numbers_or_iso_and_what_is_neither_is_at_once() -> None:
    assert moment_ms(b"1700000000000") == 1_700_000_000_000
    assert moment_ms(b"2023-11-14T22:13:20Z") == moment_ms(b"2023-11-14T22:13:20") == 1_700_000_000_000
    assert moment_ms(b"2023-11-14T23:13:20+01:00") == 1_700_000_000_000
    assert [moment_ms(one) for one in (b"", b"soon", b"\xff", b"9" * 40)] == [0, 0, 0, 0]
