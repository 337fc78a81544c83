"""A little room that is kept for those who make more of it."""

from __future__ import annotations

import errno

import pytest

from clarion.log.ballast import BYTES, Ballast
from tests.sim.disk import SimDisk

RESERVE = 100 << 20
PLENTY = RESERVE + 2 * BYTES


@pytest.fixture
def disk() -> SimDisk:
    one = SimDisk()
    one.make_folder("/data")
    return one


def test_it_takes_room_while_there_is_plenty_and_gives_it_back_once(disk: SimDisk) -> None:
    ballast = Ballast(disk, "/data")
    ballast.make(PLENTY, RESERVE)
    assert disk.size("/data/ballast") == BYTES
    assert ballast.give_up()
    assert not disk.exists("/data/ballast")
    assert not ballast.give_up()
    ballast.make(PLENTY, RESERVE)
    assert disk.exists("/data/ballast")


def test_it_takes_nothing_from_the_reserve(disk: SimDisk) -> None:
    Ballast(disk, "/data").make(RESERVE + BYTES - 1, RESERVE)
    assert not disk.exists("/data/ballast")


def test_a_small_disk_has_a_small_one_and_without_a_reserve_there_is_none(disk: SimDisk) -> None:
    Ballast(disk, "/data").make(1 << 40, 0)
    assert not disk.exists("/data/ballast")
    Ballast(disk, "/data").make(1 << 40, 4000)
    assert disk.size("/data/ballast") == 2000


def test_one_that_an_earlier_life_made_can_be_given_up(disk: SimDisk) -> None:
    Ballast(disk, "/data").make(PLENTY, RESERVE)
    assert Ballast(disk, "/data").give_up()


def test_a_disk_that_fills_while_it_is_made_keeps_no_part_of_it(disk: SimDisk) -> None:
    """Nobody would give that part up, and who sees the file would count on the whole."""
    disk.fail_when(lambda operation: operation.kind == "write", errno.ENOSPC)
    ballast = Ballast(disk, "/data")
    with pytest.raises(OSError, match="No space left"):
        ballast.make(PLENTY, RESERVE)
    assert disk.names("/data") == []
    ballast.make(PLENTY, RESERVE)
    assert ballast.give_up()
