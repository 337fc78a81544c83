"""What every coordination store does, whatever is behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clarion.cluster.coordination import (
    ABSENT,
    OPERATIONS_MAX,
    TRANSACTION_BYTES_MAX,
    Change,
    CompactedError,
    Compare,
    CoordinationStore,
    Delete,
    Entry,
    LeaseNotFoundError,
    Put,
    StoreFailedError,
    TransactionTooLargeError,
    absent,
    unchanged,
)
from tests.cluster.stores import OpenStore, etcd_at, local_in, simulated, sqlite_in
from tests.etcd import EtcdProcess

PATIENCE_SECONDS = 20


@pytest.fixture(params=["sqlite", "simulated", "local owner", "local client", "etcd"])
async def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OpenStore]:
    match request.param:
        case "sqlite":
            yield sqlite_in(tmp_path)
        case "simulated":
            yield simulated()
        case "local owner":
            yield local_in(tmp_path)
        case "local client":
            open_local = local_in(tmp_path)
            async with opened(open_local):
                yield open_local
        case "etcd":
            server: EtcdProcess = request.getfixturevalue("etcd")
            yield etcd_at(server.endpoint)


@asynccontextmanager
async def opened(open_store: OpenStore) -> AsyncIterator[CoordinationStore]:
    store = await open_store()
    try:
        yield store
    finally:
        await store.close()


async def put(store: CoordinationStore, key: str, value: bytes = b"v") -> Entry:
    assert (await store.transact((), [Put(key, value)])).succeeded
    found = await store.get(key)
    assert found is not None
    return found


async def now(store: CoordinationStore) -> int:
    """Its revision. What a test does is counted from there: some stores serve others too."""
    return (await store.range("")).revision


async def values(store: CoordinationStore, prefix: str = "") -> dict[str, bytes]:
    return {entry.key: entry.value for entry in (await store.range(prefix)).entries}


async def test_a_new_store_is_empty_and_every_change_has_the_next_revision(open_store):
    async with opened(open_store) as store:
        assert await store.get("a") is None
        empty = await store.range("")
        assert empty.entries == ()
        for number in (1, 2):
            outcome = await store.transact((), [Put("a", b"1")])
            assert (outcome.succeeded, outcome.revision) == (True, empty.revision + number)


async def test_a_key_knows_when_it_was_made_and_when_it_was_changed(open_store):
    async with opened(open_store) as store:
        start = await now(store)
        first = await put(store, "a", b"1")
        await put(store, "b")
        second = await put(store, "a", b"2")
        assert (first.create_revision, first.mod_revision) == (start + 1, start + 1)
        assert (second.value, second.create_revision, second.mod_revision) == (b"2", start + 1, start + 3)
        await store.transact((), [Delete("a")])
        again = await put(store, "a", b"3")
        assert (again.create_revision, again.mod_revision) == (start + 5, start + 5)


async def test_everything_is_there_after_it_was_closed_and_opened_again(open_store):
    async with opened(open_store) as store:
        await put(store, "a", b"\x00\xff")
        await put(store, "b", b"")
        await put(store, "gone")
        await store.transact((), [Delete("gone")])
        before = await store.range("")
    async with opened(open_store) as store:
        assert await store.range("") == before
        assert (await store.transact((), [Put("c", b"")])).revision == before.revision + 1


async def test_a_range_has_what_begins_so_in_the_order_of_bytes(open_store):
    async with opened(open_store) as store:
        names = ["t/b", "t/a", "t", "t/", "t0", "t/\U0001f600", "t/\ufb01", "u", "s", "t/a/1", "T/a", "t/a\x00b"]
        for name in names:
            await put(store, name, name.encode())
        for prefix in ("t/", "t", "", "t/a", "nothing", "t/\U0001f600"):
            found = (await store.range(prefix)).entries
            assert [entry.key for entry in found] == sorted(
                (name for name in names if name.startswith(prefix)), key=str.encode
            )
            assert all(entry.value == entry.key.encode() for entry in found)


async def test_a_transaction_happens_only_if_all_its_compares_hold(open_store):
    async with opened(open_store) as store:
        a = await put(store, "a", b"1")
        refused = await store.transact([unchanged(a), absent("a")], [Put("a", b"2"), Put("b", b"2")])
        assert (refused.succeeded, refused.revision) == (False, a.mod_revision)
        assert await values(store) == {"a": b"1"}
        assert (await store.transact([unchanged(a), absent("b")], [Put("a", b"2"), Put("b", b"2")])).succeeded
        assert not (await store.transact([unchanged(a)], [Delete("b")])).succeeded, "it has been changed since"
        assert await values(store) == {"a": b"2", "b": b"2"}
        revisions = {entry.mod_revision for entry in (await store.range("")).entries}
        assert revisions == {a.mod_revision + 1}, "one revision for all of it"


async def test_a_key_that_went_and_came_again_is_not_the_one_it_was(open_store):
    async with opened(open_store) as store:
        before = await put(store, "a")
        await store.transact((), [Delete("a")])
        await put(store, "a")
        assert not (await store.transact([unchanged(before)], [Put("a", b"mine")])).succeeded


async def test_a_transaction_that_changes_nothing_has_no_revision_of_its_own(open_store):
    async with opened(open_store) as store:
        a = await put(store, "a")
        for operations in ((), [Delete("nothing")]):
            outcome = await store.transact([Compare("b", ABSENT)], operations)
            assert (outcome.succeeded, outcome.revision) == (True, a.mod_revision)


async def test_of_many_who_want_the_same_one_gets_it(open_store):
    async with opened(open_store) as store:
        outcomes = await asyncio.gather(*(store.transact([absent("a")], [Put("a", b"%d" % n)]) for n in range(20)))
        assert sum(outcome.succeeded for outcome in outcomes) == 1
        winner = [outcome.succeeded for outcome in outcomes].index(True)
        assert await values(store) == {"a": b"%d" % winner}


async def test_counting_by_compare_and_set_loses_no_count(open_store):
    async with opened(open_store) as store:

        async def count() -> None:
            while True:
                found = await store.get("n")
                compare = unchanged(found) if found else absent("n")
                value = b"%d" % (int(found.value) + 1 if found else 1)
                if (await store.transact([compare], [Put("n", value)])).succeeded:
                    return

        await asyncio.gather(*(count() for _ in range(15)))
        assert await values(store) == {"n": b"15"}


async def test_a_transaction_takes_so_much_and_no_more(open_store):
    async with opened(open_store) as store:
        most = [Put(f"k{number}", b"") for number in range(OPERATIONS_MAX)]
        assert (await store.transact([absent(one.key) for one in most], most)).succeeded
        for compares, operations in (
            ([], [*most, Put("one more", b"")]),
            ([absent(f"x{number}") for number in range(OPERATIONS_MAX + 1)], []),
            ([], [Put("big", bytes(TRANSACTION_BYTES_MAX))]),
        ):
            with pytest.raises(TransactionTooLargeError):
                await store.transact(compares, operations)
        assert (await store.transact((), [Put("big", bytes(TRANSACTION_BYTES_MAX - 3))])).succeeded
        assert len((await store.range("")).entries) == OPERATIONS_MAX + 1


async def changes(store: CoordinationStore, prefix: str, from_revision: int, count: int) -> list[Change]:
    watching = store.watch(prefix, from_revision)
    async with asyncio.timeout(PATIENCE_SECONDS):
        return [await anext(watching) for _ in range(count)]


async def test_a_watch_tells_every_change_since_its_revision_in_order(open_store):
    async with opened(open_store) as store:
        begin = (await store.range("")).revision + 1
        await put(store, "t/a", b"1")
        await put(store, "u/a", b"1")
        await store.transact((), [Put("t/b", b"2"), Delete("t/a"), Put("u/b", b"2")])
        seen = await changes(store, "t/", begin, 2)
        assert [change.revision for change in seen] == [begin, begin + 2]
        assert [(one.key, one.entry.value if one.entry else None) for one in seen[1].events] == [
            ("t/b", b"2"),
            ("t/a", None),
        ]
        assert await changes(store, "t/", begin + 1, 1) == seen[1:]


async def test_a_watch_waits_for_what_is_to_come(open_store):
    async with opened(open_store) as store:
        a = await put(store, "a")
        waiting = asyncio.ensure_future(changes(store, "a", a.mod_revision + 1, 2))
        await asyncio.sleep(0)
        await put(store, "b")
        await put(store, "a", b"1")
        assert not waiting.done()
        await put(store, "a", b"2")
        assert [change.events[0].entry.value for change in await waiting] == [b"1", b"2"]


async def test_a_watch_from_before_a_compaction_is_told_so(open_store):
    async with opened(open_store) as store:
        start = await now(store)
        for number in range(5):
            await put(store, "a", b"%d" % number)
        await store.compact(start + 3)
        with pytest.raises(CompactedError) as refused:
            await changes(store, "a", start + 3, 1)
        assert refused.value.oldest == start + 4
        assert [change.revision for change in await changes(store, "a", start + 4, 2)] == [start + 4, start + 5]
        assert await values(store) == {"a": b"4"}


async def test_a_watch_that_was_compacted_away_in_the_middle_is_told_so_or_has_it_all(open_store):
    """A store that pushes what happens may have told it before the compaction; none leaves something out."""
    async with opened(open_store) as store:
        a = await put(store, "a", b"0")
        watching = store.watch("a", a.mod_revision)
        await anext(watching)
        for number in range(1, 4):
            await put(store, "a", b"%d" % number)
        await store.compact(a.mod_revision + 2)
        told: list[bytes] = []
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while len(told) < 3:
                    told += [event.entry.value for event in (await anext(watching)).events]
        except CompactedError:
            pass
        assert told in ([], [b"1", b"2", b"3"])
        await watching.aclose()


async def test_a_deletion_at_the_compacted_revision_is_not_passed_over(open_store):
    async with opened(open_store) as store:
        a = await put(store, "a")
        deleted = await store.transact((), [Delete("a")])
        await put(store, "b")
        await store.compact(deleted.revision)
        with pytest.raises(CompactedError):
            await changes(store, "", a.mod_revision, 2)
        with pytest.raises(CompactedError):
            await changes(store, "", deleted.revision, 2)
        (last,) = await changes(store, "", deleted.revision + 1, 1)
        assert [event.key for event in last.events] == ["b"]


async def test_a_key_goes_with_its_lease(open_store):
    async with opened(open_store) as store:
        lease = await store.grant_lease(0.05)
        bound = await store.transact((), [Put("mine", b"1", lease), Put("other", b"1")])
        assert (await store.get("mine")).lease == lease
        (gone,) = await changes(store, "mine", bound.revision + 1, 1)
        assert [(one.key, one.entry) for one in gone.events] == [("mine", None)]
        assert await values(store) == {"other": b"1"}
        with pytest.raises(LeaseNotFoundError):
            await store.keep_alive(lease)
        with pytest.raises(LeaseNotFoundError):
            await store.transact((), [Put("late", b"1", lease)])
        assert await values(store) == {"other": b"1"}


async def test_a_lease_that_is_kept_alive_does_not_end(open_store):
    async with opened(open_store) as store:
        kept, left = await store.grant_lease(0.4), await store.grant_lease(0.4)
        await store.transact((), [Put("kept", b"", kept), Put("left", b"", left)])
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await store.get("left") is not None:
                await store.keep_alive(kept)
                await asyncio.sleep(0.01)
        assert await store.get("kept") is not None


async def test_a_revoked_lease_ends_at_once_and_twice_is_no_error(open_store):
    async with opened(open_store) as store:
        lease = await store.grant_lease(3600)
        for number in range(OPERATIONS_MAX + 5):
            await store.transact((), [Put(f"k{number}", b"", lease)])
        await store.revoke_lease(lease)
        await store.revoke_lease(lease)
        assert await values(store) == {}


async def test_a_key_that_is_put_without_the_lease_does_not_go_with_it(open_store):
    async with opened(open_store) as store:
        lease = await store.grant_lease(3600)
        await store.transact((), [Put("a", b"1", lease)])
        await put(store, "a", b"2")
        await store.revoke_lease(lease)
        assert await values(store) == {"a": b"2"}


async def test_a_lease_outlives_a_restart_of_the_store_and_ends_afterwards(open_store):
    async with opened(open_store) as store:
        lease = await store.grant_lease(0.2)
        await store.transact((), [Put("mine", b"1", lease)])
    async with opened(open_store) as store, asyncio.timeout(PATIENCE_SECONDS):
        while await store.get("mine") is not None:
            await asyncio.sleep(0.01)
        assert await store.grant_lease(1) != lease, "a number is never used again"


async def test_a_closed_store_answers_nobody(open_store):
    store = await open_store()
    await store.close()
    await store.close()
    for attempt in (store.get("a"), store.range(""), store.transact((), [Put("a", b"")])):
        with pytest.raises(StoreFailedError):
            await attempt


KEYS = st.sampled_from(["a", "b", "c/1", "c/2"])
OPERATION = st.one_of(st.builds(Put, KEYS, st.binary(max_size=5)), st.builds(Delete, KEYS))
TRANSACTION = st.tuples(
    st.lists(st.tuples(KEYS, st.booleans()), max_size=2),
    st.lists(OPERATION, max_size=3, unique_by=lambda one: one.key),
)


@given(story=st.lists(TRANSACTION, max_size=12))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_it_agrees_with_a_dictionary_that_counts(
    tmp_path_factory: pytest.TempPathFactory, etcd: EtcdProcess, story: list
) -> None:
    """Compares that are right and wrong, changes and nothings: all stores do the same as the model."""

    async def tell(open_store: OpenStore) -> None:
        model: dict[str, tuple[bytes, int, int]] = {}
        async with opened(open_store) as store:
            revision = await now(store)
            for compares, operations in story:
                asked = [Compare(key, model.get(key, (b"", 0, 0))[2] + (not right)) for key, right in compares]
                holds = all(right for _, right in compares)
                outcome = await store.transact(asked, operations)
                assert outcome.succeeded == holds
                has_effect = any(isinstance(one, Put) or one.key in model for one in operations)
                if holds and has_effect:
                    revision += 1
                    for one in operations:
                        if isinstance(one, Put):
                            created = model[one.key][1] if one.key in model else revision
                            model[one.key] = (one.value, created, revision)
                        else:
                            model.pop(one.key, None)
                assert outcome.revision == revision
        async with opened(open_store) as store:
            found = await store.range("")
        assert {one.key: (one.value, one.create_revision, one.mod_revision) for one in found.entries} == model
        assert found.revision == revision

    def new_folder() -> Path:
        return tmp_path_factory.mktemp("store")

    for one in (sqlite_in(new_folder()), local_in(new_folder()), simulated(), etcd_at(etcd.endpoint)):
        asyncio.run(tell(one))
