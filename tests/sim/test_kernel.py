"""The simulated world itself: time jumps, bytes keep their order, the dead do nothing, and a seed says it all."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clarion.broker.server import BrokerServer
from tests.sim.loop import Deadlock, SimLoop
from tests.sim.machine import Process
from tests.sim.network import Network
from tests.sim.scenario import run

# What a dead process was doing is collected after its life, and may complain about it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

SEEDS = (4, 12, 46)  # with power losses, full disks, stops and crashes among them


def live(work, seed: int = 0):
    loop = SimLoop(seed)
    Network(loop, (0.001, 0.1))
    try:
        return loop.run_until_complete(work(loop))
    finally:
        loop.close()


def test_an_hour_passes_in_no_time():
    async def sleep(loop: SimLoop) -> float:
        await asyncio.sleep(3600)
        return loop.time()

    began = time.monotonic()
    assert live(sleep) == 3600
    assert time.monotonic() - began < 1


def test_waiting_for_nothing_is_found():
    with pytest.raises(Deadlock):
        live(lambda loop: loop.create_future())


def test_a_thread_works_later_and_its_error_comes_back():
    async def ask(loop: SimLoop) -> tuple[int, float]:
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(None, lambda: 1 // 0)
        return await loop.run_in_executor(None, int, "7"), loop.time()

    seven, at = live(ask)
    assert seven == 7
    assert at > 0


class Collector(asyncio.Protocol):
    def __init__(self) -> None:
        self.data, self.pieces, self.lost = b"", 0, None
        self.transport: asyncio.Transport

    def connection_made(self, transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.pieces += 1

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = error or True


def test_bytes_arrive_in_order_and_in_other_pieces():
    async def talk(loop: SimLoop) -> Collector:
        server = Collector()
        await loop.create_server(lambda: server, "host", 1)
        transport, _ = await loop.create_connection(Collector, "host", 1)
        for number in range(200):
            transport.write(b"%03d" % number)
        transport.close()
        while not server.lost:
            await asyncio.sleep(0.1)
        return server

    heard = live(talk)
    assert heard.data == b"".join(b"%03d" % number for number in range(200))
    assert heard.pieces != 200


def test_who_does_not_read_makes_the_sender_pause():
    class Sender(Collector):
        is_paused = False

        def pause_writing(self) -> None:
            self.is_paused = True

        def resume_writing(self) -> None:
            self.is_paused = False

    async def talk(loop: SimLoop) -> list[bool]:
        server = Collector()
        await loop.create_server(lambda: server, "host", 1)
        transport, sender = await loop.create_connection(Sender, "host", 1)
        await asyncio.sleep(1)
        server.transport.pause_reading()
        transport.write(bytes(500_000))
        await asyncio.sleep(10)
        seen = [sender.is_paused, len(server.data) == 0]
        server.transport.resume_reading()
        await asyncio.sleep(10)
        return [*seen, not sender.is_paused, len(server.data) == 500_000]

    assert all(live(talk))


def test_a_dead_process_does_nothing_more_and_its_peers_hear_of_it():
    async def die(loop: SimLoop) -> tuple[list[int], object]:
        process, ticks = Process(), []

        async def work() -> None:
            await loop.create_server(Collector, "host", 1)
            try:
                while True:
                    ticks.append(1)
                    await asyncio.sleep(1)
            finally:
                ticks.append(-1)

        working = loop.create_task(work(), context=process.context)
        await asyncio.sleep(0.5)
        _, client = await loop.create_connection(Collector, "host", 1)
        await asyncio.sleep(2)
        process.is_running = False
        loop.network.forget(process)
        await asyncio.sleep(10)
        with pytest.raises(ConnectionRefusedError):
            await loop.create_connection(Collector, "host", 1)
        assert not working.done()
        return list(ticks), client.lost

    ticks, lost = live(die)
    assert ticks == [1, 1, 1]
    assert isinstance(lost, ConnectionResetError)


def test_a_frozen_process_does_everything_later_in_its_order_except_what_it_cancels():
    async def freeze(loop: SimLoop) -> tuple[list[str], list[str]]:
        process, done = Process(), []

        def first() -> None:
            done.append("first")
            third.cancel()

        loop.call_later(1, first, context=process.context)
        loop.call_later(2, done.append, "second", context=process.context)
        third = loop.call_later(3, done.append, "third", context=process.context)
        process.is_frozen = True
        await asyncio.sleep(10)
        meanwhile = list(done)
        loop.thaw(process)
        await asyncio.sleep(1)
        return meanwhile, done

    assert live(freeze) == ([], ["first", "second"])


def test_timers_of_the_same_time_run_in_the_order_in_which_they_were_set():
    async def wait(loop: SimLoop) -> list[int]:
        done: list[int] = []
        for number in range(50):
            loop.call_at(1.0, done.append, number)
        await asyncio.sleep(2)
        return done

    assert live(wait) == list(range(50))


def test_a_cut_link_carries_nothing_in_its_direction_until_it_is_mended():
    async def talk(loop: SimLoop) -> list[bytes]:
        process, server = Process("one"), Collector()
        await loop.create_task(loop.create_server(lambda: server, "host", 1), context=process.context)
        transport, client = await loop.create_connection(Collector, "host", 1)
        await asyncio.sleep(1)
        loop.network.cut("client", "one")
        transport.write(b"question")
        server.transport.write(b"answer")
        await asyncio.sleep(10)
        seen = [bytes(server.data), bytes(client.data)]
        connecting = loop.create_task(loop.create_connection(Collector, "host", 1))
        await asyncio.sleep(10)
        assert not connecting.done()
        loop.network.mend()
        await asyncio.sleep(10)
        assert connecting.done()
        return [*seen, bytes(server.data)]

    assert live(talk) == [b"", b"answer", b"question"]


def test_the_same_seed_lives_the_same_life_again():
    for seed in SEEDS:
        first, second = run(seed), run(seed)
        assert (first.digest, first.events) == (second.digest, second.events)
    assert run(SEEDS[0]).digest != run(SEEDS[1]).digest


def test_nothing_of_a_life_is_left_when_it_is_over():
    """Else a campaign of thousands of them has all their brokers in memory."""
    before = {id(one): one for one in gc.get_objects() if isinstance(one, BrokerServer)}
    for seed in SEEDS:
        run(seed)
    assert not [one for one in gc.get_objects() if isinstance(one, BrokerServer) and id(one) not in before]


@pytest.mark.parametrize("hash_seed", ["0", "1", "777"])
def test_the_same_seed_lives_the_same_life_in_another_process(hash_seed: str):
    """Whatever order its sets and hashes have there."""
    code = f"from tests.sim.scenario import run; print(*(run(seed).digest for seed in {SEEDS[:2]}))"
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": f"{root / 'src'}:{root}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == [run(seed).digest for seed in SEEDS[:2]], done.stderr
