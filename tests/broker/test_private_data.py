"""Messages are their owner's alone: nobody else on the machine may read the data directory, or anything in it."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.harness import running
from tests.broker.talk import batch


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    """As most systems have it, whatever it is here."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def fill(data: Path) -> None:
    """Everything that a broker makes: segments that are rolled, snapshots, checkpoints, groups."""
    async with running(data, offsets_partitions=1) as node:
        await node.topic("t", 2, segment_bytes="1024")
        for number in range(20):
            await node.client.produce({("t", 0): batch(b"x" * 200 + b"%d" % number)})
        await node.server.groups.runtime.ensure_topic()
        await node.server.housekeeping.save_checkpoints()
        check(data)
    check(data)


def check(data: Path) -> None:
    found = [data, *data.rglob("*")]
    assert len(found) > 15
    for path in found:
        wanted = 0o700 if path.is_dir() else 0o600
        assert mode(path) == wanted, f"{path} has mode {mode(path):o}"


async def test_what_a_broker_makes_nobody_else_can_read(tmp_path):
    await fill(tmp_path / "new" / "data")


async def test_a_data_directory_that_was_open_to_all_is_closed_at_the_next_start(tmp_path):
    data = tmp_path / "data"
    await fill(data)
    data.chmod(0o755)
    async with running(data):
        assert mode(data) == 0o700


@pytest.mark.parametrize("how", ["somebody else's files in it", "shared on purpose"])
async def test_a_folder_that_is_not_ours_alone_is_left_as_it_is_with_a_warning(tmp_path, caplog, how):
    data = tmp_path / "data"
    data.mkdir()
    if how == "shared on purpose":
        data.chmod(0o1777)
    else:
        (data / "letter").write_text("of a person")
    before = mode(data)
    async with running(data):
        assert mode(data) == before
    assert "data_readable_by_others" in [one.getMessage() for one in caplog.records]


async def test_no_warning_where_a_folder_with_other_files_is_closed_already(tmp_path, caplog):
    data = tmp_path / "data"
    data.mkdir(0o700)
    (data / "letter").write_text("of a person")
    async with running(data):
        assert mode(data) == 0o700
    assert "data_readable_by_others" not in [one.getMessage() for one in caplog.records]
