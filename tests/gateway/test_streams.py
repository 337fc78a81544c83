"""Server-sent events and WebSockets: in order, from where one was, with flow control, and bounded."""

import asyncio
import json
from itertools import count

import aiohttp
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from clarion.gateway import streams
from tests.gateway.asking import check_problem

SECONDS = 60
_numbers = count()


@pytest.fixture
def queue(api, topic) -> str:
    name = f"streamed-{next(_numbers)}"
    assert api.post("/v1/subscriptions", {"name": name, "topics": [topic]}).status == 201
    return name


async def events(response, wanted: int) -> list[tuple[str, dict]]:
    """So many of them: their ids and what they say."""
    found, lines = [], {}
    async with asyncio.timeout(SECONDS):
        async for raw in response.content:
            line = raw.decode().rstrip("\n")
            if line and not line.startswith(":"):
                name, _, value = line.partition(": ")
                lines[name] = value
            elif not line and lines:
                found.append((lines["id"], json.loads(lines["data"])))
                lines = {}
                if len(found) == wanted:
                    return found
    raise AssertionError(f"the stream ended after {found}")


async def test_events_of_a_topic_go_on_where_the_last_one_was(api, http_broker, topic):
    there = f"{http_broker.http_url}/v1/topics/{topic}/events"
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{there}?from=earliest") as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            await asyncio.to_thread(
                api.post, f"/v1/topics/{topic}/messages", [{"value": number, "key": str(number)} for number in range(6)]
            )
            found = await events(response, 4)
        async with session.get(there, headers={"Last-Event-ID": found[-1][0]}) as response:
            found += await events(response, 2)
    assert sorted(int(told["value"]) for _, told in found) == list(range(6))
    assert len({(told["partition"], told["offset"]) for _, told in found}) == 6


async def test_partitions_that_a_topic_gets_are_part_of_its_stream_and_of_the_next_one(
    api, http_broker, topic, monkeypatch
):
    monkeypatch.setattr(streams, "_HEARTBEAT_SECONDS", 0.05)
    there = f"{http_broker.http_url}/v1/topics/{topic}/events"
    ask = asyncio.to_thread
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{there}?from=earliest") as response:
            await ask(api.post, f"/v1/topics/{topic}/partitions/0/messages", {"value": "before"})
            ((known, _),) = await events(response, 1)
            grown = await ask(api.ask, "PATCH", f"/v1/topics/{topic}", {"partitions": 4})
            assert grown.status == 200
            await ask(api.post, f"/v1/topics/{topic}/partitions/3/messages", {"value": "in the new one"})
            ((_, told),) = await events(response, 1)
            assert told["value"] == "in the new one"
        async with session.get(there, headers={"Last-Event-ID": known}) as response:
            ((_, told),) = await events(response, 1)
            assert (told["partition"], told["value"]) == (3, "in the new one")
    read = await ask(api.get, f"/v1/topics/{topic}/messages?after={known}")
    assert [one["value"] for one in read.json["messages"]] == ["in the new one"]


async def test_a_stream_goes_on_behind_what_is_deleted_and_says_so(api, http_broker, topic):
    ask = asyncio.to_thread
    await ask(api.post, f"/v1/topics/{topic}/partitions/1/messages", [{"value": number} for number in range(5)])
    admin = AdminClient({"bootstrap.servers": http_broker.bootstrap})
    (deleting,) = admin.delete_records([TopicPartition(topic, 1, 3)]).values()
    await ask(deleting.result, SECONDS)
    async with (
        aiohttp.ClientSession() as session,
        session.get(
            f"{http_broker.http_url}/v1/topics/{topic}/events", headers={"Last-Event-ID": "0:0,1:1,2:0"}
        ) as response,
    ):
        (place, problem), (_, first), (last, second) = await events(response, 3)
    assert problem["code"] == "OFFSET_OUT_OF_RANGE"
    assert place == "0:0,1:3,2:0"
    assert [first["offset"], second["offset"]] == [3, 4]
    assert last == "0:0,1:5,2:0"


async def test_a_stream_without_news_says_that_it_is_there(http_broker, topic, monkeypatch):
    monkeypatch.setattr(streams, "_HEARTBEAT_SECONDS", 0.05)
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{http_broker.http_url}/v1/topics/{topic}/events") as response,
        asyncio.timeout(SECONDS),
    ):
        assert await response.content.readline() == b": welcome\n"
        await response.content.readline()
        assert await response.content.readline() == b": still here\n"


async def test_who_leaves_a_stream_leaves_nothing_behind(http_broker, topic):
    live = http_broker._life.server.broker
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{http_broker.http_url}/v1/topics/{topic}/events"):
            await http_broker.wait_for_async(lambda: any(one.watchers for one in live.partitions), SECONDS)
        await http_broker.wait_for_async(lambda: not any(one.watchers for one in live.partitions), SECONDS)


