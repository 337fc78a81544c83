"""Fetch sessions (KIP-227): a reader names its partitions once, then only changes; nobody is starved or forgotten."""

import asyncio
from collections import Counter
from functools import partial
from uuid import UUID

import pytest

from clarion.broker import fetch_sessions
from clarion.broker.apis import k01_fetch
from clarion.broker.config import Durability
from clarion.broker.limits import Limits
from clarion.model.errors import ErrorCode
from clarion.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.broker.harness import Client, Node, running, until
from tests.broker.talk import NEW_SESSION, Fetched, batch, now_ms, split

T0, T1 = ("t", 0), ("t", 1)
QUICK = {"durability": Durability.PAGE_CACHE}


class Reader:
    """A client with a session, that keeps its positions as the Java client does: it names only what has moved."""

    def __init__(self, client: Client, offsets: dict, **limits: int) -> None:
        self.client = client
        self.offsets = dict(offsets)
        self.limits = limits
        self.session = NEW_SESSION
        self._changed = dict(offsets)

    async def fetch(self, *, forgotten=(), **more: int) -> Fetched:
        answer = await self.client.fetch(
            self._changed, session=self.session, forgotten=forgotten, **{**self.limits, **more}
        )
        assert answer.error == 0
        self._changed = {}
        for place in answer.partitions:
            got = len(answer.values(*place))
            if got:
                self.offsets[place] += got
                self._changed[place] = self.offsets[place]
        self.session = (answer.session_id, self.session[1] + 1)
        return answer


async def write(node: Node, *places, value: bytes = b"v") -> None:
    for place in places:
        await node.client.produce({place: batch(value)}, acks=1)


async def test_a_session_names_everything_once_and_then_only_what_is_new(tmp_path):
    async with running(tmp_path, **QUICK) as node, node.another() as client:
        await node.topic(partitions=3)
        await write(node, T0)
        reader = Reader(client, {("t", index): 0 for index in range(3)})
        first = await reader.fetch()
        assert first.session_id > 0
        assert set(first.partitions) == {("t", 0), ("t", 1), ("t", 2)}
        assert (await reader.fetch()).partitions == {}
        await write(node, T1)
        second = await reader.fetch()
        assert second.session_id == first.session_id
        assert set(second.partitions) == {T1}
        assert second.values(*T1) == [b"v"]
        assert (await reader.fetch()).partitions == {}


async def test_partitions_join_and_leave_a_session(tmp_path):
    async with running(tmp_path, **QUICK) as node, node.another() as client:
        await node.topic(partitions=2)
        reader = Reader(client, {T0: 0})
        await reader.fetch()
        await write(node, T0, T1)
        assert set((await reader.fetch()).partitions) == {T0}
        reader._changed[T1] = reader.offsets[T1] = 0
        assert set((await reader.fetch()).partitions) == {T1}
        await write(node, T0, T1)
        assert set((await reader.fetch(forgotten=[T0])).partitions) == {T1}
        await write(node, T0)
        assert (await reader.fetch()).partitions == {}
        assert not node.partition("t", 0).watchers


@pytest.mark.parametrize("version", [7, 12, 13])
async def test_a_session_lives_in_names_and_in_ids(tmp_path, version):
    async with running(tmp_path, **QUICK) as node, node.another() as client:
        await node.topic()
        place = (node.broker.image.topics["t"].id, 0) if version >= 13 else T0
        answer = await client.fetch({place: 0}, version=version, session=NEW_SESSION)
        await write(node, T0)
        answer = await client.fetch({}, version=version, session=(answer.session_id, 1))
        assert answer.values(place[0]) == [b"v"]


async def test_a_session_is_told_where_the_logs_part_though_nothing_else_is_new(tmp_path):
    async with running(tmp_path, **QUICK) as node, node.another() as client:
        await node.topic()
        await write(node, T0, T0)
        session = (await client.fetch({T0: 2}, session=NEW_SESSION)).session_id
        for epoch in (1, 2):
            asked = {T0: 5} if epoch == 1 else {}
            answer = await client.fetch(asked, session=(session, epoch), last_fetched_epoch=0, max_wait=600_000)
            assert answer.partitions[T0].diverging_epoch.end_offset == 2
        answer = await client.fetch({T0: 2}, session=(session, 3), last_fetched_epoch=0)
        assert (answer.error, answer.partitions) == (0, {})


