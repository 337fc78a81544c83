"""The way to another broker: with a real one, and with a peer that misbehaves."""

from __future__ import annotations

import asyncio
import ssl

import pytest

from clarion.broker.config import ListenerConfig
from clarion.model.errors import ErrorCode
from clarion.net.channel import Channel, ChannelLostError, ChannelSettings, ChannelUnusableError, LastingChannel
from clarion.wire import api_versions, bridge
from clarion.wire.apis import API_VERSIONS, CREATE_TOPICS, HEARTBEAT, METADATA
from clarion.wire.frames import reply_head
from clarion.wire.messages.groups import HeartbeatRequest, HeartbeatResponse
from clarion.wire.messages.metadata import ApiVersion, ApiVersionsResponse, MetadataRequest
from clarion.wire.messages.topics import CreatableTopic, CreateTopicsRequest
from clarion.world import SystemRandomness
from tests.broker.harness import Node, running
from tests.broker.test_tls import certificates, plain_and, secure, trusting  # noqa: F401
from tests.net.peers import Peer, listening


def settings(port: int, **more) -> ChannelSettings:
    return ChannelSettings(**{"host": "127.0.0.1", "port": port, "client_id": "channel", **more})


def port_of(node: Node) -> int:
    return node.server.addresses[0].port


def beat(generation: int = 0) -> HeartbeatRequest:
    return HeartbeatRequest(group_id="g", generation_id=generation, member_id="m")


def echo(peer: Peer, header, body: bytes) -> None:
    """Answers a heartbeat with its generation as error code, so that answers can be told apart."""
    request = bridge.decode(HeartbeatRequest, HEARTBEAT, header.api_version, "request", body)
    response = HeartbeatResponse(error_code=request.generation_id)
    peer.answer(header, bridge.encode(response, HEARTBEAT, header.api_version, "response"))


# With a real broker


async def test_a_broker_is_asked_in_the_newest_version_that_both_speak(tmp_path):
    async with running(tmp_path) as node:
        channel = await Channel.open(settings(port_of(node)))
        topic = CreatableTopic(name="t", num_partitions=3, replication_factor=1, assignments=(), configs=())
        made = await channel.ask(CREATE_TOPICS, CreateTopicsRequest(topics=(topic,), timeout=5000, validate_only=False))
        assert made.topics[0].error_code == 0
        told = await channel.ask(METADATA, MetadataRequest(topics=None))
        assert [(each.name, len(each.partitions)) for each in told.topics] == [("t", 3)]
        assert told.cluster_id is not None
        channel.close()


async def test_many_requests_are_under_way_at_once_and_each_gets_its_own_answer(tmp_path):
    async with running(tmp_path) as node:
        channel = await Channel.open(settings(port_of(node), in_flight_max=4))
        answers = await asyncio.gather(
            *(channel.ask(HEARTBEAT, beat(), newest=number % 5) for number in range(40)),
            *(channel.ask(METADATA, MetadataRequest(topics=None), newest=1 + number % 9) for number in range(40)),
        )
        assert {answer.error_code for answer in answers[:40]} == {ErrorCode.UNKNOWN_MEMBER_ID}
        assert all(answer.brokers[0].port == port_of(node) for answer in answers[40:])
        channel.close()


async def test_tls_with_a_broker_that_is_trusted_and_with_one_that_is_not(tmp_path, certificates):  # noqa: F811
    async with running(tmp_path, **plain_and(secure(certificates))) as node:
        port = node.server.addresses[1].port
        there = settings(port, host="localhost")
        channel = await Channel.open(settings(port, host="localhost", tls=trusting(certificates)))
        assert (await channel.ask(METADATA, MetadataRequest(topics=None))).topics == ()
        channel.close()
        with pytest.raises(ChannelUnusableError, match="TLS with localhost"):
            await Channel.open(settings(port, host="localhost", tls=ssl.create_default_context()))
        with pytest.raises(ChannelLostError):  # spoken to without TLS, it hangs up
            await Channel.open(there)


async def test_a_channel_comes_back_when_the_broker_does(tmp_path):
    async with running(tmp_path) as node:
        port = port_of(node)
        lasting = LastingChannel(settings(port), SystemRandomness())
        assert (await lasting.ask(METADATA, MetadataRequest(topics=None))).brokers[0].port == port
    with pytest.raises(ChannelLostError, match=r"cannot be reached|closed the connection"):
        await lasting.ask(METADATA, MetadataRequest(topics=None))
    async with running(tmp_path, listeners=(ListenerConfig(port=port),)):
        assert (await lasting.ask(METADATA, MetadataRequest(topics=None))).brokers[0].port == port
        lasting.close()
        with pytest.raises(ChannelLostError, match="was closed"):
            await lasting.ask(METADATA, MetadataRequest(topics=None))


def post_beat(channel: Channel, generation: int, answers: list[int]) -> None:
    """Of the answer its error code, behind the throttle time, which is what `echo` was sent."""
    body = bridge.encode(beat(generation), HEARTBEAT, 4, "request")
    channel.post(HEARTBEAT, 4, body, lambda answer: answers.append(int.from_bytes(answer[4:6], "big")))


async def test_what_is_posted_is_answered_in_the_turn_in_which_the_answer_comes():
    async with listening(echo) as port:
        channel = await Channel.open(settings(port))
        answers: list[int] = []
        for generation in (3, 4):
            post_beat(channel, generation, answers)
        assert (await channel.ask(HEARTBEAT, beat(5))).error_code == 5
        assert answers == [3, 4], "in order, and before what was asked behind them"
        channel.close()


# With a peer that misbehaves


