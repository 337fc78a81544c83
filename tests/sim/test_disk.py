"""The simulated disk behaves like the real one until the power fails; then it loses what nobody synced."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from clarion.world import Disk, RealDisk, read_file, replace_file
from tests.sim.disk import PowerLoss, SimDisk


@pytest.fixture(params=["real", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, str]:
    if request.param == "real":
        return RealDisk(), str(tmp_path)
    disk = SimDisk()
    disk.make_folder("/d")
    return disk, "/d"


def test_what_is_written_is_read(place: tuple[Disk, str]) -> None:
    disk, folder = place
    file = disk.open(f"{folder}/a", create=True)
    file.write([b"one", b"two"], 0)
    file.write([b"!"], 8)
    assert file.read(100, 0) == b"onetwo\0\0!"
    buffer = bytearray(4)
    assert file.read_into(memoryview(buffer), 2) == 4
    assert buffer == b"etwo"
    file.truncate(4)
    assert (file.size(), disk.size(f"{folder}/a")) == (4, 4)
    file.sync()
    file.close()
    assert read_file(disk, f"{folder}/a") == b"onet"


def test_names_come_and_go(place: tuple[Disk, str]) -> None:
    disk, folder = place
    disk.make_folder(f"{folder}/x/y")
    replace_file(disk, f"{folder}/x/b", b"1")
    replace_file(disk, f"{folder}/x/a", b"2")
    assert disk.names(f"{folder}/x") == ["a", "b", "y"]
    disk.rename(f"{folder}/x/a", f"{folder}/x/b")
    assert read_file(disk, f"{folder}/x/b") == b"2"
    disk.remove(f"{folder}/x/b")
    assert not disk.exists(f"{folder}/x/b")
    disk.remove_folder(f"{folder}/x")
    assert disk.names(folder) == []
    assert disk.free_bytes(folder) > 0


def test_what_is_missing_is_said_to_be_missing(place: tuple[Disk, str]) -> None:
    disk, folder = place
    for attempt in (
        lambda: disk.open(f"{folder}/a"),
        lambda: disk.names(f"{folder}/a"),
        lambda: disk.size(f"{folder}/a"),
        lambda: disk.remove(f"{folder}/a"),
        lambda: disk.rename(f"{folder}/a", f"{folder}/b"),
    ):
        with pytest.raises(FileNotFoundError):
            attempt()


def test_a_file_that_was_removed_can_still_be_read_by_who_holds_it(place: tuple[Disk, str]) -> None:
    disk, folder = place
    replace_file(disk, f"{folder}/a", b"old")
    file = disk.open(f"{folder}/a")
    disk.remove(f"{folder}/a")
    replace_file(disk, f"{folder}/a", b"new")
    assert file.read(10, 0) == b"old"


@pytest.fixture
def disk() -> SimDisk:
    one = SimDisk()
    one.make_folder("/d")
    one.sync_folder("/")
    return one


def test_power_loss_keeps_what_was_synced_and_only_that(disk: SimDisk) -> None:
    replace_file(disk, "/d/a", b"synced")
    disk.open("/d/a").write([b"not"], 0)
    file = disk.open("/d/new", create=True)
    file.sync()  # its content is safe, its name is not
    after = disk.power_loss()
    assert after.names("/d") == ["a"]
    assert read_file(after, "/d/a") == b"synced"


def test_power_loss_may_tear_and_reorder_what_was_not_synced(disk: SimDisk) -> None:
    replace_file(disk, "/d/a", b"")
    file = disk.open("/d/a")
    for number in range(4):
        file.write([bytes([65 + number]) * 700], number * 700)
    found = {read_file(disk.power_loss(random.Random(seed)), "/d/a") for seed in range(50)}
    assert b"" in found
    assert any(len(one) == 2800 for one in found)
    assert any(len(one) % 700 for one in found), "a torn write"
    assert any(b"\0" in one for one in found), "a later write without an earlier one"
    assert read_file(disk.power_loss(random.Random(7)), "/d/a") == read_file(disk.power_loss(random.Random(7)), "/d/a")


def test_a_failed_sync_loses_the_pages_for_good(disk: SimDisk) -> None:
    replace_file(disk, "/d/a", b"")
    file = disk.open("/d/a")
    file.write([b"x"], 0)
    disk.fail(len(disk.operations), errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    file.sync()  # "succeeds"
    assert file.read(1, 0) == b"x"
    assert read_file(disk.power_loss(), "/d/a") == b""


def test_a_full_disk_leaves_half_a_write_behind(disk: SimDisk) -> None:
    replace_file(disk, "/d/a", b"")
    disk.is_full = True
    with pytest.raises(OSError, match="No space"):
        disk.open("/d/a").write([b"abcd"], 0)
    assert read_file(disk, "/d/a") == b"ab"


def test_a_crash_happens_before_its_operation(disk: SimDisk) -> None:
    disk.crash_at = len(disk.operations) + 1
    file = disk.open("/d/a", create=True)
    with pytest.raises(PowerLoss):
        file.write([b"x"], 0)
    assert file.size() == 0
    assert [operation.kind for operation in disk.operations] == ["mkdir", "sync_folder", "create"]
