"""Batches that are looked through before they are appended: bounded work, off the event loop, in order of arrival."""

import asyncio
import threading
import time
from contextlib import contextmanager

import pytest

from clarion.broker import preparing
from clarion.broker.apis import k01_fetch
from clarion.broker.config import Durability
from clarion.broker.turns import PIECE_MS
from clarion.model.errors import ErrorCode
from tests.broker.bombs import of_headers, of_records, of_zeros
from tests.broker.harness import Client, Node, running, until
from tests.broker.talk import batch, produce_frame, read_produced
from tests.loop_turns import watched_turns

T0, T1 = ("t", 0), ("t", 1)
QUICK = {"durability": Durability.PAGE_CACHE}
COMPACTED = {"cleanup_policy": "compact"}
pytestmark = pytest.mark.uncompiled  # stand-ins for the preparation of batches decide when it ends


async def code(client: Client, records: bytes, place=T0, **how) -> ErrorCode:
    return ErrorCode((await client.produce({place: records}, **how))[place].error_code)


class Held:
    """A preparation that waits for the test, then does what the topic wants."""

    def __init__(self, then) -> None:
        self._then = then
        self.may_go = threading.Event()
        self.calls = 0

    def __call__(self, records, budget):
        self.calls += 1
        assert self.may_go.wait(20)
        return self._then(records, budget)


@contextmanager
def held(node: Node, index: int = 0):
    partition = node.partition("t", index)
    preparation = partition.preparation = Held(partition.preparation)
    try:
        yield preparation
    finally:
        preparation.may_go.set()


LARGE = 100_000  # bytes: not prepared at once


# What it may cost


@pytest.mark.parametrize("headers", [60_000, 33_000_000])
async def test_a_record_of_millions_of_headers_holds_up_nobody(tmp_path, headers):
    bomb = of_headers(headers)
    assert len(bomb) < 5_000
    async with running(tmp_path, **QUICK) as node:
        await node.topic(**COMPACTED)
        async with watched_turns():
            refused = await code(node.client, bomb)
        assert refused is (ErrorCode.NONE if headers < 100_000 else ErrorCode.MESSAGE_TOO_LARGE)
        assert node.partition().next_offset == (0 if refused else 1)


async def test_a_batch_of_a_hundred_thousand_records_holds_up_nobody(tmp_path):
    large, too_large = of_records(99_000), of_records(120_000)
    async with running(tmp_path, **QUICK) as node:
        await node.topic(clarion_validation="deep")
        async with watched_turns():
            assert await code(node.client, large) is ErrorCode.NONE
        assert await code(node.client, too_large) is ErrorCode.MESSAGE_TOO_LARGE
        assert node.partition().next_offset == 99_000


async def test_bombs_in_one_request_are_counted_together(tmp_path):
    bomb = of_zeros(30 << 20)
    async with running(tmp_path, **QUICK) as node:
        await node.topic(partitions=20, **COMPACTED)
        async with watched_turns():
            produced = await node.client.produce({("t", index): bomb for index in range(20)})
        taken = [index for (_, index), one in produced.items() if one.error_code == 0]
        assert taken == [0, 1]
        assert {one.error_code for (_, index), one in produced.items() if index > 2} == {ErrorCode.MESSAGE_TOO_LARGE}
        assert [node.partition("t", index).next_offset for index in range(4)] == [1, 1, 0, 0]


async def test_headers_and_records_of_one_request_are_counted_together(tmp_path):
    many = of_headers(70_000)
    async with running(tmp_path, **QUICK) as node:
        await node.topic(partitions=3, **COMPACTED)
        produced = await node.client.produce({T0: many, T1: many, ("t", 2): batch(b"v", keys=[b"k"])})
        codes = [ErrorCode(one.error_code) for one in produced.values()]
        assert codes == [ErrorCode.NONE, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.NONE]
        assert "70000 headers" in produced[T1].error_message


async def test_waiting_batches_have_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(preparing, "WAITING_BYTES_MAX", 2 * LARGE)
    async with running(tmp_path, **QUICK) as node, node.another() as other:
        await node.topic(partitions=2, **COMPACTED)
        large = batch(bytes(LARGE), keys=[b"k"])
        with held(node) as preparation:
            node.client.post(produce_frame({T0: large}))
            await until(lambda: preparation.calls)
            assert await code(other, large, T1) is ErrorCode.REQUEST_TIMED_OUT
        assert read_produced(await node.client.next_frame(), 9)[T0].error_code == 0
        assert await code(other, large, T1) is ErrorCode.NONE