@pytest.mark.parametrize(("first", "second"), [(12, 13), (13, 12)])
async def test_a_session_is_not_continued_by_the_other_kind_of_name(tmp_path, first, second):
    async with running(tmp_path, **QUICK) as node, node.another() as client:
        await node.topic()
        places = {12: T0, 13: (node.broker.image.topics["t"].id, 0)}
        session = (await client.fetch({places[first]: 0}, version=first, session=NEW_SESSION)).session_id
        answer = await client.fetch({places[second]: 0}, version=second, session=(session, 1))
        assert (answer.error, answer.session_id) == (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, 0)
        assert answer.partitions == {}
        await write(node, T0)
        answer = await client.fetch({}, version=first, session=(session, 1))
        assert (answer.error, answer.session_id, set(answer.partitions)) == (0, session, {places[first]})


async def test_a_session_ends_when_its_last_partition_is_forgotten(tmp_path):
    async with running(tmp_path, **QUICK) as node, node.another() as client:
        await node.topic(partitions=2)
        session = (await client.fetch({T0: 0, T1: 0}, session=NEW_SESSION)).session_id
        assert (await client.fetch({}, session=(session, 1), forgotten=[T1])).session_id == session
        answer = await client.fetch({}, session=(session, 2), forgotten=[T0], max_wait=600_000)
        assert (answer.error, answer.session_id, answer.partitions) == (0, 0, {})
        assert len(node.broker.sessions) == 0
        assert not node.partition().watchers
        assert (await client.fetch({T0: 0}, session=(session, 3))).error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_a_wrong_epoch_and_an_unknown_session_are_told_apart(tmp_path):
    async with running(tmp_path, **QUICK) as node, node.another() as client:
        await node.topic()
        session = (await client.fetch({T0: 0}, session=NEW_SESSION)).session_id
        for wrong in (2, 5):
            answer = await client.fetch({}, session=(session, wrong))
            assert (answer.error, answer.partitions) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, {})
        assert (await client.fetch({}, session=(session + 1, 1))).error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert (await client.fetch({}, session=(session, 1))).error == 0
        assert (await client.fetch({}, session=(session, 1))).error == ErrorCode.INVALID_FETCH_SESSION_EPOCH


async def test_the_epoch_begins_again_at_one_after_the_largest(tmp_path):
    async with running(tmp_path, **QUICK) as node, node.another() as client:
        await node.topic()
        session = (await client.fetch({T0: 0}, session=NEW_SESSION)).session_id
        node.broker.sessions._sessions[session].epoch = 2**31 - 1
        assert (await client.fetch({}, session=(session, 2**31 - 1))).error == 0
        assert (await client.fetch({}, session=(session, 1))).error == 0


async def test_a_new_session_replaces_the_one_it_names_and_a_last_fetch_ends_it(tmp_path):
    async with running(tmp_path, **QUICK) as node, node.another() as client:
        await node.topic()
        first = (await client.fetch({T0: 0}, session=NEW_SESSION)).session_id
        second = (await client.fetch({T0: 0}, session=(first, 0))).session_id
        assert second != first
        assert len(node.broker.sessions) == 1
        assert (await client.fetch({}, session=(first, 1))).error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        last = await client.fetch({T0: 0}, session=(second, -1))
        assert (last.error, last.session_id, set(last.partitions)) == (0, 0, {T0})
        assert len(node.broker.sessions) == 0
        assert not node.partition().watchers


async def test_a_fetch_without_a_session_leaves_nothing_behind(tmp_path):
    async with running(tmp_path, **QUICK) as node, node.another() as client:
        await node.topic()
        for max_wait in (0, 20):
            answer = await client.fetch({T0: 0}, max_wait=max_wait)
            assert (answer.session_id, set(answer.partitions)) == (0, {T0})
        assert len(node.broker.sessions) == 0
        assert not node.partition().watchers


async def test_an_old_session_makes_room_and_without_room_there_is_no_session(tmp_path):
    async with running(tmp_path, limits=Limits(fetch_sessions_max=2), **QUICK) as node, node.another() as client:
        await node.topic()
        first = (await client.fetch({T0: 0}, session=NEW_SESSION)).session_id
        second = (await client.fetch({T0: 0}, session=NEW_SESSION)).session_id
        full = await client.fetch({T0: 0}, session=NEW_SESSION)
        assert (full.error, full.session_id, set(full.partitions)) == (0, 0, {T0})
        node.broker.sessions._sessions[first].last_used -= fetch_sessions.EVICTION_SECONDS + 1
        third = (await client.fetch({T0: 0}, session=NEW_SESSION)).session_id
        assert third not in (0, first, second)
        assert (await client.fetch({}, session=(first, 1))).error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert (await client.fetch({}, session=(second, 1))).error == 0
        assert len(node.partition().watchers) == 2


