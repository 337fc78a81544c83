"""Thousands of lives: `make sim SEEDS=3000`, and of clusters with `ARGS=--cluster`.

What was lived is kept, so that it can be stopped and goes on later.

The folder holds `progress.json` and, of every seed that broke a promise, `seed-N.txt` with all that happened in it.
Progress belongs to the code that made it: after a change of the broker or of the simulation the count begins anew.
No rule is switched off here, so that the hot path may be compiled: a seed's life is the same, and shorter to wait for.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from clarion import compiled
from tests.sim.cluster import run_cluster
from tests.sim.scenario import Report, run

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "sim"
CHUNK = 10  # seeds between two notes of the progress: some seconds of work, which a stop may cost
CHUNKS_PER_PROCESS = 20  # dead brokers are kept until their process ends

Live = Callable[..., Report]


@dataclass
class Tally:
    seeds: int = 0
    faults: int = 0
    boots: int = 0
    acked: int = 0
    virtual_seconds: float = 0.0
    broken: list[int] = field(default_factory=list)

    def add(self, report: Report) -> None:
        self.seeds += 1
        self.faults += report.faults
        self.boots += report.boots
        self.acked += report.acked
        self.virtual_seconds += report.virtual_seconds
        if not report.is_clean:
            self.broken.append(report.seed)

    def __iadd__(self, other: Tally) -> Tally:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)
        return self

    def __str__(self) -> str:
        return (
            f"{self.seeds} seeds, {self.virtual_seconds / 3600:.1f} virtual hours, {self.faults} faults, "
            f"{self.boots} boots, {self.acked} messages acknowledged, {len(self.broken)} violations"
        )


@dataclass
class Progress:
    code: str
    first: int
    tally: Tally = field(default_factory=Tally)

    @property
    def next_seed(self) -> int:
        return self.first + self.tally.seeds


class Campaign:
    def __init__(self, folder: Path, code: str, first: int | None = None, live: Live = run) -> None:
        """`first`: the seed to begin with, unless there is something to go on with; drawn by default."""
        self.folder = folder
        self._live = live
        self._note = folder / "progress.json"
        self.progress = self._found(code) or Progress(code, _drawn() if first is None else first)
        folder.mkdir(parents=True, exist_ok=True)

    def run(self, seeds: int, jobs: int = 1) -> Iterator[Progress]:
        """Up to so many in all. Tells where it is whenever that is kept."""
        chunks = self._chunks(seeds)
        if jobs == 1:
            yield from self._keep(map(self._live_all, chunks))
            return
        with get_context("spawn").Pool(jobs, _let_the_dead_complain, maxtasksperchild=CHUNKS_PER_PROCESS) as pool:
            yield from self._keep(pool.imap(partial(_live_all, self.folder, self._live), chunks))

    def _chunks(self, seeds: int) -> list[range]:
        begin, end = self.progress.next_seed, self.progress.first + seeds
        return [range(at, min(at + CHUNK, end)) for at in range(begin, end, CHUNK)]

    def _live_all(self, seeds: range) -> Tally:
        return _live_all(self.folder, self._live, seeds)

    def _keep(self, tallies: Iterator[Tally]) -> Iterator[Progress]:
        for tally in tallies:
            self.progress.tally += tally
            fresh = self._note.with_suffix(".tmp")
            fresh.write_text(json.dumps(asdict(self.progress), indent=2))
            fresh.replace(self._note)
            yield self.progress

    def _found(self, code: str) -> Progress | None:
        if not self._note.exists():
            return None
        found = json.loads(self._note.read_text())
        return Progress(code, found["first"], Tally(**found["tally"])) if found["code"] == code else None


def _live_all(folder: Path, live: Live, seeds: range) -> Tally:
    tally = Tally()
    for seed in seeds:
        try:
            report = live(seed)
        except Exception:  # nobody expected it, perhaps in the simulation itself: the other seeds go on
            tally.seeds += 1
            tally.broken.append(seed)
            (folder / f"seed-{seed}.txt").write_text(traceback.format_exc())
            continue
        tally.add(report)
        if not report.is_clean:
            again = live(seed, keep_lines=True)  # a seed's life is always the same: now with all its lines
            (folder / f"seed-{seed}.txt").write_text("\n".join([str(again), "", *(again.lines or [])]) + "\n")
    return tally


def _let_the_dead_complain() -> None:
    """What a dead process was doing is collected after its life, and says so."""
    sys.unraisablehook = lambda _: None


def code_digest() -> str:
    """Of everything a life depends on."""
    digest = hashlib.sha256()
    for path in sorted([*ROOT.glob("src/clarion/**/*.py"), *ROOT.glob("tests/sim/*.py"), ROOT / "tests/history.py"]):
        digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _drawn() -> int:
    return random.SystemRandom().randrange(1 << 30)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make sim", description=__doc__)
    parser.add_argument("seeds", type=int, help="how many in all, with those that were lived before it was stopped")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--first", type=int, help="the seed to begin with (drawn by default)")
    parser.add_argument("--cluster", action="store_true", help="lives of whole clusters instead of single brokers")
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    _let_the_dead_complain()
    folder = args.folder or FOLDER.with_name("sim-cluster" if args.cluster else "sim")
    campaign = Campaign(folder, code_digest(), args.first, run_cluster if args.cluster else run)
    before, began = campaign.progress.tally.seeds, time.monotonic()
    from_here = f"{before} of {args.seeds} seeds from {campaign.progress.first} were lived before"
    print(f"{from_here}; the hot path is {compiled.in_words()}", flush=True)
    try:
        for progress in campaign.run(args.seeds, args.jobs):
            _show(progress, args.seeds, (progress.tally.seeds - before) / (time.monotonic() - began))
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on")
        return 130
    print(f"\nfrom {campaign.progress.first}: {campaign.progress.tally}")
    for seed in campaign.progress.tally.broken:
        print(f"broken: {folder / f'seed-{seed}.txt'}")
    return 1 if campaign.progress.tally.broken else 0


def _show(progress: Progress, seeds: int, per_second: float) -> None:
    tally = progress.tally
    left = (seeds - tally.seeds) / per_second / 60
    line = f"{tally.seeds} of {seeds} seeds, {per_second:.1f}/s, {len(tally.broken)} broken, {left:.0f} min left"
    print(f"\r{line:<78}" if sys.stdout.isatty() else line, end="" if sys.stdout.isatty() else "\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
