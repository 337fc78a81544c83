"""Reads over HTTP hold memory, so many at a time; who waits for messages holds none."""

import asyncio

import aiohttp
import pytest

from clarion.gateway import read_room
from clarion.gateway.problems import HttpProblem
from clarion.gateway.read_room import READS_MAX, ReadRoom
from clarion.gateway.reading import MessageReader

SECONDS = 60  # a bound, not a measure


async def test_who_finds_no_turn_in_time_is_told_to_come_again(monkeypatch):
    monkeypatch.setattr(read_room, "_TURN_SECONDS", 0.05)
    room = ReadRoom()
    taken = [room.turn() for _ in range(READS_MAX)]
    for turn in taken:
        await turn.take()
        await turn.take()  # which it has
    with pytest.raises(HttpProblem, match="ask again in a second") as refused, room.turn() as late:
        await late.take()
    assert refused.value.status == 503
    taken[0].give_back()
    taken[0].give_back()  # it has none any more
    with room.turn() as late:
        await late.take()


async def test_no_more_read_at_a_time_than_there_is_memory_for(api, http_broker, topic, monkeypatch):
    assert (await asyncio.to_thread(api.post, f"/v1/topics/{topic}/messages", {"value": "x"})).status == 200
    under_way, most, really = 0, 0, MessageReader._read_now

    async def counted(*args):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            await asyncio.sleep(0.05)
            return await really(*args)
        finally:
            under_way -= 1

    monkeypatch.setattr(MessageReader, "_read_now", counted)
    there = f"{http_broker.http_url}/v1/topics/{topic}/messages"
    async with aiohttp.ClientSession() as session, asyncio.timeout(SECONDS):

        async def read() -> int:
            async with session.get(there) as response:
                return response.status

        assert set(await asyncio.gather(*(read() for _ in range(3 * READS_MAX)))) == {200}
    assert most <= READS_MAX


async def test_who_waits_for_messages_is_in_nobodys_way(api, http_broker, topic):
    there = f"{http_broker.http_url}/v1/topics/{topic}/messages"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session, asyncio.timeout(SECONDS):

        async def read() -> int:
            async with session.get(f"{there}?wait_ms=30000") as response:
                return len((await response.json())["messages"])

        waiting = [asyncio.create_task(read()) for _ in range(2 * READS_MAX)]
        await asyncio.sleep(0.5)  # most of them wait by now; none needs to
        assert (await asyncio.to_thread(api.get, f"/v1/topics/{topic}/messages")).json["messages"] == []
        await asyncio.to_thread(api.post, f"/v1/topics/{topic}/messages", {"value": "x"})
        assert await asyncio.gather(*waiting) == [1] * len(waiting)
