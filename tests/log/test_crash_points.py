"""Power may fail before any operation, and take any part of what was not synced. What was flushed is there afterwards;
what is there is a beginning of what was appended."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from clarion.log.log import Log
from tests.log.batches import append, batch, content, open_log
from tests.sim.disk import PowerLoss, SimDisk

SEEDS = 8


class History:
    """What a scenario did: every state the log was ever in, and how much of it was promised."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.promised = 0
        self.alternatives: list[list[bytes]] = []  # longer logs that a truncation ended

    def append(self, log: Log, **more) -> None:
        data = batch(log.next_offset, **more)  # before the attempt: a crash inside may leave it behind
        self.batches.append(data)
        append(log, **more)

    def flush(self, log: Log) -> None:
        count = len(self.batches)
        log.flush()
        self.promised = count

    def truncate(self, log: Log, keep: int) -> None:
        self.alternatives.append(list(self.batches))
        self.promised = min(self.promised, keep)
        offset = sum(_count(one) for one in self.batches[:keep])
        log.truncate_to(offset)
        del self.batches[keep:]

    def allows(self, found: bytes) -> bool:
        for states in (self.batches, *self.alternatives):
            prefix = b""
            for number, one in enumerate([*states, b""]):
                if prefix == found and number >= self.promised:
                    return True
                prefix += one
        return False


def _count(data: bytes) -> int:
    return int.from_bytes(data[57:61], "big")


def appends_and_rolls(disk: SimDisk, history: History) -> None:
    log = open_log(disk)
    for number in range(14):
        history.append(log, count=1 + number % 3, size=30 * (number % 4))
        if number % 4 == 3:
            history.flush(log)
    log.close()
    history.promised = len(history.batches)


def rolls_without_flush(disk: SimDisk, history: History) -> None:
    log = open_log(disk)
    history.append(log)
    history.flush(log)
    for number in range(24):
        history.append(log, size=100)
        if number == 17:
            history.flush(log)


def truncates_and_goes_on(disk: SimDisk, history: History) -> None:
    log = open_log(disk)
    for _ in range(12):
        history.append(log, size=80)
    history.flush(log)
    for _ in range(3):
        history.append(log, size=80)
    history.truncate(log, keep=9)
    history.append(log, size=80, epoch=1)
    history.flush(log)
    history.truncate(log, keep=2)
    for _ in range(6):
        history.append(log, size=60, epoch=2)
    history.flush(log)


def closes_and_opens(disk: SimDisk, history: History) -> None:
    for epoch in range(4):
        log = open_log(disk)
        for _ in range(4):
            history.append(log, size=90, epoch=epoch)
        log.close()
        history.promised = len(history.batches)


def rolls_after_a_restart(disk: SimDisk, history: History) -> None:
    """The index of a closed segment names its last batch of then, which must not pass for its last batch of now."""
    log = open_log(disk)
    for _ in range(3):
        history.append(log, size=90)
    log.close()
    history.promised = len(history.batches)
    log = open_log(disk)
    for _ in range(9):
        history.append(log, size=90)


def survives_a_kill(disk: SimDisk, history: History) -> None:
    """A kill leaves the page cache alone. What recovery finds in it counts as flushed, so it must be synced."""
    log = open_log(disk)
    for _ in range(8):
        history.append(log, size=120)
    log = open_log(disk, clean=False)
    assert log.flushed == log.end
    history.promised = len(history.batches)
    history.append(log)


SCENARIOS = [
    appends_and_rolls,
    rolls_without_flush,
    truncates_and_goes_on,
    closes_and_opens,
    rolls_after_a_restart,
    survives_a_kill,
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_after_a_crash_at_any_point_what_was_flushed_is_there(scenario: Callable[[SimDisk, History], None]) -> None:
    assert violations(scenario, SEEDS) == []


MUTANTS: dict[str, tuple[str, Callable[[SimDisk, History], None]]] = {
    "no sync of files": ("sync", appends_and_rolls),
    "no sync of folders": ("sync_folder", appends_and_rolls),
    "no sync after recovery": ("sync", survives_a_kill),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_disk_that_does_not_sync_is_found_out(mutant: str) -> None:
    kind, scenario = MUTANTS[mutant]
    assert violations(scenario, SEEDS, ignored=kind)


def violations(scenario: Callable[[SimDisk, History], None], seeds: int, ignored: str = "") -> list[str]:
    complete = _Forgetful(ignored)
    scenario(complete, History())
    found = []
    for crash_at in range(len(complete.operations) + 1):
        disk, history = _Forgetful(ignored), History()
        disk.crash_at = crash_at
        try:
            scenario(disk, history)
        except PowerLoss:
            pass
        for seed in range(seeds):
            after = disk.power_loss(random.Random(f"{crash_at}/{seed}") if seed else None)
            log = open_log(after, clean=False)
            if not history.allows(content(log)):
                found.append(f"crash at {crash_at}, seed {seed}: {log.recovery}, promised {history.promised}")
            append(log, epoch=9)  # it goes on
            log.close()
            assert open_log(after).next_offset == log.next_offset
    return found


class _Forgetful(SimDisk):
    """Leaves out what the mutant leaves out."""

    def __init__(self, ignored: str) -> None:
        super().__init__()
        self.make_folder("/data")
        self.root.sync()
        self.operations.clear()
        self._ignored = ignored

    def sync_folder(self, path: str) -> None:
        if self._ignored == "sync_folder":
            self.happen("sync_folder", path)
        else:
            super().sync_folder(path)

    def open(self, path: str, *, create: bool = False):
        file = super().open(path, create=create)
        if self._ignored == "sync":
            file.sync = lambda: self.happen("sync", path)  # type: ignore[method-assign]
        return file