# In order


async def test_nothing_overtakes_a_producers_first_batch_that_found_no_room(tmp_path, monkeypatch):
    monkeypatch.setattr(preparing, "WAITING_BYTES_MAX", 2 * LARGE)
    async with running(tmp_path, **QUICK) as node, node.another() as other:
        await node.topic(partitions=2, **COMPACTED)
        how = {"keys": [b"k"], "producer_id": 7, "producer_epoch": 0}
        first, second = batch(bytes(LARGE), base_sequence=0, **how), batch(b"v", base_sequence=1, **how)
        with held(node) as preparation:
            node.client.post(produce_frame({T0: batch(bytes(LARGE), keys=[b"k"])}))
            await until(lambda: preparation.calls)
            assert await code(other, first, T1) is ErrorCode.REQUEST_TIMED_OUT
            assert await code(other, second, T1) is ErrorCode.REQUEST_TIMED_OUT
            assert await code(other, b"no batch" + bytes(LARGE), T1) is ErrorCode.REQUEST_TIMED_OUT
        assert read_produced(await node.client.next_frame(), 9)[T0].error_code == 0
        assert [await code(other, one, T1) for one in (first, second)] == [ErrorCode.NONE] * 2


async def test_nobody_overtakes_a_batch_that_is_being_prepared(tmp_path):
    async with running(tmp_path, **QUICK) as node, node.another() as other, node.another() as third:
        await node.topic(partitions=2, **COMPACTED)
        with held(node) as preparation:
            node.client.post(produce_frame({T0: batch(b"first" + bytes(LARGE), keys=[b"k"])}))
            await until(lambda: preparation.calls)
            node.client.post(produce_frame({T0: batch(b"third", keys=[b"k"])}))  # the same connection waits
            other.post(produce_frame({T0: batch(b"second", keys=[b"k"])}))  # so does the same partition
            await until(lambda: len(node.broker.preparing) == 2)
            assert await code(third, batch(b"v", keys=[b"k"]), T1) is ErrorCode.NONE  # and nobody else
            assert node.partition().next_offset == 0
        for client, offset in ((node.client, 0), (other, 1), (node.client, 2)):
            assert read_produced(await client.next_frame(), 9)[T0].base_offset == offset
        values = (await node.client.fetch({T0: 0})).values()
        assert [value.rstrip(b"\0") for value in values] == [b"first", b"second", b"third"]


@pytest.mark.parametrize("others", [0, 300])
async def test_a_partition_named_twice_in_a_request_gets_its_batches_in_that_order(tmp_path, others):
    """The first one waits for a thread; the second could be prepared at once, and must not be."""
    async with running(tmp_path, **QUICK) as node:
        await node.topic(**COMPACTED)
        await node.topic("other", others or 1)
        twice = [(T0, batch(b"first" + bytes(LARGE), keys=[b"k"])), (T0, batch(b"second", keys=[b"k"]))]
        node.client.post(produce_frame([*twice, *[(("other", index), batch(b"v")) for index in range(others)]]))
        assert read_produced(await node.client.next_frame(), 9)[T0].error_code == 0
        values = (await node.client.fetch({T0: 0})).values()
        assert [value.rstrip(b"\0") for value in values] == [b"first", b"second"]