async def test_streams_are_counted(api, http_broker, topic, monkeypatch):
    monkeypatch.setattr(streams, "STREAMS_MAX", 1)
    there = f"/v1/topics/{topic}/events"
    async with aiohttp.ClientSession() as session, session.get(http_broker.http_url + there):
        check_problem(await asyncio.to_thread(api.get, there), 429, "streams are open")


async def test_events_of_a_queue_are_settled_by_their_receipts(api, http_broker, topic, queue):
    await asyncio.to_thread(api.post, f"/v1/topics/{topic}/messages", [{"value": "a"}, {"value": "b"}])
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{http_broker.http_url}/v1/subscriptions/{queue}/events?consumer=me") as response,
    ):
        found = await events(response, 2)
    receipts = [{"receipt": receipt} for receipt, _ in found]
    settled = await asyncio.to_thread(api.post, f"/v1/subscriptions/{queue}:settle", {"settlements": receipts})
    assert settled.status == 200
    assert sorted(told["value"] for _, told in found) == ["a", "b"]


async def test_a_socket_gets_as_many_messages_as_it_has_credit_for(api, http_broker, topic, queue):
    await asyncio.to_thread(
        api.post, f"/v1/topics/{topic}/messages", [{"value": number, "partition": 0} for number in range(5)]
    )
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"{http_broker.http_url}/v1/subscriptions/{queue}/socket?consumer=me") as socket,
        asyncio.timeout(SECONDS),
    ):
        await socket.send_json({"type": "credit", "messages": 2})
        first = [await socket.receive_json() for _ in range(2)]
        assert [(one["type"], one["value"]) for one in first] == [("message", "0"), ("message", "1")]
        await socket.send_json({"type": "settle", "settlements": [{"receipt": one["receipt"]} for one in first]})
        settled = await socket.receive_json()
        assert settled["type"] == "settled", "and no third message before"
        assert [one["status"] for one in settled["results"]] == [200, 200]
        await socket.send_json({"type": "credit", "messages": 100})
        rest = [await socket.receive_json() for _ in range(3)]
        assert [one["value"] for one in rest] == ["2", "3", "4"]
        for wrong, words in (
            ('{"type": "dance"}', "credit"),
            ('{"type": "credit", "messages": 0}', "messages"),
            ('{"type": "settle"}', "settlements"),
            ("{", "no JSON"),
        ):
            await socket.send_str(wrong)
            said = await socket.receive_json()
            assert said["type"] == "problem"
            assert said["problem"]["status"] in (400, 422)
            assert words in said["problem"]["detail"]


async def test_sockets_and_events_that_cannot_be_are_refused(api, http_broker, topic, queue):
    streamed = f"{queue}-stream"
    made = await asyncio.to_thread(
        api.post, "/v1/subscriptions", {"name": streamed, "topics": [topic], "mode": "stream"}
    )
    assert made.status == 201, made
    check_problem(await asyncio.to_thread(api.get, f"/v1/subscriptions/{streamed}/events"), 400, "stream")
    check_problem(await asyncio.to_thread(api.get, "/v1/subscriptions/nobody/events"), 404)
    async with aiohttp.ClientSession() as session:
        refused = (f"{queue}/socket?consumr=me", {}), (f"{queue}/socket", {"Origin": "http://evil.example"})
        for path, headers in (("nobody/socket", {}), (f"{streamed}/socket", {}), *refused):
            with pytest.raises(aiohttp.WSServerHandshakeError):
                await session.ws_connect(f"{http_broker.http_url}/v1/subscriptions/{path}", headers=headers)


async def test_streams_of_a_topic_that_is_deleted_end_and_say_so(api, http_broker, topic, queue):
    async with aiohttp.ClientSession() as session:
        there = f"{http_broker.http_url}/v1"
        async with (
            session.get(f"{there}/topics/{topic}/events") as of_topic,
            session.get(f"{there}/subscriptions/{queue}/events") as of_queue,
            session.ws_connect(f"{there}/subscriptions/{queue}/socket") as socket,
            asyncio.timeout(SECONDS),
        ):
            await socket.send_json({"type": "credit", "messages": 1})
            assert (await asyncio.to_thread(api.ask, "DELETE", f"/v1/topics/{topic}")).status == 200
            for response in (of_topic, of_queue):
                said = (await response.content.read()).decode()
                assert "event: problem" in said
                assert "UNKNOWN_TOPIC_OR_PARTITION" in said
            told = await socket.receive_json()
            assert told["problem"]["status"] == 404
    check_problem(await asyncio.to_thread(api.post, f"/v1/subscriptions/{queue}:pull", {}), 404, "create it anew")
