"""No request holds up the others, however many things it names."""

import asyncio
from contextlib import suppress

from clarion.broker.config import Durability
from clarion.wire.apis import APIS, FETCH, PRODUCE
from clarion.wire.messages.k10_find_coordinator import FindCoordinatorRequest
from tests.broker.harness import running
from tests.broker.largest import array_paths, largest_requests
from tests.loop_turns import watched_turns

ANSWER_SECONDS = 60


async def test_the_largest_request_of_every_api_leaves_the_others_their_turns(tmp_path):
    """Answered or refused, it takes the event loop for no longer than anything else may."""
    seen = set()
    async with running(tmp_path, durability=Durability.PAGE_CACHE, auto_create_topics=False) as node:
        await node.topic("t", partitions=200)
        await node.ask(FindCoordinatorRequest(key="g"), 2)  # the groups are there
        for largest in largest_requests():
            seen.add(largest.api.key)
            async with node.another() as client, watched_turns(what=largest.name):
                client.post(largest.frame)
                with suppress(asyncio.IncompleteReadError):
                    await asyncio.wait_for(client.next_frame(), ANSWER_SECONDS)
    has_arrays = {key for key, api in APIS.items() if key in (PRODUCE, FETCH) or any(array_paths(api.request))}
    assert seen == has_arrays