async def test_a_producers_sequences_stay_in_order(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic(**COMPACTED)
        with held(node) as preparation:
            for number, size in enumerate((LARGE, 0, LARGE, 0, 0)):
                how = {"producer_id": 7, "producer_epoch": 0, "base_sequence": number}
                node.client.post(produce_frame({T0: batch(bytes(size), keys=[b"k"], **how)}))
            await until(lambda: preparation.calls)
        for offset in range(5):
            produced = read_produced(await node.client.next_frame(), 9)[T0]
            assert (produced.error_code, produced.base_offset) == (0, offset)


async def test_a_request_with_both_kinds_of_topics_is_answered_once_and_whole(tmp_path):
    """Also with a flush to wait for, which the plain partition's batch may have had long before the other's."""
    async with running(tmp_path) as node:
        await node.topic(**COMPACTED)
        await node.topic("plain")
        with held(node) as preparation:
            node.client.post(produce_frame({T0: batch(bytes(LARGE), keys=[b"k"]), ("plain", 0): batch(b"v")}))
            await until(lambda: preparation.calls and node.partition("plain").high_watermark.offset == 1)
        produced = read_produced(await node.client.next_frame(), 9)
        assert {place: (one.error_code, one.base_offset) for place, one in produced.items()} == {
            T0: (0, 0),
            ("plain", 0): (0, 0),
        }
        assert node.partition().high_watermark.offset == 1


async def test_a_topic_that_wants_no_more_preparation_lets_what_waits_go_first(tmp_path):
    async with running(tmp_path, **QUICK) as node, node.another() as other:
        await node.topic(clarion_validation="deep")
        with held(node) as preparation:
            node.client.post(produce_frame({T0: batch(b"first" + bytes(LARGE))}))
            await until(lambda: preparation.calls)
            await node.broker.configure_topic("t", lambda _: {})
            assert node.partition().preparation is None
            other.post(produce_frame({T0: batch(b"second")}))
            await until(lambda: len(node.broker.preparing) == 2)
        assert read_produced(await node.client.next_frame(), 9)[T0].base_offset == 0
        assert read_produced(await other.next_frame(), 9)[T0].base_offset == 1


@pytest.mark.parametrize(
    ("bad", "refusal"),
    [
        (batch(b"second")[:-1] + b"?", ErrorCode.CORRUPT_MESSAGE),
        (batch(b"second")[:-1], ErrorCode.INVALID_RECORD),
        (b"no batch", ErrorCode.INVALID_RECORD),
    ],
    ids=["damaged", "cut off", "too short"],
)
async def test_a_batch_that_only_waits_for_others_is_checked_like_any_other(tmp_path, bad, refusal):
    async with running(tmp_path, **QUICK) as node, node.another() as other:
        await node.topic(clarion_validation="deep")
        with held(node) as preparation:
            node.client.post(produce_frame({T0: batch(b"first" + bytes(LARGE))}))
            await until(lambda: preparation.calls)
            await node.broker.configure_topic("t", lambda _: {})
            other.post(produce_frame({T0: bad}))
            await until(lambda: len(node.broker.preparing) == 2)
        assert read_produced(await other.next_frame(), 9)[T0].error_code == refusal
        assert node.partition().next_offset == 1


# What comes in between


async def test_a_topic_deleted_meanwhile_takes_nothing(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic(**COMPACTED)
        partition = node.partition()
        with held(node) as preparation:
            node.client.post(produce_frame({T0: batch(bytes(LARGE), keys=[b"k"])}))
            await until(lambda: preparation.calls)
            await node.broker.delete_topic("t")
        produced = read_produced(await node.client.next_frame(), 9)[T0]
        assert produced.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert partition.next_offset == 0


async def test_without_acknowledgements_a_refused_batch_closes_the_connection(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic(**COMPACTED)
        node.client.post(produce_frame({T0: batch(bytes(LARGE), keys=[b"k"])}, acks=0))
        node.client.post(produce_frame({T0: batch(bytes(LARGE), keys=[None])}, acks=0))
        assert await node.client.is_refused()
        assert node.partition().next_offset == 1


async def test_a_broker_that_stops_appends_nothing_afterwards(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic(partitions=2, **COMPACTED)
        partition = node.partition()
        with held(node) as preparation:
            node.client.post(produce_frame({T0: batch(bytes(LARGE), keys=[b"k"])}))
            await until(lambda: preparation.calls)
            stopping = asyncio.ensure_future(node.server.stop(drain_seconds=0))
            await until(lambda: not len(node.broker.preparing))
            assert not stopping.done()
        await stopping
        assert partition.next_offset == 0


# Trouble of our own


async def test_a_thread_that_cannot_be_started_is_tried_again(tmp_path, monkeypatch, caplog):
    start = threading.Thread.start

    def refuse_one(thread):
        if thread.name.startswith("prepare"):
            monkeypatch.setattr(threading.Thread, "start", start)
            raise RuntimeError("can't start new thread")
        start(thread)

    async with running(tmp_path, **QUICK) as node, node.another() as other:
        await node.topic(**COMPACTED)
        with held(node) as preparation:
            preparation.may_go.set()
            monkeypatch.setattr(threading.Thread, "start", refuse_one)
            assert await code(node.client, batch(bytes(LARGE), keys=[b"k"])) is ErrorCode.NONE
            assert await code(other, batch(bytes(LARGE), keys=[b"k"])) is ErrorCode.NONE
            assert preparation.calls == 2
    assert "preparation_put_off" in caplog.text


@pytest.mark.parametrize("acks", [0, -1])
async def test_a_mistake_in_appending_ends_the_connection_and_the_others_go_on(tmp_path, monkeypatch, acks):
    async with running(tmp_path, **QUICK) as node, node.another() as other:
        await node.topic(partitions=2, **COMPACTED)
        monkeypatch.setattr(node.partition(), "append_prepared", None)
        node.client.post(produce_frame({T0: batch(bytes(LARGE), keys=[b"k"])}, acks=acks))
        assert await node.client.is_refused()
        assert await code(other, batch(bytes(LARGE), keys=[b"k"]), T1) is ErrorCode.NONE


# Many partitions


async def test_batches_for_hundreds_of_partitions_leave_the_others_their_turns(tmp_path):
    """Some of them looked through, some not, some refused; each answer is about its own partition."""
    async with running(tmp_path, **QUICK) as node:
        await node.topic(partitions=400, **COMPACTED)
        await node.topic("plain", partitions=400)
        good, bad = batch(b"v", keys=[b"k"]), batch(b"v", keys=[None])
        batches = {("t", index): bad if index % 100 == 7 else good for index in range(400)}
        batches |= {("plain", index): bad for index in range(410)}
        request = produce_frame(batches)  # what the client does with it on the same loop is not the broker's doing
        async with watched_turns():
            node.client.post(request)
            answer = await node.client.next_frame()
        produced = read_produced(answer, 9)
        refused = {place: ErrorCode(one.error_code) for place, one in produced.items() if one.error_code}
        missing = {("plain", index): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for index in range(400, 410)}
        assert refused == missing | {("t", index): ErrorCode.INVALID_RECORD for index in (7, 107, 207, 307)}
        assert [node.partition("t", index).next_offset for index in (6, 7, 8)] == [1, 0, 1]
        assert [one.base_offset for one in (await node.client.produce(batches)).values()][:9] == [1] * 7 + [-1, 1]


async def test_a_request_for_hundreds_of_partitions_is_not_overtaken_on_its_connection(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic(partitions=300)
        node.client.post(produce_frame({("t", index): batch(b"first") for index in range(300)}, acks=0))
        node.client.post(produce_frame({("t", 299): batch(b"second")}))
        assert read_produced(await node.client.next_frame(), 9)[("t", 299)].base_offset == 1
        assert (await node.client.fetch({("t", 299): 0})).values("t", 299) == [b"first", b"second"]


async def test_nor_when_a_fetch_that_waited_on_it_is_answered_meanwhile(tmp_path, monkeypatch):
    monkeypatch.setattr(k01_fetch, "_READ_AT_ONCE", 10)
    async with running(tmp_path, **QUICK) as node, node.another() as other:
        await node.topic(partitions=800)

        async def keep_busy() -> None:
            async for _ in node.broker.turns.each(range(60)):
                time.sleep(2 * PIECE_MS / 1000)  # noqa: ASYNC251  # to hold the loop is the point

        node.client.post_fetch({("t", index): 0 for index in range(20)}, max_wait=10_000)
        await until(lambda: node.partition().watchers)
        for _ in range(3):
            node.broker.turns.start(keep_busy(), lambda: None)
        node.client.post(produce_frame({("t", index): batch(b"first") for index in range(800)}, acks=0))
        node.client.post(produce_frame({("t", 799): batch(b"second")}, acks=0))
        assert b"first" in (await node.client.fetched()).values()
        await until(lambda: node.partition("t", 799).next_offset == 2)
        assert (await other.fetch({("t", 799): 0})).values("t", 799) == [b"first", b"second"]
