"""HTTP's part of the event loop: measured step by step, one long step in a turn, a share in a second."""

import asyncio
import threading

import pytest

from clarion.gateway import gates, loop_share
from clarion.gateway.loop_share import LoopShare, Metered
from clarion.testing import embedded
from tests.gateway.asking import Asker, check_problem


class Machine:
    """A loop's time that a test sets, and how long it has worked."""

    def __init__(self) -> None:
        self.now = 100.0
        self.busy = 0.0
        self.later = []

    def time(self) -> float:
        return self.now

    def call_soon(self, callback) -> None:
        self.later.append(callback)

    def create_future(self) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()

    def turn(self) -> None:
        later, self.later = self.later, []
        for callback in later:
            callback()

    def spend(self, share: LoopShare, http: float, others: float = 0.0, seconds: float = 0.1) -> None:
        share.spend(http)
        self.busy += http + others
        self.now += seconds


@pytest.fixture
def machine() -> Machine:
    return Machine()


def share_of(machine: Machine) -> LoopShare:
    return LoopShare(lambda: 0.25, machine, lambda: machine.busy)


def test_within_its_share_it_is_never_over(machine):
    share = share_of(machine)
    for _ in range(100):
        machine.spend(share, 0.02, others=0.08)
        assert not share.is_over


def test_beyond_its_share_it_is_over_where_others_want_the_loop(machine):
    share = share_of(machine)
    for _ in range(10):
        machine.spend(share, 0.04, others=0.06)
    assert share.is_over


def test_what_others_leave_idle_is_its_own(machine):
    share = share_of(machine)
    for _ in range(30):
        machine.spend(share, 0.08, others=0.001)
        assert not share.is_over
    for _ in range(9):
        machine.spend(share, 0.098)
    machine.spend(share, 0.098, seconds=0)
    assert share.is_over, "never all of it"


def test_a_share_of_the_whole_loop_is_no_limit(machine):
    """What the window holds can be a little more than a second of it: a connection's cost is an estimate."""
    share = LoopShare(lambda: 1.0, machine, lambda: machine.busy)
    for _ in range(10):
        machine.spend(share, 0.11)
        assert not share.is_over


def test_a_second_later_all_is_forgotten(machine):
    share = share_of(machine)
    for _ in range(10):
        machine.spend(share, 0.05, others=0.05)
    assert share.is_over
    machine.now += loop_share.WINDOW_SECONDS
    assert not share.is_over


async def test_who_comes_in_every_turn_does_not_go_before_who_waits(machine):
    """What arrives is taken as the loop looks at the sockets, before those have their turn who were told."""
    share = share_of(machine)
    share.spend(0.001)
    waiting = [share.next_turn() for _ in range(3)]
    for number in range(1, 4):
        while not waiting[number - 1].done():
            assert share.turn_is_full
            machine.turn()
        assert [one.done() for one in waiting] == [True] * number + [False] * (3 - number), "one long step in a turn"
        assert share.turn_is_full, "for others"
        share.spend(0.001)


async def test_what_is_spent_while_the_loop_looks_at_the_sockets_counts_until_it_has_looked_again(machine):
    share = share_of(machine)
    for is_polling in (False, True):
        share.spend(0.001, while_polling=is_polling)
        machine.turn()
        assert share.turn_is_full is is_polling
        machine.turn()
        assert not share.turn_is_full


class Over(LoopShare):
    is_over = True


class Open:
    def is_closing(self) -> bool:
        return False

    def stop_for(self, reason: str) -> None: ...

    def go_on_for(self, reason: str) -> None: ...


async def test_what_waits_while_http_is_over_its_share_has_its_turn_although_every_turn_is_full(monkeypatch):
    monkeypatch.setattr(gates, "OVER_SECONDS", 0.001)
    loop = asyncio.get_running_loop()
    share, taken = Over(lambda: 0.25, loop), loop.create_future()

    async def busy() -> None:
        while True:
            share.spend(0.001)
            await share.next_turn()

    others = [loop.create_task(busy()) for _ in range(3)]
    await asyncio.sleep(0)
    pieces = gates.Pieces(taken.set_result, share, loop)
    pieces.transport = Open()
    pieces.add(b"frames", lambda: gates.PIECE_BYTES, waits=True)
    assert not taken.done(), "the turn is full"
    assert await asyncio.wait_for(taken, 10) == b"frames"
    for one in others:
        one.cancel()


async def test_long_steps_wait_for_a_turn_each(monkeypatch):
    loop = asyncio.get_running_loop()
    share = LoopShare(lambda: 1.0, loop, lambda: 0.0)
    time = iter(range(10_000))
    monkeypatch.setattr(loop_share, "thread_seconds", lambda: next(time) * 0.001)  # each step takes one
    turns, order = 0, []

    def turn() -> None:
        nonlocal turns
        turns += 1
        loop.call_soon(turn)

    async def work(number: int) -> int:
        order.append((number, turns))
        await asyncio.sleep(0)
        return number

    async def run(number: int) -> int:
        return await Metered(work(number), share)

    turn()
    assert await asyncio.gather(*(run(number) for number in range(20))) == list(range(20))
    in_one_turn = max(sum(1 for _, at in order if at == each) for _, each in order)
    assert in_one_turn <= 2, "a step of a millisecond in each turn, counted by one who may come before or after it"
    assert [number for number, _ in order] == list(range(20)), "first come, first served"


async def test_a_metered_coroutine_returns_raises_and_is_cancelled_as_ever():
    share = LoopShare(lambda: 1.0, asyncio.get_running_loop())

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("as ever")

    async def wait() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "cancelled"
        return "not"

    async def run(work):
        return await Metered(work, share)

    with pytest.raises(ValueError, match="as ever"):
        await run(fail())
    task = asyncio.create_task(run(wait()))
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "cancelled"
    assert share.spent_total > 0


def test_over_its_share_requests_are_told_to_come_back_and_health_is_not():
    with embedded(metrics_port=0, topics=["t"]) as broker:
        asker, late = Asker(broker.http_url), Asker(broker.http_url)
        assert asker.get("/v1/topics").status == 200
        gateway = broker._life.server.gateway
        over = threading.Event()
        over.set()
        gateway.share = _Over(gateway.share, over)
        for one in (asker, late):
            answer = one.get("/v1/topics")
            assert check_problem(answer, 429, "clarion.http.share")["type"] == "urn:clarion:problem:too-busy"
            assert answer.headers["retry-after"] == "1"
        assert Asker(broker.http_url).get("/healthz").status == 200
        assert asker.get("/healthz").status == 200
        assert b"clarion_http_refused_total 2" in asker.get("/metrics").body
        over.clear()
        assert asker.get("/v1/topics").status == 200


class _Over:
    def __init__(self, share: LoopShare, over: threading.Event) -> None:
        self._share, self._over = share, over

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def __getattr__(self, name: str) -> object:
        return getattr(self._share, name)
