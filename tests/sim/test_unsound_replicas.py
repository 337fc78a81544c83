"""Replicas that nobody should rely on: damaged, short, put back from an older copy, or on a disk that fails.

The others have everything, so that nothing is lost, and in the end all have the same again, byte for byte.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from clarion.model.errors import ErrorCode
from clarion.wire.batch import read_header
from tests.sim.cluster import LEASE_SECONDS
from tests.sim.machine import Drive
from tests.sim.stories import StoryLife, tell

# What a dead process was doing is collected after its life, and may complain about it.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited"),
]

LOG = "/data/t-0/00000000000000000000.log"
CHECKPOINT_SECONDS = 2.0  # after which it is written down that all is flushed
SECOND = 1  # batch


async def fill(life: StoryLife, count: int = 5) -> None:
    for number in range(count):
        await life.send_until_acked(f"message {number}", 1)
    await asyncio.sleep(CHECKPOINT_SECONDS)


def batch_at(drive: Drive, number: int) -> tuple[int, int]:
    """Where a batch begins, and its size."""
    data, at = drive.content(LOG), 0
    for _ in range(number):
        at += read_header(data, at).size_bytes
    return at, read_header(data, at).size_bytes


def flip(life: StoryLife, number: int, byte: Callable[[int], int]) -> None:
    """Of the second batch of this broker's log, one bit of the byte that its size leads to."""
    drive = life.host(number).machine.drive
    at, size = batch_at(drive, SECOND)
    drive.flip_bit(LOG, 8 * (at + byte(size)) + 3)


@pytest.mark.parametrize(
    "byte",
    [lambda size: size - 3, lambda _: 10, lambda _: 16],
    ids=["in a message", "in a batch's length", "in what says that it is a batch"],
)
def test_a_flushed_log_that_was_damaged_is_filled_anew(byte: Callable[[int], int]) -> None:
    async def story(life: StoryLife) -> None:
        await fill(life)
        life.kill(2)
        flip(life, 2, byte)
        await life.start(2)
        await life.until(lambda: 2 in life.state.in_sync)

    report = tell(story, keep_lines=True)
    assert report.is_clean, report
    assert any("replica_filled_anew partition=t-0" in line for line in report.lines or ())


def test_a_leader_that_comes_back_damaged_leads_again_when_it_has_been_filled_anew() -> None:
    async def story(life: StoryLife) -> None:
        await fill(life)
        life.kill(1)
        flip(life, 1, lambda size: size - 3)
        await life.start(1)
        await life.until_led_by(1)

    report = tell(story)
    assert report.is_clean, report


def test_a_clean_stop_does_not_make_damage_good() -> None:
    """The start after it looks at nothing. And where nobody leads it cannot be filled before that."""

    async def story(life: StoryLife) -> None:
        await fill(life)
        life.kill(1, 2, 3)
        flip(life, 2, lambda size: size - 3)
        await life.start(2)
        await life.stop(2)
        await life.start(2)
        await asyncio.sleep(2 * LEASE_SECONDS)
        await life.start(1, 3)
        await life.until_in_sync(1, 2, 3)

    report = tell(story)
    assert report.is_clean, report


def test_damage_under_a_running_leader_is_noticed_when_a_follower_cannot_use_what_it_is_sent() -> None:
    async def story(life: StoryLife) -> None:
        await fill(life)
        life.kill(3)
        life.host(3).machine.drive = Drive(life.loop)  # its disk was replaced: it needs everything
        flip(life, 1, lambda size: size - 3)
        await life.start(3)
        await life.until(lambda: life.state.leader != 1)
        await life.until_in_sync(1, 2, 3)

    report = tell(story, keep_lines=True)
    assert report.is_clean, report
    assert any("log_damaged" in line for line in report.lines or ())


def test_a_log_that_lost_flushed_messages_fetches_them_and_leaves_no_hole() -> None:
    """As one does that was cut, when the crash comes before that is written down."""

    async def story(life: StoryLife) -> None:
        await fill(life)
        life.kill(2)
        drive = life.host(2).machine.drive
        drive.lose_tail(LOG, batch_at(drive, 2)[0])
        await life.start(2)
        await life.until(lambda: 2 in life.state.in_sync)

    report = tell(story)
    assert report.is_clean, report


def test_all_are_killed_and_the_first_that_is_back_lost_flushed_messages() -> None:
    async def story(life: StoryLife) -> None:
        await fill(life)
        life.kill(1, 2, 3)
        drive = life.host(2).machine.drive
        drive.lose_tail(LOG, batch_at(drive, 2)[0])
        await life.start(2)
        await asyncio.sleep(3 * LEASE_SECONDS)
        assert life.state.leader != 2
        await life.start(1, 3)

    report = tell(story)
    assert report.is_clean, report


def test_an_older_copy_of_a_data_directory_is_not_elected() -> None:
    async def story(life: StoryLife) -> None:
        await fill(life, 2)
        await life.stop(3)
        machine = life.host(3).machine
        copy = machine.drive.power_loss()
        await life.start(3)
        await life.until_in_sync(1, 2, 3)
        await life.send_until_acked("the copy has it not", 1)
        life.kill(1, 2, 3)
        machine.drive.root = copy.root
        await life.start(3)
        await asyncio.sleep(3 * LEASE_SECONDS)
        assert life.state.leader != 3
        await life.start(1, 2)

    report = tell(story)
    assert report.is_clean, report


def test_a_disk_that_cannot_make_a_folder_keeps_no_partition_from_being_led() -> None:
    def break_disk(life: StoryLife) -> None:
        life.host(1).machine.drive.refuses = lambda what: what.kind == "mkdir" and what.path.endswith("t-0")

    async def story(life: StoryLife) -> None:
        await life.until(lambda: life.state.leader in (2, 3))
        await life.send_until_acked("taken", life.state.leader)
        assert 1 not in life.state.in_sync
        life.host(1).machine.drive.heal()
        await life.until_in_sync(1, 2, 3)

    report = tell(story, before=break_disk)
    assert report.is_clean, report


def test_a_leader_whose_disk_fails_gives_up_its_leadership() -> None:
    async def story(life: StoryLife) -> None:
        await fill(life, 1)
        life.host(1).machine.drive.refuses = lambda what: what.kind == "sync" and what.path == LOG
        assert await life.send("refused", 1) == ErrorCode.KAFKA_STORAGE_ERROR
        await life.until_led_by(2)
        await life.send_until_acked("taken", 2)
        assert 1 not in life.state.in_sync

    report = tell(story)
    assert report.is_clean, report
