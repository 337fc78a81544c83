"""No reply is lost, whatever follows the request: the end of the client's half, or one that ends the connection."""

import asyncio
import random
import socket
import struct
from dataclasses import replace

import pytest

from clarion.broker.apis.config_entries import ResourceType
from clarion.broker.config import Durability
from clarion.broker.limits import Limits
from clarion.wire.apis import APIS, DESCRIBE_CONFIGS, JOIN_GROUP, OFFSET_COMMIT, SYNC_GROUP, Api
from clarion.wire.bridge import encode
from clarion.wire.frames import parse_response_header, request_frame
from clarion.wire.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from clarion.wire.messages.groups import JoinGroupRequest, JoinGroupRequestProtocol
from clarion.wire.messages.metadata import ApiVersionsRequest
from tests.broker.disks import StoryDisk
from tests.broker.harness import Client, running, until
from tests.broker.talk import batch, fetch_frame, produce_frame, read_fetched, read_produced
from tests.fuzz.requests import valid_body
from tests.net.serving import lazy_socket, read_exactly
from tests.wire.messages_at_random import random_message

T0 = ("t", 0)
QUICK = {"durability": Durability.PAGE_CACHE, "offsets_partitions": 1, "group_initial_rebalance_delay_ms": 0}
UNKNOWN_API = request_frame(999, 0, 99, "tests", b"")
UNKNOWN_VERSION = request_frame(3, 99, 99, "tests", b"")
TOO_LARGE = request_frame(3, 9, 99, "tests", bytes(5 * 1024 * 1024))
NO_LENGTH = struct.pack(">i", -5)
NOT_READABLE = request_frame(3, 9, 99, "tests", b"\xff" * 20)
ENDS = {
    "half-close": b"",
    "unknown API": UNKNOWN_API,
    "unknown version": UNKNOWN_VERSION,
    "too large": TOO_LARGE,
    "senseless length": NO_LENGTH,
    "unreadable": NOT_READABLE,
}


def request_of(api: Api) -> bytes:
    """A valid one. Groups that wait for others are asked for what can be answered at once."""
    chance = random.Random(api.key)
    body = valid_body(api, api.max_version, chance)
    return request_frame(api.key, api.max_version, 7, "tests", body)


async def end(client: Client, how: str) -> None:
    if how == "half-close":
        client.end_sending()
    else:
        client.post(ENDS[how])


async def rest_of(client: Client) -> list[bytes]:
    """Every reply until the connection ends."""
    frames = []
    try:
        while True:
            frames.append(await client.next_frame())
    except (asyncio.IncompleteReadError, ConnectionError):
        return frames


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
async def test_a_request_of_every_api_is_answered_before_the_end(tmp_path, api, how):
    async with running(tmp_path, **QUICK) as node:
        await node.topic("victim")
        async with node.another() as client:
            client.post(request_of(api))
            await end(client, how)
            frames = await rest_of(client)
    assert len(frames) == 1
    assert parse_response_header(frames[0], api.key, api.max_version)[0] == 7


@pytest.mark.parametrize("how", ENDS)
async def test_a_fetch_that_waits_is_answered_before_the_end(tmp_path, how):
    async with running(tmp_path, **QUICK) as node, node.another() as client:
        await node.topic()
        client.post(fetch_frame({T0: 0}, max_wait=20_000))
        await until(lambda: node.partition().watchers)
        await end(client, how)
        await node.client.produce({T0: batch(b"news")})
        (frame,) = await rest_of(client)
        assert read_fetched(frame, 12).values() == [b"news"]


@pytest.mark.parametrize("how", ENDS)
async def test_produces_that_wait_for_their_commit_are_answered_in_order_before_the_end(tmp_path, how):
    disk = StoryDisk()
    async with running(tmp_path, disk=disk) as node, node.another() as client:
        await node.topic()
        disk.hold_flushes()
        for number in range(3):
            client.post(produce_frame({T0: batch(b"v")}, correlation=number))
        await until(lambda: len(node.broker.waiting_produces) == 3)
        await end(client, how)
        disk.let_flushes_go()
        frames = await rest_of(client)
        assert [read_produced(frame, 9)[T0].base_offset for frame in frames] == [0, 1, 2]


@pytest.mark.parametrize("how", ENDS)
async def test_a_member_that_waits_for_its_group_is_answered_before_the_end(tmp_path, how):
    settings = {**QUICK, "group_initial_rebalance_delay_ms": 300}
    async with running(tmp_path, **settings) as node, node.another() as client:
        await until(lambda: not any(one.is_loading for one in node.server.groups.shards))
        request = JoinGroupRequest(
            group_id="g",
            session_timeout=10_000,
            rebalance_timeout=10_000,
            member_id="",
            protocol_type="consumer",
            protocols=(JoinGroupRequestProtocol(name="range", metadata=b""),),
        )
        client.post(request_frame(JOIN_GROUP, 3, 7, "tests", encode(request, JOIN_GROUP, 3, "request")))
        await end(client, how)
        assert len(await rest_of(client)) == 1