def test_a_session_in_use_does_not_make_room_however_old_it_is():
    sessions = fetch_sessions.FetchSessions(1, iter(range(1, 10)).__next__)
    opened = partial(sessions.open, uses_ids=True)
    first = opened(asking(session_epoch=0), now=0.0)
    assert opened(asking(session_id=first.id, session_epoch=1), now=100.0) is first
    assert opened(asking(session_epoch=0), now=100.0 + fetch_sessions.EVICTION_SECONDS).id == 0
    assert opened(asking(session_id=first.id, session_epoch=2), now=300.0) is first
    assert opened(asking(session_epoch=0), now=301.0 + fetch_sessions.EVICTION_SECONDS).id != 0


def asking(*, session_id: int = 0, session_epoch: int) -> FetchRequest:
    topic = FetchTopic("", UUID(int=1), [FetchPartition(0, -1, 0, -1, -1, 1000)])
    return FetchRequest(-1, 0, 1, 1000, 0, session_id, session_epoch, [topic], [], "")


@pytest.mark.uncompiled
async def test_sessions_together_remember_a_bounded_number_of_partitions(tmp_path, monkeypatch):
    monkeypatch.setattr(fetch_sessions, "PARTITIONS_MAX", 10)
    async with running(tmp_path, **QUICK) as node, node.another() as client:
        await node.topic(partitions=11)
        few = {("t", index): 0 for index in range(6)}
        session = (await client.fetch(few, session=NEW_SESSION)).session_id
        assert session
        many = await client.fetch(few, session=NEW_SESSION)
        assert (many.error, many.session_id, len(many.partitions)) == (0, 0, 6)
        more = {("t", index): 0 for index in range(6, 11)}
        assert (await client.fetch(more, session=(session, 1))).error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert not any(node.partition("t", index).watchers for index in range(11))


