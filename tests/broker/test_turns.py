"""Long loops give the event loop back, one piece of anybody's per turn."""

import asyncio

import pytest

from clarion.broker.turns import PIECE_MS, Turns


class Ticking:
    """A clock that goes on by a millisecond whenever somebody looks."""

    def __init__(self) -> None:
        self._now_ms = 0

    def now_ms(self) -> int:
        self._now_ms += 1
        return self._now_ms


class Turn:
    """Counts the turns of the loop."""

    def __init__(self) -> None:
        self.number = 0
        self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._next)

    def _next(self) -> None:
        self.number += 1
        self._loop.call_soon(self._next)


@pytest.fixture
async def turns():
    turns = Turns(Ticking())
    yield turns
    await turns.stop()


async def test_a_long_loop_is_cut_into_pieces(turns):
    turn = Turn()
    seen = [(turn.number, number) async for number in turns.each(range(20))]
    assert [number for _, number in seen] == list(range(20))
    for now in {at for at, _ in seen}:
        assert sum(at == now for at, _ in seen) <= PIECE_MS + 1  # whoever has waited gets one in any case


async def test_loops_inside_loops_share_one_clock(turns):
    turn = Turn()
    seen = {turn.number async for _ in turns.each(range(10)) async for _ in turns.each(range(1))}
    assert len(seen) >= 10 // PIECE_MS, "a loop of one item each never pauses by itself"


async def test_of_many_loops_one_goes_on_in_each_turn(turns):
    turn, seen = Turn(), []

    async def loop(name: str) -> None:
        seen.extend([(turn.number, name) async for _ in turns.each(range(12))])

    await asyncio.gather(*(loop(name) for name in "abcde"))
    after_the_first = [(at, name) for at, name in seen if at > 1]
    for now in {at for at, _ in after_the_first}:
        assert len({name for at, name in after_the_first if at == now}) == 1
    assert {name for _, name in after_the_first} == set("abcde"), "nobody is forgotten"


async def test_what_fails_is_told_to_whoever_waits(turns):
    failed = asyncio.Event()

    async def broken() -> None:
        raise ZeroDivisionError

    turns.start(broken(), failed.set)
    await asyncio.wait_for(failed.wait(), 60)