async def test_who_gives_the_channel_up_over_an_answer_hears_no_other_one():
    def echo_twice(peer: Peer, header, body: bytes) -> None:
        waiting.append((header, body))
        if len(waiting) == 2:  # both answers in one piece
            whole = [reply_head(HEARTBEAT, 4, one.correlation_id, 7) + bytes(7) for one, _ in waiting]
            peer.transport.write(b"".join(whole))

    waiting: list = []
    async with listening(echo_twice) as port:
        channel = await Channel.open(settings(port))
        body, heard = bridge.encode(beat(), HEARTBEAT, 4, "request"), []
        lost = asyncio.get_running_loop().create_future()
        channel.on_lost = lost.set_result

        def give_up(_: memoryview) -> None:
            heard.append(1)
            channel.close()

        channel.post(HEARTBEAT, 4, body, give_up)
        channel.post(HEARTBEAT, 4, body, lambda _: heard.append(2))
        assert isinstance(await lost, ChannelLostError)
        assert heard == [1]
        with pytest.raises(ChannelLostError, match="no connection"):
            channel.post(HEARTBEAT, 4, body, heard.append)


async def test_what_is_posted_and_not_answered_in_time_gives_the_connection_up():
    async with listening(lambda *_: None) as port:
        channel = await Channel.open(settings(port, request_seconds=0.02))
        lost = asyncio.get_running_loop().create_future()
        channel.on_lost = lost.set_result
        answers: list[int] = []
        for generation in (1, 2):
            post_beat(channel, generation, answers)
        assert str(await lost) == f"127.0.0.1:{port} did not answer in time"
        assert not answers
        assert not channel.is_open


async def test_a_peer_that_hangs_up_is_told_to_who_posts():
    async with listening(lambda peer, *_: peer.transport.abort()) as port:
        channel = await Channel.open(settings(port))
        lost = asyncio.get_running_loop().create_future()
        channel.on_lost = lost.set_result
        answers: list[int] = []
        post_beat(channel, 1, answers)
        assert isinstance(await lost, ChannelLostError)
        assert not answers


async def test_no_more_are_under_way_than_may_be_even_when_those_who_asked_have_left():
    waiting = []
    async with listening(lambda peer, header, body: waiting.append((peer, header, body))) as port:
        channel = await Channel.open(settings(port, in_flight_max=2))
        asks = [asyncio.ensure_future(channel.ask(HEARTBEAT, beat(number))) for number in range(4)]
        while len(waiting) < 2:
            await asyncio.sleep(0)
        asks[0].cancel()
        await asyncio.wait(asks[:1])
        assert len(waiting) == 2, "the answer to the cancelled one is still awaited"
        while not asks[3].done():
            while waiting:
                echo(*waiting.pop(0))
            await asyncio.sleep(0)
        assert [(await ask).error_code for ask in asks[1:]] == [1, 2, 3]
        channel.close()


async def test_who_is_not_answered_in_time_gives_the_connection_up_for_all():
    async with listening(lambda *_: None) as port:
        channel = await Channel.open(settings(port))
        patient = asyncio.ensure_future(channel.ask(HEARTBEAT, beat()))
        with pytest.raises(ChannelLostError, match="did not answer Heartbeat in time"):
            await channel.ask(HEARTBEAT, beat(), timeout_seconds=0.02)
        with pytest.raises(ChannelLostError, match="did not answer"):
            await patient
        assert not channel.is_open
        with pytest.raises(ChannelLostError, match="no connection"):
            await channel.ask(HEARTBEAT, beat())


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.0 400 Bad Request\r\n\r\n", "does not speak Kafka's protocol"),
        (b"\0\0\0\x06\0\0\0\x63\0\0", "request 99 was answered"),
        (b"\0\0\0\x07\0\0\0\x02\0\0\0", "Heartbeat"),  # the body ends too early
    ],
)
async def test_what_is_no_answer_makes_the_channel_unusable(answer, reason):
    async with listening(lambda peer, *_: peer.transport.write(answer)) as port:
        channel = await Channel.open(settings(port))
        with pytest.raises(ChannelUnusableError, match=reason):
            await channel.ask(HEARTBEAT, beat())
        assert not channel.is_open


async def test_a_peer_that_hangs_up_is_lost_for_everybody_who_waits():
    async with listening(lambda peer, *_: peer.transport.abort()) as port:
        channel = await Channel.open(settings(port, in_flight_max=2))
        outcomes = await asyncio.gather(*(channel.ask(HEARTBEAT, beat()) for _ in range(5)), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ChannelLostError] * 5


async def test_a_peer_that_never_greets_is_given_up_after_a_while():
    async with listening(echo, greet=lambda *_: None) as port:
        with pytest.raises(ChannelLostError, match="did not answer while connecting"):
            await Channel.open(settings(port, connect_seconds=0.02))


async def test_an_older_peer_is_greeted_again_in_its_own_version():
    asked = []

    def greet(peer: Peer, header, _) -> None:
        asked.append(header.api_version)
        if header.api_version > 1:
            known = ApiVersion(api_key=API_VERSIONS, min_version=0, max_version=1)
            refusal = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=(known,))
            peer.answer(header, bridge.encode(refusal, API_VERSIONS, 0, "response"))
        else:
            peer.answer(header, api_versions.encode_reply(header.api_version))

    async with listening(echo, greet) as port:
        channel = await Channel.open(settings(port))
        assert asked == [4, 1]
        assert (await channel.ask(HEARTBEAT, beat(7))).error_code == 7
        channel.close()


async def test_nobody_listens():
    async with listening(echo) as port:
        pass
    with pytest.raises(ChannelLostError, match="cannot be reached"):
        await Channel.open(settings(port))
