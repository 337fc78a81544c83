"""A replica that lacks much is filled with pauses, or as fast as an operator allows; one in sync never waits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from clarion.replication import catch_up, conversation
from tests.broker.harness import until
from tests.broker.replicas import FOLLOWER, Pair, two_replicas
from tests.broker.talk import batch
from tests.broker.test_dynamic_settings import BROKER, ONE, SET, alter

MEGABYTE = 1 << 20
PIECES = 6


class Pauses:
    """What every fetched piece was followed by."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.of: list[tuple[int, float]] = []  # bytes, seconds
        original = conversation.Conversation._pause_of

        def pause_of(self_: Any, known: Any, size: int, *times: float) -> float:
            pause = original(self_, known, size, *times)
            self.of.append((size, pause))
            return pause

        monkeypatch.setattr(conversation.Conversation, "_pause_of", pause_of)

    @property
    def of_large_ones(self) -> list[float]:
        return [pause for size, pause in self.of if size >= catch_up.PIECE_BYTES_MIN]


async def fill_leader(pair: Pair) -> None:
    for _ in range(PIECES):
        await pair.node.client.produce({("t", 0): batch(b"x" * (MEGABYTE - 1000))}, acks=1)


@pytest.mark.uncompiled
async def test_a_replica_that_lacks_much_pauses_after_every_piece_and_gets_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = Pauses(monkeypatch)
    async with two_replicas(tmp_path) as pair:
        await fill_leader(pair)
        pair.follow()
        await until(lambda: pair.follower.next_offset == PIECES)
        await until(lambda: FOLLOWER in pair.agreement.states[-1].in_sync)
        assert len(pauses.of_large_ones) >= PIECES
        assert all(pause > 0 for pause in pauses.of_large_ones), pauses.of
        assert pair.bytes_of(pair.follower) == pair.bytes_of(pair.leader)


@pytest.mark.uncompiled
async def test_a_replica_in_sync_never_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = Pauses(monkeypatch)
    async with two_replicas(tmp_path, in_sync=(1, FOLLOWER)) as pair:
        pair.follow()
        await fill_leader(pair)
        await until(lambda: pair.follower.next_offset == PIECES)
        assert pauses.of_large_ones
        assert not any(pauses.of_large_ones)


async def test_what_an_operator_allows_is_not_exceeded_by_a_follower(tmp_path: Path) -> None:
    rate = 4 * MEGABYTE
    async with two_replicas(tmp_path) as pair:
        await fill_leader(pair)
        pair.fetchers._rate_of = lambda _partition: rate
        began = asyncio.get_running_loop().time()
        pair.follow()
        await until(lambda: pair.follower.next_offset == PIECES)
        assert asyncio.get_running_loop().time() - began >= 0.9 * (PIECES - 1) * MEGABYTE / rate


async def test_a_replica_that_comes_to_be_in_sync_while_it_is_held_up_waits_no_longer(tmp_path: Path) -> None:
    """What it had said before lets the leader take it in; from then on producers wait for it."""
    async with two_replicas(tmp_path) as pair:
        await fill_leader(pair)
        pair.fetchers._rate_of = lambda _partition: 100.0  # a piece in three hours
        pair.follow()
        await until(lambda: pair.follower.next_offset > 0)
        now = pair.agreement.states[-1]
        pair.follower.follow(now._replace(in_sync=(1, FOLLOWER), partition_epoch=now.partition_epoch + 1))
        await until(lambda: pair.follower.next_offset == PIECES)


@pytest.mark.parametrize("listed", ["0:1", "*"])
async def test_what_an_operator_allows_is_not_exceeded_by_a_leader(tmp_path: Path, listed: str) -> None:
    rate = 4 * MEGABYTE
    async with two_replicas(tmp_path, leader_replication_throttled_replicas=listed) as pair:
        await fill_leader(pair)
        await alter_rate(pair, rate)
        began = asyncio.get_running_loop().time()
        pair.follow()
        await until(lambda: pair.follower.next_offset == PIECES)
        assert asyncio.get_running_loop().time() - began >= 0.9 * (PIECES - 1) * MEGABYTE / rate


async def test_a_leader_goes_on_at_once_when_its_rate_is_corrected(tmp_path: Path) -> None:
    async with two_replicas(tmp_path, leader_replication_throttled_replicas="*") as pair:
        await fill_leader(pair)
        await alter_rate(pair, 100)  # the first piece is paid for after three hours
        pair.follow()
        await until(lambda: pair.follower.next_offset > 0)
        await alter_rate(pair, 100 * MEGABYTE)
        await until(lambda: pair.follower.next_offset == PIECES)


async def alter_rate(pair: Pair, rate: int) -> None:
    name = "leader.replication.throttled.rate"
    assert await alter(pair.node, BROKER, ONE, (name, SET, str(rate))) == (0, None)
    assert pair.node.broker.config.leader_throttled_rate == rate


@pytest.mark.uncompiled
async def test_a_replica_that_is_filled_asks_for_small_pieces_from_its_first_one_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in sync shares its connection, and waits behind every piece."""
    pauses = Pauses(monkeypatch)
    async with two_replicas(tmp_path) as pair:
        for _ in range(40):
            await pair.node.client.produce({("t", 0): batch(b"x" * 100_000)}, acks=1)
        pair.follow()
        await until(lambda: pair.follower.next_offset == 40)
        assert len(pauses.of_large_ones) >= 40 * 100_000 // catch_up.PIECE_BYTES_MAX
        assert max(size for size, _ in pauses.of) <= catch_up.PIECE_BYTES_MAX


@pytest.mark.uncompiled
async def test_many_that_are_filled_together_ask_for_small_pieces_until_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who got little because others have filled the reply does not have nearly everything."""
    pauses = Pauses(monkeypatch)
    async with two_replicas(tmp_path) as pair:
        names = [f"t{number}" for number in range(6)]
        replicas = [await pair.add_replica(name) for name in names]
        for name in names:
            for _ in range(300):
                await pair.node.client.produce({(name, 0): batch(b"x" * 3_000)}, acks=1)
        for replica in replicas:
            pair.follow_with(replica)
        await until(lambda: all(one.next_offset == 300 for one in replicas))
        assert max(size for size, _ in pauses.of) <= catch_up.PIECE_BYTES_MAX


@pytest.mark.uncompiled
async def test_a_reply_is_small_while_any_of_many_is_filled_whichever_the_request_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that pause leave the session; the others stay in it, and are sent without being named again."""
    sizes: list[int] = []
    decode = conversation.decode_reply

    def decode_reply(body: memoryview) -> Any:
        sizes.append(len(body))
        return decode(body)

    monkeypatch.setattr(conversation, "decode_reply", decode_reply)
    async with two_replicas(tmp_path) as pair:
        names = [f"t{number}" for number in range(24)]
        replicas = [await pair.add_replica(name) for name in names]
        for name in names:
            for _ in range(4):
                await pair.node.client.produce({(name, 0): batch(b"x" * 200_000)}, acks=1)
        for replica in replicas:
            pair.follow_with(replica)
        await until(lambda: all(one.next_offset == 4 for one in replicas))
        assert max(sizes) <= 1.1 * catch_up.PIECES_BYTES_MAX, sizes
