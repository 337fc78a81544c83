"""A crash after every write: hundreds of names are made, changed and removed, and whatever was answered is there.

SQLite has no seam for a simulated disk. So its files are copied at every commit, and the write-ahead log of the copy is
cut at many lengths, as a crash in the middle of a write leaves it. What is found must be what the model knew after one
of the commits, and never after an earlier one than the last that was whole.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from clarion.cluster import ProducerIds, SettingsRegistry, SqliteStore, TopicRegistry
from clarion.cluster import sqlite_database as database_module
from clarion.cluster.coordination import Entry
from clarion.cluster.counters import next_broker_epoch
from clarion.cluster.sqlite_database import Database
from tests.cluster.stores import no_failure

FILES = ("registry.db", "registry.db-wal")
MEMORY = "/dev/shm"
Content = dict[str, Entry]


@pytest.fixture
def place() -> Iterator[Path]:
    """In memory where that is possible: here nothing depends on what a sync does."""
    folder = tempfile.mkdtemp(prefix="clarion-test-", dir=MEMORY if os.path.isdir(MEMORY) else None)
    yield Path(folder)
    shutil.rmtree(folder)


@dataclass
class Moment:
    """The files after an answered change, and what they must hold."""

    files: dict[str, bytes]
    content: Content
    topics: dict[str, tuple[UUID, int, dict[str, str]]]
    settings: dict[str, dict[str, str]]
    producer_id: int  # the next one must not be below
    epoch: int


async def live(folder: Path, changes: int, chance: random.Random) -> list[Moment]:
    """One life of a registry; a moment after every change that was answered."""
    store = await SqliteStore.open(str(folder / FILES[0]), no_failure)
    registry = await TopicRegistry.load(store, uuid4, partitions_max=10_000)
    settings, ids = await SettingsRegistry.load(store), ProducerIds(store, "one")
    producer_id, epoch = -1, -1
    moments = []
    for number in range(changes):
        name = f"t{chance.randrange(changes // 4)}"
        known = registry.image.topic(name)
        match chance.randrange(8):
            case 0:
                ids = ProducerIds(store, "one")  # as a restart does: the next id takes a new block
                producer_id = await ids.next()
            case 1:
                epoch = await next_broker_epoch(store, -1, "one")
            case 2:
                await settings.change("group", name, lambda now, n=number: {} if now else {"k": str(n)})
            case 3 if registry.being_deleted:
                await registry.forget_deleted(registry.being_deleted)
            case _ if known is None:
                await registry.create(name, chance.randrange(1, 4), {})
            case 4 | 5:
                await registry.delete(name)
            case 6:
                await registry.grow(registry.draft_grown(name, known.partition_count + 1))
            case _:
                await registry.configure(name, {"retention.ms": "1" * chance.randrange(1, 3000)})
        content = {entry.key: entry for entry in (await store.range("")).entries}
        files = {one: (folder / one).read_bytes() for one in FILES}
        topics = told(registry)
        groups = {one: dict(settings.get("group", one)) for one in settings.names("group")}
        moments.append(Moment(files, content, topics, groups, producer_id, epoch))
    await store.close()
    return moments


def told(registry: TopicRegistry) -> dict[str, tuple[UUID, int, dict[str, str]]]:
    topics = registry.image.topics.values()
    return {one.name: (one.id, one.partition_count, dict(one.overrides)) for one in topics}


def found_in(folder: Path, files: dict[str, bytes]) -> Content:
    """What a start finds in these files."""
    for name, data in files.items():
        (folder / name).write_bytes(data)
    database = Database(str(folder / FILES[0]))
    try:
        return {entry.key: entry for entry in database.range("").entries}
    finally:
        database.close()
        for name in FILES:
            (folder / name).unlink(missing_ok=True)


@pytest.fixture
def small_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the write-ahead log is moved into the database every few changes."""
    monkeypatch.setattr(database_module, "_WAL_BYTES_MAX", 150_000)


@pytest.mark.usefixtures("small_logs")
async def test_everything_that_was_answered_is_there_after_a_crash(place: Path):
    (place / "life").mkdir()
    (place / "crash").mkdir()
    moments = await live(place / "life", 400, random.Random(1))
    moved = sum(len(one.files[FILES[1]]) > len(two.files[FILES[1]]) for one, two in pairwise(moments))
    assert moved > 5, "the write-ahead log was moved in between"
    for number, moment in enumerate(moments):
        assert found_in(place / "crash", moment.files) == moment.content, f"after change {number}"
    for moment in moments[::20]:
        await check_registries(place / "crash", moment)


async def check_registries(folder: Path, moment: Moment) -> None:
    for name, data in moment.files.items():
        (folder / name).write_bytes(data)
    store = await SqliteStore.open(str(folder / FILES[0]), no_failure)
    registry = await TopicRegistry.load(store, uuid4, partitions_max=10_000)
    settings = await SettingsRegistry.load(store)
    assert told(registry) == moment.topics
    assert registry.image.partition_total == sum(count for _, count, _ in moment.topics.values())
    assert {one: dict(settings.get("group", one)) for one in settings.names("group")} == moment.settings
    assert await ProducerIds(store, "one").next() > moment.producer_id
    assert await next_broker_epoch(store, -1, "one") > moment.epoch
    await store.close()
    for name in FILES:
        (folder / name).unlink(missing_ok=True)