async def test_a_deleted_topic_is_an_error_in_every_answer_until_it_is_forgotten(tmp_path):
    async with running(tmp_path, **QUICK) as node, node.another() as client:
        await node.topic()
        await node.topic("other")
        session = (await client.fetch({T0: 0, ("other", 0): 0}, session=NEW_SESSION)).session_id
        await node.broker.delete_topic("t")
        for epoch in (1, 2):
            answer = await client.fetch({}, session=(session, epoch), max_wait=10_000)
            assert answer.errors() == {T0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        answer = await client.fetch({}, session=(session, 3), forgotten=[T0])
        assert answer.errors() == {}


async def test_a_topic_made_again_under_its_name_is_read_by_the_same_session(tmp_path):
    async with running(tmp_path, **QUICK) as node, node.another() as client:
        await node.topic()
        session = (await client.fetch({T0: 0}, session=NEW_SESSION)).session_id
        await node.broker.delete_topic("t")
        await node.topic()
        await write(node, T0)
        assert (await client.fetch({}, session=(session, 1))).values() == [b"v"]


# Fairness


@pytest.mark.parametrize("partitions", [3, 8])
async def test_partitions_with_more_than_fits_all_get_their_turn(tmp_path, partitions):
    """A session whose answers have room for one batch. Whoever got nothing must not be forgotten: it has not moved."""
    async with running(tmp_path, **QUICK) as node, node.another() as client:
        await node.topic(partitions=partitions)
        places = [("t", index) for index in range(partitions)]
        for _ in range(4):
            await write(node, *places, value=b"x" * 1000)
        reader = Reader(client, dict.fromkeys(places, 0), max_bytes=1100)
        turns = Counter()
        for _ in range(4 * partitions):
            answer = await reader.fetch(max_wait=200)
            turns.update(place for place in answer.partitions if answer.records(*place))
        assert reader.offsets == dict.fromkeys(places, 4)
        assert set(turns.values()) == {4}


async def test_a_batch_too_large_for_its_partitions_share_gets_its_turn_too(tmp_path):
    async with running(tmp_path, **QUICK) as node, node.another() as client:
        await node.topic(partitions=3)
        places = [("t", index) for index in range(3)]
        for _ in range(3):
            await write(node, *places, value=b"x" * 5000)
        reader = Reader(client, dict.fromkeys(places, 0), partition_max_bytes=100)
        for _ in range(9):
            await reader.fetch(max_wait=200)
        assert reader.offsets == dict.fromkeys(places, 3)


async def test_without_a_session_the_client_decides_who_comes_first(tmp_path):
    async with running(tmp_path, **QUICK) as node, node.another() as client:
        await node.topic(partitions=2)
        await write(node, T0, T1, value=b"x" * 1000)
        for order in ((T0, T1), (T1, T0)):
            answer = await client.fetch(dict.fromkeys(order, 0), max_bytes=1000)
            assert [len(split(answer.records(*place))) for place in order] == [1, 0]


# Many partitions


@pytest.mark.uncompiled
async def test_two_thousand_partitions_cost_what_the_few_with_news_cost(tmp_path, monkeypatch):
    count = 2_000
    looks = 0
    read = k01_fetch.Fetch._read

    def counted(self, *args, **how):
        nonlocal looks
        looks += 1
        return read(self, *args, **how)

    monkeypatch.setattr(k01_fetch.Fetch, "_read", counted)
    async with running(tmp_path, **QUICK) as node, node.another() as client:
        await node.topic(partitions=count)
        reader = Reader(client, {("t", index): 0 for index in range(count)})
        await reader.fetch()
        assert looks >= count
        assert (await reader.fetch()).partitions == {}  # only now is it known that all of them are quiet
        for number in range(20):
            written = {("t", 97 * number % count), ("t", 31 * number % count)}
            await write(node, *written)
            looks = 0
            answer = await reader.fetch()
            assert answer.partitions.keys() == written
            assert all(answer.values(*place) == [b"v"] for place in written)
            assert looks <= 4  # those with news, and those that moved since the fetch before


@pytest.mark.uncompiled
async def test_waiting_for_many_bytes_from_many_partitions_does_not_make_appends_slow(tmp_path):
    """Every append tells the waiting fetch; the fetch counts, and looks at its partitions when it is worth it."""
    count = 500
    async with running(tmp_path, **QUICK) as node, node.another() as client:
        await node.topic(partitions=count)
        for index in range(count):
            await node.write("t", [now_ms()], index)
        client.post_fetch({("t", index): 0 for index in range(count)}, min_bytes=1_000_000, max_wait=20_000)
        await until(lambda: node.partition("t", 7).watchers)
        (session,) = node.partition("t", 7).watchers
        looks = 0
        collect = type(session.on_news.__self__)._collect

        def counted(self):
            nonlocal looks
            looks += 1
            return collect(self)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(session.on_news.__self__), "_collect", counted)
            for number in range(200):
                await write(node, ("t", number % count))
            assert looks == 0
            await write(node, T0, value=b"x" * 990_000)
            answer = await client.fetched()
        assert looks <= 2
        assert sum(len(answer.records(*place)) for place in answer.partitions) >= 1_000_000


# Sessions and clients that come and go


async def test_a_session_that_is_replaced_while_its_fetch_waits_is_gone_for_good(tmp_path):
    """A client reconnects and begins anew before the broker knows that the old connection is dead."""
    async with running(tmp_path, **QUICK) as node, node.another() as old, node.another() as new:
        await node.topic()
        session = (await old.fetch({T0: 0}, session=NEW_SESSION)).session_id
        await write(node, T0)
        old.post_fetch({}, session=(session, 1), max_wait=100, min_bytes=10_000)
        await until(lambda: node.broker.sessions._sessions[session].on_news)
        again = (await new.fetch({T0: 0}, session=(session, 0))).session_id
        assert (await old.fetched()).error == 0
        await new.fetch({}, session=(again, -1))
        assert len(node.broker.sessions) == 0
        assert not node.partition().watchers


async def test_of_two_fetches_in_one_session_the_later_one_gets_the_news(tmp_path):
    async with running(tmp_path, **QUICK) as node, node.another() as old, node.another() as new:
        await node.topic()
        session = (await old.fetch({T0: 0}, session=NEW_SESSION)).session_id
        # Who closes may have closed one half only, and is answered: so this one does not wait for long.
        old.post_fetch({}, session=(session, 1), max_wait=500)
        kept = node.broker.sessions._sessions[session]
        await until(lambda: kept.on_news)
        new.post_fetch({}, session=(session, 2), max_wait=20_000)
        await until(lambda: kept.epoch == 3)
        old.close()
        await until(lambda: len(node.server.net.connections) == 2)
        await write(node, T0)
        assert (await asyncio.wait_for(new.fetched(), 60)).values() == [b"v"]
