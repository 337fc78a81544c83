"""A broker's channel to another one on the simulated network: it comes back, and the same seed does it again."""

from __future__ import annotations

import asyncio

from clarion.net.channel import ChannelLostError, ChannelSettings, LastingChannel
from clarion.wire import bridge
from clarion.wire.apis import HEARTBEAT
from clarion.wire.messages.groups import HeartbeatRequest, HeartbeatResponse
from tests.net.peers import Peer
from tests.sim.loop import SimLoop
from tests.sim.network import Network
from tests.sim.test_kernel import live

PORT = 9092
ASKED = 200


def answer(peer: Peer, header, body: bytes) -> None:
    request = bridge.decode(HeartbeatRequest, HEARTBEAT, header.api_version, "request", body)
    response = HeartbeatResponse(error_code=request.generation_id)
    peer.answer(header, bridge.encode(response, HEARTBEAT, header.api_version, "response"))


class Chance:
    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def bytes(self, count: int) -> bytes:
        return self._loop.random.randbytes(count)


async def resets(loop: SimLoop) -> list[tuple[int, str]]:
    """Asks on while all connections break now and then; what came of each request."""
    network = loop.network
    assert isinstance(network, Network)
    outcomes: list[tuple[int, str]] = []
    lasting = LastingChannel(ChannelSettings("peer", PORT, "sim", in_flight_max=3), Chance(loop))

    async def ask(number: int) -> None:
        request = HeartbeatRequest(group_id="g", generation_id=number, member_id="m")
        try:
            reply = await lasting.ask(HEARTBEAT, request)
            assert reply.error_code == number, "somebody else's answer"
            outcomes.append((number, "answered"))
        except ChannelLostError as error:
            outcomes.append((number, str(error)))

    async def break_connections() -> None:
        while True:
            await asyncio.sleep(loop.random.uniform(0.5, 3.0))
            network.reset_connections()

    breaking = asyncio.ensure_future(break_connections())
    await loop.create_server(lambda: Peer(answer), "peer", PORT)
    for first in range(0, ASKED, 4):
        await asyncio.gather(*(ask(number) for number in range(first, first + 4)))
    breaking.cancel()
    lasting.close()
    return outcomes


def test_everybody_hears_an_answer_of_their_own_or_that_it_is_lost():
    for seed in range(8):
        outcomes = live(resets, seed)
        assert sorted(number for number, _ in outcomes) == [*range(ASKED)]
        heard = [outcome for _, outcome in outcomes].count("answered")
        assert ASKED / 2 < heard < ASKED, "connections broke, and the channel came back"


def test_the_same_seed_gives_the_same_outcomes():
    assert live(resets, 3) == live(resets, 3)
    assert live(resets, 3) != live(resets, 4)
