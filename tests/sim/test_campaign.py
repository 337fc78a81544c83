"""A campaign of lives can be stopped at any time, goes on where it was, and writes down what was broken."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.sim.campaign import CHUNK, Campaign, Tally
from tests.sim.scenario import Report, Swarm


def life(seed: int, *, keep_lines: bool = False) -> Report:
    """One that breaks a promise where the seed ends with 7."""
    report = Report(seed, Swarm.draw(random.Random(seed)), faults=2, boots=1, acked=10, virtual_seconds=80.0)
    if seed % 10 == 7:
        report.violations.append("a message is missing")
    if keep_lines:
        report.lines = [f"0.1 boot 1 of {seed}"]
    return report


def test_it_goes_on_where_it_was_stopped(tmp_path: Path):
    whole = Campaign(tmp_path / "whole", "v1", first=100, live=life)
    list(whole.run(35))
    stopped = Campaign(tmp_path / "stopped", "v1", first=100, live=life)
    next(iter(stopped.run(35)))
    again = Campaign(tmp_path / "stopped", "v1", first=999, live=life)
    assert again.progress.tally.seeds == CHUNK
    list(again.run(35))
    assert again.progress == whole.progress
    assert again.progress.tally == Tally(35, 70, 35, 350, 35 * 80.0, [107, 117, 127])
    assert list(again.run(35)) == []
    list(again.run(40))
    assert again.progress.tally.seeds == 40


def test_broken_seeds_are_written_down_with_what_happened(tmp_path: Path):
    list(Campaign(tmp_path, "v1", first=0, live=life).run(8))
    assert [one.name for one in tmp_path.glob("seed-*")] == ["seed-7.txt"]
    text = (tmp_path / "seed-7.txt").read_text()
    assert text.startswith("seed 7, ")
    assert "a message is missing" in text
    assert "0.1 boot 1 of 7" in text


def test_a_seed_that_ends_by_a_mistake_of_ours_ends_no_campaign(tmp_path: Path):
    def mistaken(seed: int, **_: bool) -> Report:
        if seed == 3:
            raise KeyError("nobody has thought of this")
        return life(seed)

    campaign = Campaign(tmp_path, "v1", first=0, live=mistaken)
    list(campaign.run(6))
    assert (campaign.progress.tally.seeds, campaign.progress.tally.broken) == (6, [3])
    assert "nobody has thought of this" in (tmp_path / "seed-3.txt").read_text()


def test_other_code_begins_anew(tmp_path: Path):
    list(Campaign(tmp_path, "v1", first=0, live=life).run(10))
    changed = Campaign(tmp_path, "v2", first=50, live=life)
    assert (changed.progress.first, changed.progress.tally) == (50, Tally())


@pytest.mark.parametrize("jobs", [1, 2])
def test_several_processes_live_the_same_seeds(tmp_path: Path, jobs: int):
    campaign = Campaign(tmp_path, "v1", first=0, live=life)
    seen = [progress.tally.seeds for progress in campaign.run(45, jobs)]
    assert seen == [10, 20, 30, 40, 45]
    assert campaign.progress.tally.broken == [7, 17, 27, 37]