@pytest.mark.parametrize("key", [JOIN_GROUP, SYNC_GROUP, OFFSET_COMMIT])
async def test_requests_for_a_whole_group_may_be_large(tmp_path, key):
    api = APIS[key]
    message = random_message(api.request, key, api.max_version, "request", random.Random(1))
    body = encode(message, key, api.max_version, "request")
    body = body[:-1] + b"\x01\x63" + _varint(6_000_000) + bytes(6_000_000)  # a tagged field that nobody knows
    async with running(tmp_path, **QUICK) as node:
        node.client.post(request_frame(key, api.max_version, 7, "tests", body))
        assert parse_response_header(await node.client.next_frame(), key, api.max_version)[0] == 7


async def test_the_limit_for_groups_follows_the_largest_frame(tmp_path):
    limits = Limits(frame_bytes_max=8_000_000, small_frame_bytes_max=1_000_000)
    async with running(tmp_path, limits=limits, **QUICK) as node, node.another() as client:
        client.post(request_frame(SYNC_GROUP, 5, 7, "tests", bytes(2_000_100)))
        assert await client.is_refused()


async def test_a_client_id_that_is_not_utf_8_is_no_reason_to_close(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        head = struct.pack(">hhih", 18, 0, 7, 4) + b"a\xff\xfeb"
        node.client.post(struct.pack(">i", len(head)) + head)
        assert parse_response_header(await node.client.next_frame(), 18, 0)[0] == 7


async def test_a_client_that_does_not_read_holds_one_large_reply_and_not_one_for_each_request(tmp_path):
    """DescribeConfigs of a hundred topics: a kilobyte or two asks for hundreds."""
    async with running(tmp_path, **QUICK) as node:
        for number in range(100):
            await node.topic(f"topic-{number}")
        resources = tuple(DescribeConfigsResource(resource_type=2, resource_name=f"topic-{n}") for n in range(100))
        request = DescribeConfigsRequest(resources=resources, include_synonyms=True)
        reply_bytes = len(encode(await node.ask(request, 4), DESCRIBE_CONFIGS, 4, "response"))
        body = encode(request, DESCRIBE_CONFIGS, 4, "request")
        with await lazy_socket(node.server.addresses[0].port) as sock:
            frames = b"".join(request_frame(DESCRIBE_CONFIGS, 4, number, "deaf", body) for number in range(60))
            await asyncio.get_running_loop().sock_sendall(sock, frames)
            await until(lambda: [one for one in node.server.net.connections if one.client_id == "deaf"])
            (deaf,) = [one for one in node.server.net.connections if one.client_id == "deaf"]
            await until(lambda: deaf.unsent_bytes > reply_bytes // 2)
            largest = 0
            for _ in range(200):
                await asyncio.sleep(0.001)
                largest = max(largest, deaf.unsent_bytes)
            assert largest < 2 * reply_bytes, f"{largest} bytes of replies of {reply_bytes} each"
            got = await read_exactly(sock, 60 * (reply_bytes + 9))
            assert struct.unpack_from(">i", got, 59 * (reply_bytes + 9) + 4) == (59,)


def _varint(number: int) -> bytes:
    out = b""
    while number >= 0x80:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


async def read_reply(sock: socket.socket) -> int:
    (size,) = struct.unpack(">i", await read_exactly(sock, 4))
    await read_exactly(sock, size)
    return size


async def test_a_crowd_that_asks_for_large_replies_and_reads_none_holds_no_more_than_the_budget(tmp_path):
    """Each of them may have one reply, and all together only so much."""
    limits = replace(Limits(), frames_memory_max=8 << 20, frame_seconds_max=600.0)
    groups = tuple(
        DescribeConfigsResource(resource_type=ResourceType.GROUP, resource_name=f"group-{n}") for n in range(9_000)
    )
    body = encode(DescribeConfigsRequest(resources=groups, include_synonyms=True), DESCRIBE_CONFIGS, 1, "request")
    frame = request_frame(DESCRIBE_CONFIGS, 1, 1, "tests", body)
    async with running(tmp_path, limits=limits, **QUICK) as node:
        room = node.server.net.reply_room
        deaf = [await lazy_socket(node.server.addresses[0].port) for _ in range(5)]
        for sock in deaf:
            await asyncio.get_running_loop().sock_sendall(sock, frame)
        await until(lambda: room.is_waited_for)
        assert (await node.ask(ApiVersionsRequest(), 0)).error_code == 0, "others are served"
        most = room.unsent_bytes
        sizes = await asyncio.gather(*(read_reply(sock) for sock in deaf))  # at once: who came first is not known
        reply_bytes = max(sizes)
        for sock in deaf:
            sock.close()
        assert room.unsent_bytes == 0
        assert 1 << 20 < most <= (4 << 20) + reply_bytes
