"""Push subscriptions from the log to a real endpoint: once, again after failures, in order, and given up in the end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from clarion.broker.authorizer import ANONYMOUS
from clarion.broker.subscription_actions import SubscriptionActions
from clarion.consumers.push import FAILURES_TO_OPEN
from clarion.model.errors import KafkaError
from clarion.model.push_endpoint import PushEndpoint
from clarion.model.subscription import AT_MOST_ONCE, Subscription
from tests.broker.harness import Node, until
from tests.gateway.endpoint import Received, TestEndpoint, endpoint
from tests.gateway.push_words import dead_letters, pushing, subscribe, write

ACK_TIMEOUT_MS = 1_000


def lock_ends_ms(node: Node) -> int:
    leader = node.broker.shares.leaders.known("hook", node.broker.image.topics["t"].id, 0)
    assert leader is not None
    return max(run.until_ms for run in leader.share.runs())


def fails_first(place: TestEndpoint, times: int, status: int = 500) -> None:
    """Each message so often."""
    seen: dict[str, int] = {}

    def respond(received: Received) -> web.Response:
        seen[received.id] = seen.get(received.id, 0) + 1
        return web.Response(status=status if seen[received.id] <= times else 204, text="not yet")

    place.respond = respond


async def test_messages_are_pushed_and_acknowledged(tmp_path: Path) -> None:
    async with endpoint() as place, pushing(tmp_path) as node:
        await write(node, b'"before"')
        await subscribe(node, place.push())
        await write(node, b'"after"', b"\xff", None, key=b"k")
        await until(lambda: len(place.received) == 4)
        assert sorted(place.values, key=str) == sorted([b'"before"', b'"after"', b"\xff", None], key=str)
        health = node.broker.endpoints.of("hook")
        await until(lambda: health.delivered_total == 4)
        assert (health.circuit, health.failed_total) == ("closed", 0)
        assert place.refused == 0
    async with endpoint() as place, pushing(tmp_path) as node:  # and what was acknowledged does not come again
        await node.broker.subscriptions.update("hook", {"push": place.push().to_json(with_secret=True)}, ANONYMOUS)
        await write(node, b'"later"')
        await until(lambda: place.received)
        assert place.values == [b'"later"']


async def test_what_is_written_as_soon_as_there_is_the_subscription_is_pushed_also_from_the_latest_on(
    tmp_path: Path,
) -> None:
    async with endpoint() as place, pushing(tmp_path) as node:
        await write(node, b'"before"')
        await subscribe(node, place.push(), start="latest")
        await write(node, b'"after"')
        await until(lambda: place.received)
        assert place.values == [b'"after"']


async def test_a_message_that_fails_comes_again_under_the_same_id(tmp_path: Path) -> None:
    async with endpoint() as place, pushing(tmp_path) as node:
        fails_first(place, times=2)
        await subscribe(node, place.push())
        await write(node, b'"one"')
        await until(lambda: node.broker.endpoints.of("hook").delivered_total == 1)
        assert len({one.id for one in place.received}) == 1
        assert [event["deliveries"] for one in place.received for event in one.events] == ["1", "2", "3"]
        assert place.effects == {b'"one"': 1}
        assert node.broker.endpoints.of("hook").last_failure == "HTTP 500 Internal Server Error: not yet"


async def test_after_its_last_delivery_a_message_is_a_dead_letter_with_what_the_endpoint_said(tmp_path: Path) -> None:
    async with endpoint() as place, pushing(tmp_path) as node:
        place.answer(422, "no such order")
        await subscribe(node, place.push(), max_deliveries=2)
        await write(node, b'"bad"')
        (letter,) = await dead_letters(node, 1)
        assert letter["value"] == b'"bad"'
        assert letter["clarion-dead-letter-reason"] == b"HTTP 422 Unprocessable Entity: no such order"
        assert letter["clarion-dead-letter-deliveries"] == b"2"
        assert len(place.received) == 2


async def test_batches_have_as_many_events_as_there_are_and_no_more_than_allowed(tmp_path: Path) -> None:
    async with endpoint() as place, pushing(tmp_path) as node:
        await write(node, *(b"%d" % number for number in range(25)))
        await subscribe(node, place.push(batch_max=10))
        await until(lambda: sum(place.effects.values()) == 25)
        assert max(len(one.events) for one in place.received) == 10
        assert len(place.received) < 25


@pytest.mark.parametrize("max_deliveries", [1, 2])
async def test_a_message_that_its_endpoint_never_takes_has_no_other_of_its_batch_given_up(
    tmp_path: Path, max_deliveries: int
) -> None:
    async with endpoint() as place, pushing(tmp_path) as node:
        place.respond = lambda received: web.Response(
            status=500 if b'"poison"' in [event["value"] for event in received.events] else 204
        )
        await write(node, *(b'"poison"' if number == 7 else b"%d" % number for number in range(20)))
        await subscribe(node, place.push(batch_max=10), max_deliveries=max_deliveries)
        await until(lambda: sum(place.effects.values()) == 19)
        assert [letter["value"] for letter in await dead_letters(node, 1)] == [b'"poison"']
        assert set(place.effects.values()) == {1}


async def test_messages_of_one_key_arrive_in_order_whatever_fails(tmp_path: Path) -> None:
    async with endpoint() as place, pushing(tmp_path) as node:
        fails_first(place, times=1)
        await subscribe(node, place.push(ordered=True))
        for number in range(6):
            await write(node, b"%d" % number, key=b"even" if number % 2 == 0 else b"odd")
        await until(lambda: sum(place.effects.values()) == 6)
        taken: list[bytes] = []
        seen: set[str] = set()
        for one, value in zip(place.received, place.values, strict=True):
            if one.id in seen:
                taken.append(value)  # each fails the first time
            seen.add(one.id)
        assert [value for value in taken if int(value) % 2 == 0] == [b"0", b"2", b"4"]
        assert [value for value in taken if int(value) % 2 == 1] == [b"1", b"3", b"5"]


async def test_an_endpoint_that_is_gone_ends_the_subscription_until_it_is_resumed(tmp_path: Path) -> None:
    async with endpoint() as place, pushing(tmp_path) as node:
        place.answer(410, "moved to nowhere")
        await subscribe(node, place.push(), max_deliveries=1)
        await write(node, b'"one"')
        await until(lambda: getattr(node.broker.subscriptions.get("hook"), "paused", False))
        asked = len(place.received)
        assert "moved to nowhere" in node.broker.endpoints.of("hook").stopped
        await write(node, b'"two"')
        place.answer(204)
        await node.broker.subscriptions.update("hook", {"paused": False}, ANONYMOUS)
        await until(lambda: place.effects == {b'"one"': 1, b'"two"': 1})
        assert asked == 1
        assert "hook.dead-letters" not in node.broker.image.topics  # what nobody took was not delivered
        assert node.broker.endpoints.of("hook").stopped == ""


async def test_a_paused_subscription_sends_nothing_and_loses_nothing(tmp_path: Path) -> None:
    async with endpoint() as place, pushing(tmp_path) as node:
        await subscribe(node, place.push(), name="other")
        await subscribe(node, place.push(), paused=True)
        await write(node, b'"one"')
        await until(lambda: node.broker.endpoints.of("other").delivered_total == 1)
        assert {event["subscription"] for one in place.received for event in one.events} == {"other"}
        await node.broker.subscriptions.update("hook", {"paused": False}, ANONYMOUS)
        await until(lambda: node.broker.endpoints.of("hook").delivered_total == 1)


async def test_a_subscription_that_is_deleted_is_pushed_to_no_more(tmp_path: Path) -> None:
    async with endpoint() as place, pushing(tmp_path) as node:
        await subscribe(node, place.push())
        await subscribe(node, place.push(), name="other")
        await write(node, b'"one"')
        await until(lambda: len(place.received) == 2)
        await node.broker.subscriptions.delete("hook", ANONYMOUS)
        await until(lambda: node.broker.endpoints.find("hook") is None)
        await write(node, b'"two"')
        await until(lambda: len(place.received) == 3)
        assert place.received[-1].events[0]["subscription"] == "other"


async def test_at_most_once_is_sent_once_and_never_again(tmp_path: Path) -> None:
    async with endpoint() as place, pushing(tmp_path) as node:
        place.answer(500)
        await subscribe(node, place.push(), guarantee=AT_MOST_ONCE)
        for number in range(FAILURES_TO_OPEN - 1):  # one more and it is left alone for a while
            await write(node, b"%d" % number)
        health = node.broker.endpoints.of("hook")
        await until(lambda: health.dropped_total == FAILURES_TO_OPEN - 1)
        place.answer(204)
        await write(node, b"9")
        await until(lambda: health.delivered_total == 1)
        assert len(place.ids) == len(set(place.ids)) == FAILURES_TO_OPEN
        assert "hook.dead-letters" not in node.broker.image.topics


async def test_an_endpoint_that_fails_is_left_alone_but_for_one_request_now_and_then(tmp_path: Path) -> None:
    async with endpoint() as place, pushing(tmp_path) as node:
        place.answer(503, "down")
        await subscribe(node, place.push(), max_deliveries=100)
        await write(node, *(b"%d" % number for number in range(200)))
        health = node.broker.endpoints.of("hook")
        await until(lambda: health.circuit == "open")
        assert len(place.received) <= FAILURES_TO_OPEN + 4  # those that were under way when it opened
        described = await SubscriptionActions(node.broker).describe("hook", ANONYMOUS)
        assert described["endpoint"]["state"] == "resting"
        assert described["endpoint"]["last_failure_reason"] == "HTTP 503 Service Unavailable: down"
        place.answer(204)
        await until(lambda: sum(place.effects.values()) == 200)
        assert set(place.effects.values()) == {1}
        assert health.circuit == "closed"


async def test_an_endpoint_that_wants_to_be_left_alone_is(tmp_path: Path) -> None:
    async with endpoint() as place, pushing(tmp_path) as node:
        place.answer(429, retry_after="1")
        await subscribe(node, place.push())
        await write(node, b'"one"')
        loop = asyncio.get_running_loop()
        await until(lambda: place.received)
        began = loop.time()
        place.answer(204)
        await until(lambda: place.effects)
        assert loop.time() - began >= 0.9


async def test_who_answers_slowly_keeps_its_messages(tmp_path: Path) -> None:
    """The lock of a message is shorter than the endpoint takes."""
    async with endpoint() as place, pushing(tmp_path) as node:
        answered = asyncio.Event()

        async def wait(received: Any) -> web.Response:
            await answered.wait()
            return web.Response(status=204)

        place.respond = wait
        await subscribe(node, place.push(timeout_ms=60_000), ack_timeout_ms=ACK_TIMEOUT_MS)
        await write(node, b'"slow"')
        await until(lambda: place.received)
        first = lock_ends_ms(node)
        await until(lambda: lock_ends_ms(node) >= first + 2 * ACK_TIMEOUT_MS)
        answered.set()
        await until(lambda: node.broker.endpoints.of("hook").delivered_total == 1)
        assert len(place.received) == 1


async def test_messages_that_a_filter_does_not_want_are_not_sent(tmp_path: Path) -> None:
    async with endpoint() as place, pushing(tmp_path) as node:
        await subscribe(node, place.push(), filter="value.total > 10")
        await write(node, b'{"total": 5}', b'{"total": 15}', b"no JSON", b'{"total": 25}')
        await until(lambda: len(place.received) == 2)
        assert sorted(place.values) == [b'{"total": 15}', b'{"total": 25}']


@pytest.mark.parametrize("value_bytes", [10, 900_000])
async def test_values_of_every_size_arrive_as_they_are(tmp_path: Path, value_bytes: int) -> None:
    async with endpoint() as place, pushing(tmp_path) as node:
        await subscribe(node, place.push())
        value = bytes(number % 251 for number in range(value_bytes))
        await write(node, value)
        await until(lambda: place.effects)
        assert place.values == [value]


async def test_all_partitions_are_pushed(tmp_path: Path) -> None:
    async with endpoint() as place, pushing(tmp_path, partitions=3) as node:
        await subscribe(node, place.push())
        for partition in range(3):
            await write(node, *(b"%d" % (partition * 10 + number) for number in range(10)), partition=partition)
        await until(lambda: len(place.effects) == 30)
        assert set(place.effects.values()) == {1}


async def test_an_address_that_cannot_be_is_refused_and_one_in_the_catalog_stops_nobody_else(tmp_path: Path) -> None:
    async with endpoint() as place, pushing(tmp_path) as node:
        with pytest.raises(KafkaError, match=r"push\.url"):
            await subscribe(node, PushEndpoint(url="http://exam\\ple/"), name="bad")
        bad = Subscription(name="bad", topics=("t",), push=PushEndpoint(url="http://exam\\ple/"))
        catalog = node.broker.subscriptions._catalog
        assert catalog is not None
        await catalog.save(bad, 0)  # as somebody else would write it
        await subscribe(node, place.push())
        await write(node, b'"one"')
        await until(lambda: place.received)
        assert node.broker.endpoints.of("bad").stopped


async def test_how_an_endpoint_was_is_forgotten_with_its_subscription_also_if_it_was_paused(tmp_path: Path) -> None:
    async with endpoint() as place, pushing(tmp_path) as node:
        await subscribe(node, place.push())
        await write(node, b'"one"')
        await until(lambda: place.received)
        await node.broker.subscriptions.update("hook", {"paused": True}, ANONYMOUS)
        await until(lambda: not any("push of hook" in task.get_name() for task in asyncio.all_tasks()))
        assert node.broker.endpoints.find("hook") is not None
        await node.broker.subscriptions.delete("hook", ANONYMOUS)
        assert node.broker.endpoints.find("hook") is None
