"""A batch of which nobody can make records holds up nobody: the broker looks into none that it takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from struct import pack
from uuid import uuid4

import pytest
from crc32c import crc32c

from clarion.broker import dead_letters, messages
from clarion.broker.authorizer import ANONYMOUS
from clarion.broker.dead_letters import DeadLetters
from clarion.broker.queues import Settlement
from clarion.broker.relaying import Write
from clarion.broker.share_records import FoundRecords
from clarion.client.held_partition import HeldPartition
from clarion.client.queue_chunk import QueueChunk
from clarion.client.received import SettlementKind
from clarion.model.errors import ErrorCode
from clarion.replication import Partition
from clarion.wire.compression import Codec
from clarion.wire.messages.share_groups import AcquiredRecords
from clarion.wire.records import encode_batch
from tests.broker.harness import Node, running, until
from tests.broker.queue_words import content, subscribe, texts, write
from tests.broker.share_words import QUICK
from tests.broker.test_queues import leaders, pull, settle
from tests.broker.test_share_batches import LENGTH_AT

CRC_AT, COVERED_AT, CONTENT_AT = 17, 21, 70


def unreadable(now_ms: int, count: int = 3) -> bytearray:
    """Compressed as it says, but for what is in it; its CRC is as it should be."""
    batch = encode_batch([(None, b"hello" * 50, (), now_ms)] * count, compression=Codec.GZIP)
    batch[CONTENT_AT : CONTENT_AT + 10] = b"\xff" * 10
    batch[CRC_AT:COVERED_AT] = pack(">I", crc32c(bytes(batch[COVERED_AT:])))
    return batch


def turn_a_bit(path: Path, at: int = CONTENT_AT + 20) -> None:
    """Of the first record, or the first header; or back again."""
    (log,) = path.glob("**/t-0/*.log")
    with log.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


async def write_unreadable(node: Node, count: int = 3) -> bytes:
    batch = unreadable(node.broker.clock.now_ms(), count)
    appended = await messages.write(node.broker, ANONYMOUS, "t", 0, batch)
    assert appended.last_offset >= count - 1
    return bytes(batch)


async def test_what_cannot_be_read_is_one_dead_letter_and_what_is_around_it_is_delivered(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await subscribe(node)
        await write(node, (None, b"before"))
        written = await write_unreadable(node, count=700)  # more than are written at a time
        await write(node, (None, b"after"))
        found = await pull(node, wait_ms=60_000)
        if len(found) < 2:
            found += await pull(node, wait_ms=60_000)
        assert [(one.value, one.offset) for one in found] == [(b"before", 0), (b"after", 701)]
        assert await settle(node, *(Settlement(one.receipt, "ack") for one in found)) == [ErrorCode.NONE] * 2
        (leader,) = leaders(node)
        await until(lambda: leader.share.start_offset == 702)
        (letter,) = await content(node, "g.dead-letters")
        assert letter.value is not None
        assert letter.value[CRC_AT:] == written[CRC_AT:]
        told = texts(letter.headers)
        assert told["clarion-dead-letter-reason"].startswith("unreadable: a batch is not gzip")
        assert (told["clarion-dead-letter-offset"], told["clarion-dead-letter-deliveries"]) == ("1", "0")


async def test_what_the_disk_has_spoiled_waits_until_it_is_mended(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await subscribe(node)
        await write(node, (None, b"spoiled" * 20))
        await write(node, (None, b"after"))
        turn_a_bit(tmp_path)
        found = await pull(node, wait_ms=60_000)
        assert [one.value for one in found] == [b"after"]
        assert await settle(node, Settlement(found[0].receipt, "ack")) == [ErrorCode.NONE]
        turn_a_bit(tmp_path)
        (leader,) = leaders(node)
        leader.share.expire(leader._now_ms() + 61_000)
        (mended,) = await pull(node, wait_ms=60_000)
        assert (mended.value, mended.deliveries) == (b"spoiled" * 20, 1)
        assert "g.dead-letters" not in node.broker.image.topics


async def test_the_order_of_keys_does_not_stop_at_what_the_disk_has_spoiled(tmp_path: Path) -> None:
    """After a start the keys are learnt of what was delivered before."""
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await subscribe(node, per_key_order=True)
        for key in (b"a", b"b", b"b", b"c"):
            await write(node, (key, key * 100))
        assert [one.offset for one in await pull(node, wait_ms=60_000, count=2)] == [0, 1]
    turn_a_bit(tmp_path)
    async with running(tmp_path, **QUICK) as node:
        found = await pull(node, wait_ms=60_000)
        assert [(one.offset, one.deliveries) for one in found] == [(1, 2), (3, 1)]
        await settle(node, Settlement(found[0].receipt, "ack"))
        assert [one.offset for one in await pull(node, wait_ms=60_000)] == [2]
        turn_a_bit(tmp_path)
        (leader,) = leaders(node)
        leader.share.expire(leader._now_ms() + 61_000)
        assert 0 in [one.offset for one in await pull(node, wait_ms=60_000)]


@pytest.mark.parametrize("spoiled", ["record", "header"])
async def test_dead_letters_do_not_wait_for_the_one_that_the_disk_has_spoiled(
    tmp_path: Path, spoiled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "DAMAGED_MS", 2_000)
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await subscribe(node, window=5)
        for number in range(20):
            await write(node, (None, b"%02d" % number + b"v" * 200))

        def turn() -> None:
            if spoiled == "record":
                turn_a_bit(tmp_path)
            else:
                turn_a_bit(tmp_path, at=LENGTH_AT + 3)

        found = await pull(node, wait_ms=60_000)
        turn()
        await settle(node, *(Settlement(one.receipt, "reject") for one in found))
        seen = [one.offset for one in found]
        while len(seen) < 20 and (found := await pull(node, wait_ms=5_000)):
            seen += [one.offset for one in found]
            await settle(node, *(Settlement(one.receipt, "reject") for one in found))
        (leader,) = leaders(node)
        if spoiled == "record":
            assert seen == list(range(20)), "the queue has stopped"
            await until(lambda: leader.share.given_up_count == 1)
            letters = await content(node, "g.dead-letters")
            assert [int((one.value or b"")[:2]) for one in letters] == list(range(1, 20))
        turn()
        while len(seen) < 20:
            found = await pull(node, wait_ms=5_000)
            seen += [one.offset for one in found]
            await settle(node, *(Settlement(one.receipt, "reject") for one in found))
        await until(lambda: leader.share.start_offset == 20)
        letters = await content(node, "g.dead-letters")
        assert sorted(int((one.value or b"")[:2]) for one in letters) == list(range(20))


async def test_what_is_looked_at_again_while_others_are_written_has_its_dead_letter_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "DAMAGED_MS", 50)
    write_each = DeadLetters._write_each

    async def slowly(self: DeadLetters, lots: list[dead_letters._Lot], write: Write) -> None:
        await until(lambda: self._again is None)
        await write_each(self, lots, write)

    monkeypatch.setattr(DeadLetters, "_write_each", slowly)
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await subscribe(node, window=5)
        for number in range(5):
            await write(node, (None, b"%02d" % number + b"v" * 200))
        found = await pull(node, wait_ms=60_000)
        turn_a_bit(tmp_path)
        await settle(node, *(Settlement(one.receipt, "reject") for one in found))
        (leader,) = leaders(node)
        await until(lambda: leader.share.given_up_count <= 1)
        turn_a_bit(tmp_path)
        await until(lambda: leader.share.start_offset == 5)
        letters = await content(node, "g.dead-letters")
        assert sorted(int((one.value or b"")[:2]) for one in letters) == list(range(5))


async def test_who_leads_no_more_when_it_has_read_says_of_nothing_that_the_log_has_lost_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []

    async def cut_meanwhile(partition: Partition, ranges: Sequence[tuple[int, int]]) -> FoundRecords:
        partition.resign()
        asked.extend(ranges)
        return FoundRecords([], [])

    monkeypatch.setattr(dead_letters, "records_at", cut_meanwhile)
    async with running(tmp_path, **QUICK) as node:
        await node.topic("t", 1)
        await subscribe(node)
        await write(node, (None, b"rejected"))
        found = await pull(node, wait_ms=60_000)
        (leader,) = leaders(node)
        await settle(node, Settlement(found[0].receipt, "reject"))
        await until(lambda: asked and not leader._dead_letters._is_writing)
        assert (asked, leader.share.given_up_count, leader.share.start_offset) == ([(0, 0)], 1, 0)


def test_the_client_hands_out_what_is_around_it() -> None:
    """Of a group without a subscription, whose records nobody has looked at before they come."""
    one, spoiled, three = encode_batch([(None, b"one", (), 0)]), unreadable(0), encode_batch([(None, b"three", (), 0)])
    for base, batch in ((5, one), (6, spoiled), (9, three)):
        batch[:8] = pack(">q", base)
    source = HeldPartition("t", uuid4(), 0, lambda _: None)
    source.acquired(5, 9, 1)
    acquired = AcquiredRecords(first_offset=5, last_offset=9, delivery_count=1)
    chunk = QueueChunk(source, bytes(one + spoiled + three), [acquired], 0.0, 30.0)
    assert [(message.offset, message.value) for message in chunk.messages()] == [(5, b"one"), (9, b"three")]
    portion = source.take()
    assert portion is not None
    assert [(offset, said.what) for offset, said in portion.said] == [(at, SettlementKind.RELEASE) for at in (6, 7, 8)]


def test_of_a_batch_that_is_cut_off_the_client_says_nothing() -> None:
    """It comes again when its lock ends; that its records are not in the log would end them."""
    one, two = encode_batch([(None, b"one", (), 0)]), encode_batch([(None, b"two", (), 0)])
    two[:8] = pack(">q", 1)
    source = HeldPartition("t", uuid4(), 0, lambda _: None)
    source.acquired(0, 1, 1)
    acquired = AcquiredRecords(first_offset=0, last_offset=1, delivery_count=1)
    chunk = QueueChunk(source, bytes(one + two)[:-1], [acquired], 0.0, 30.0)
    assert [message.value for message in chunk.messages()] == [b"one"]
    assert source.take() is None
