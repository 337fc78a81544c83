"""No request holds up the others, however many things it names."""

import asyncio
from contextlib import suppress

import pytest

from clarion.broker.config import Durability
from clarion.wire.apis import APIS, DESCRIBE_GROUPS, FETCH, METADATA, PRODUCE
from clarion.wire.bridge import encode
from clarion.wire.frames import request_frame
from clarion.wire.messages.groups import DescribeGroupsRequest
from clarion.wire.messages.metadata import FindCoordinatorRequest, MetadataRequest
from tests.broker.harness import running
from tests.broker.largest import array_paths, largest_requests
from tests.loop_turns import watched_turns

ANSWER_SECONDS = 60


@pytest.mark.parametrize(
    "of_each_api", ["its deepest array", pytest.param("every array", marks=pytest.mark.campaign)], ids=str.split
)
async def test_the_largest_request_of_every_api_leaves_the_others_their_turns(tmp_path, of_each_api):
    """Answered or refused, it takes the event loop for no longer than anything else may."""
    seen = set()
    async with running(tmp_path, durability=Durability.PAGE_CACHE, auto_create_topics=False) as node:
        await node.topic("t", partitions=200)
        await node.ask(FindCoordinatorRequest(key="g"), 2)  # the groups are there
        for largest in largest_requests(every_array=of_each_api == "every array"):
            seen.add(largest.api.key)
            async with node.another() as client, watched_turns(what=largest.name):
                client.post(largest.frame)
                with suppress(asyncio.IncompleteReadError):
                    await asyncio.wait_for(client.next_frame(), ANSWER_SECONDS)
    has_arrays = {key for key, api in APIS.items() if key in (PRODUCE, FETCH) or any(array_paths(api.request))}
    assert seen == has_arrays


async def test_long_requests_of_one_connection_are_served_one_after_the_other(tmp_path):
    """Eight at once take eight times as long, and nobody else notices; short ones behind them wait for their turn."""
    groups = DescribeGroupsRequest(groups=tuple(f"group-{number}" for number in range(2_000)))
    body = encode(groups, DESCRIBE_GROUPS, 5, "request")
    async with running(tmp_path, durability=Durability.PAGE_CACHE) as node, node.another() as neighbour:
        await node.ask(FindCoordinatorRequest(key="g"), 2)
        for number in range(8):
            node.client.post(request_frame(DESCRIBE_GROUPS, 5, number, "pipelined", body))
        node.client.post(request_frame(METADATA, 1, 8, "pipelined", bytes(4)))
        asked = 0
        async with watched_turns("eight long requests"):
            for number in range(9):
                reply = asyncio.ensure_future(node.client.next_frame())
                while not reply.done():
                    await neighbour.ask(MetadataRequest(topics=()), 1)
                    asked += 1
                assert int.from_bytes(reply.result()[:4], "big") == number
        assert asked > 8 * 3, "the neighbour was answered many times while each of them was served"


async def test_a_long_request_that_makes_no_sense_ends_the_connection_behind_the_replies_before_it(tmp_path):
    async with running(tmp_path, durability=Durability.PAGE_CACHE) as node:
        nonsense = b"\x7f\xff\xff\xff" + bytes(9_000)
        node.client.post(request_frame(METADATA, 1, 1, "tests", bytes(4)))
        node.client.post(request_frame(METADATA, 1, 2, "tests", nonsense))
        assert (await node.client.next_frame())[:4] == b"\0\0\0\x01"
        assert await node.client.is_refused()
