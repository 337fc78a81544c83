"""Folders that no topic claims: what a crash interrupted is finished, and what is unknown is never thrown away."""

import shutil
from pathlib import Path

import pytest

from clarion.broker.config import Durability
from clarion.cluster.coordination import Put
from tests.broker.harness import running
from tests.broker.talk import batch

T0 = ("t", 0)
QUICK = {"durability": Durability.PAGE_CACHE}


def folders(data_dir: Path, start: str = "t-") -> list[str]:
    return sorted(one.name for one in data_dir.iterdir() if one.name.startswith(start))


async def filled(data_dir: Path, name: str = "t") -> str:
    """A data directory with one topic; returns its id."""
    async with running(data_dir, **QUICK) as node:
        await node.topic(name, 2)
        await node.client.produce({(name, 0): batch(b"v")})
        return node.broker.image.topics[name].id.hex


async def test_a_deletion_that_was_interrupted_is_finished(tmp_path):
    await filled(tmp_path)
    async with running(tmp_path, **QUICK) as node:
        await node.broker.registry.delete("t")  # and here the power goes
    async with running(tmp_path, **QUICK) as node:
        assert folders(tmp_path) == []
        assert node.broker.registry.being_deleted == frozenset()
        await node.topic()
        assert (await node.client.produce({T0: batch(b"v")}))[T0].base_offset == 0


async def test_a_deletion_that_was_noted_and_not_done_has_not_happened(tmp_path):
    await filled(tmp_path)
    async with running(tmp_path, **QUICK) as node:
        topic = node.broker.image.topics["t"]
        await node.server.store.transact((), [Put(f"deleting/{topic.id}", b"t")])
    async with running(tmp_path, **QUICK) as node:
        assert (await node.client.fetch({T0: 0})).values() == [b"v"]
        await node.broker.delete_topic("t")
        assert node.broker.registry.being_deleted == frozenset()


async def test_after_a_deletion_nothing_is_noted_any_more(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        for _ in range(3):
            await node.topic()
            await node.broker.delete_topic("t")
        assert node.broker.registry.being_deleted == frozenset()
        assert folders(tmp_path) == []


async def test_messages_that_an_older_copy_of_the_registry_does_not_know_are_put_aside(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic("first")
    shutil.copy(tmp_path / "registry.db", tmp_path / "copy")
    topic_id = await filled(tmp_path)
    shutil.copy(tmp_path / "copy", tmp_path / "registry.db")
    for _ in range(2):
        async with running(tmp_path, **QUICK) as node:
            assert list(node.broker.image.topics) == ["first"]
    assert folders(tmp_path) == [f"t-0.{topic_id}-stray"], "t-1 was empty"
    assert (tmp_path / f"t-0.{topic_id}-stray" / f"{0:020d}.log").stat().st_size > 0
    async with running(tmp_path, **QUICK) as node:
        await node.topic()
        assert (await node.client.produce({T0: batch(b"new")}))[T0].base_offset == 0
    assert f"t-0.{topic_id}-stray" in folders(tmp_path)


async def test_what_is_not_ours_is_left_alone(tmp_path):
    tmp_path.joinpath("notes-2026").write_text("of a person")
    tmp_path.joinpath("backup-1").mkdir()
    tmp_path.joinpath("backup-1", "letter").write_text("of a person")
    async with running(tmp_path, **QUICK) as node:
        await node.topic()
    assert (tmp_path / "notes-2026").exists()
    assert (tmp_path / "backup-1" / "letter").exists()


async def test_the_folder_of_a_topic_that_was_never_finished_goes(tmp_path):
    async with running(tmp_path, **QUICK):
        pass
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-1").mkdir()
    (tmp_path / "t-1" / f"{0:020d}.log").touch()
    async with running(tmp_path, **QUICK):
        assert folders(tmp_path) == []


@pytest.mark.parametrize("damage", [b"", b"version: 9\n", b"topic_id: ?", b"\xff\xfe"])
async def test_messages_whose_topic_id_cannot_be_read_are_put_aside(tmp_path, damage):
    """A damaged small file is no reason to throw away messages."""
    for _ in range(2):  # the second time under another name than the first
        async with running(tmp_path, **QUICK):
            pass
        registry = {one.name: one.read_bytes() for one in tmp_path.iterdir() if one.is_file()}
        await filled(tmp_path)
        (tmp_path / "t-0" / "partition.metadata").write_bytes(damage)
        for one in list(tmp_path.iterdir()):
            if one.is_file() and one.name not in registry:
                one.unlink()
        for name, content in registry.items():
            (tmp_path / name).write_bytes(content)
        async with running(tmp_path, **QUICK) as node:
            assert node.broker.image.topic("t") is None
    strays = [name for name in folders(tmp_path) if name.endswith("-stray")]
    assert len(strays) == 2
    assert all((tmp_path / name / f"{0:020d}.log").stat().st_size > 0 for name in strays)


async def test_a_new_topic_puts_messages_aside_that_stand_in_its_way(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        (tmp_path / "t-0").mkdir()
        (tmp_path / "t-0" / f"{7:020d}.log").write_bytes(batch(b"of whom?"))
        await node.topic()
        assert (await node.client.produce({T0: batch(b"new")}))[T0].base_offset == 0
    assert len([name for name in folders(tmp_path) if name.endswith("-stray")]) == 1