def check_cuts(place: Path, moments: list[Moment], step: int) -> int:
    """Every commit's part of the write-ahead log, cut at many lengths: it happened whole, or not at all."""
    count = 0
    for before, after in pairwise(moments):
        was, size = len(before.files[FILES[1]]), len(after.files[FILES[1]])
        if size < was or before.files[FILES[0]] != after.files[FILES[0]]:
            continue  # it was moved in between; the write-ahead log is another one
        for length in range(was, size, step):
            cut = {**after.files, FILES[1]: after.files[FILES[1]][:length]}
            assert found_in(place, cut) == before.content, f"cut at {length} of {was}..{size}"
            count += 1
    return count


@pytest.mark.usefixtures("small_logs")
async def test_a_commit_that_a_crash_cuts_short_has_not_happened_and_harms_no_other(place: Path):
    (place / "life").mkdir()
    (place / "crash").mkdir()
    moments = await live(place / "life", 40, random.Random(2))
    assert check_cuts(place / "crash", moments, step=911) > 200


@pytest.mark.campaign
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("small_logs")
async def test_the_write_ahead_log_cut_at_every_length(place: Path):
    (place / "life").mkdir()
    (place / "crash").mkdir()
    moments = await live(place / "life", 24, random.Random(3))
    assert check_cuts(place / "crash", moments, step=1) > 50_000


@pytest.mark.usefixtures("small_logs")
async def test_a_commit_torn_in_its_middle_has_not_happened(place: Path):
    """Sectors reach the device in any order: the end of a commit may be there and its middle not."""
    (place / "life").mkdir()
    (place / "crash").mkdir()
    chance = random.Random(4)
    moments = await live(place / "life", 60, chance)
    torn = 0
    for before, after in pairwise(moments):
        was, log = len(before.files[FILES[1]]), after.files[FILES[1]]
        if len(log) <= was or before.files[FILES[0]] != after.files[FILES[0]]:
            continue
        for _ in range(4):
            at = was + chance.randrange((len(log) - was) // 512) * 512
            hole = log[:at] + bytes(512) + log[at + 512 :]
            found = found_in(place / "crash", {**after.files, FILES[1]: hole[: len(log)]})
            assert found == (after.content if hole[: len(log)] == log else before.content)
            torn += hole[: len(log)] != log
    assert torn > 50


WRITER = """
import sys
from clarion.cluster import sqlite_database as module
from clarion.cluster.coordination import Put

module._WAL_BYTES_MAX = 30_000
database = module.Database(sys.argv[1])
for number in range(int(sys.argv[2]), 1_000_000):
    database.transact((), [Put(f"k{number % 500}", b"%d" % number), Put("last", b"%d" % number)])
    print(number, flush=True)
"""


def kill_a_writer(path: Path, begin: int, commits: int) -> int:
    """The last number that it told before it was killed, some commits after its start."""
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(begin)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    told = [int(writer.stdout.readline()) for _ in range(commits)]
    writer.kill()
    told += [int(line) for line in writer.stdout.read().splitlines() if line]
    writer.wait()
    return told[-1]


def kill_again_and_again(place: Path, kills: int) -> None:
    path, chance = place / FILES[0], random.Random(kills)
    begin = 0
    for _ in range(kills):
        last = kill_a_writer(path, begin, chance.randrange(1, 60))
        database = Database(str(path))
        found = {entry.key: int(entry.value) for entry in database.range("").entries}
        database.close()
        assert found["last"] in (last, last + 1), "the one that was under way may be there"
        for number in range(max(found["last"] - 499, 0), found["last"] + 1):
            assert found[f"k{number % 500}"] == number
        begin = found["last"] + 1


def test_a_process_killed_while_it_commits_and_moves_its_log_has_lost_nothing_it_told(place: Path):
    kill_again_and_again(place, kills=8)


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_three_hundred_kills_in_the_middle_of_commits_and_moves_lose_nothing(place: Path):
    kill_again_and_again(place, kills=300)


async def test_changes_at_once_are_as_safe_as_one_after_the_other(place: Path):
    """Each is answered when its own commit is in the files, whoever waits beside it."""
    (place / "crash").mkdir()
    store = await SqliteStore.open(str(place / FILES[0]), no_failure)
    registry = await TopicRegistry.load(store, uuid4, partitions_max=10_000)

    async def create(name: str) -> None:
        await registry.create(name, 1, {})
        answered.append(name)
        files = {one: (place / one).read_bytes() for one in FILES}
        seen.append((list(answered), files))

    answered: list[str] = []
    seen: list[tuple[list[str], dict[str, bytes]]] = []
    await asyncio.gather(*(create(f"t{number}") for number in range(60)))
    await store.close()
    for names, files in seen:
        assert {f"topics/{name}" for name in names} <= found_in(place / "crash", files).keys()
