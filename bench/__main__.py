"""`python -m bench`: runs the rows, prints the tables, and writes JSON and a picture.

--rows PATTERN (repeatable, shell pattern), --rounds N, --quick (a few minutes), --full (five rounds and 5 GB of
recovery), --peers a,b, --out DIR, --name NAME, --list.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from rich.console import Console

from bench import plot, report
from bench.arena import Arena
from bench.experiment import ALL, METRICS, Experiment, Outcome, run
from bench.machine import BUSY_SHARE_MAX, busy_share
from bench.peers.process import ROOT
from bench.rows import experiments
from bench.sizes import DEFAULT, FULL, QUICK, Sizes
from clarion.cli.doctor import is_slow_build


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    sizes = _sizes(options)
    wanted = _wanted(experiments(sizes), options.rows)
    console = Console(width=None if sys.stdout.isatty() else 160)
    if options.list:
        for experiment in wanted:
            console.print(f"{experiment.id:28} {experiment.title}", highlight=False)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers and folders go when we are told to
    began = time.perf_counter()
    busy = busy_share()
    if busy > BUSY_SHARE_MAX:
        console.print(
            f"[bold yellow]others use {busy:.0%} of this machine: do not quote these figures[/]", highlight=False
        )
    if is_slow_build():
        console.print("this Python is not an optimised build: Clarion is up to half as fast again with one")
    outcomes = _run(console, sizes, wanted, options.peers.split(","))
    report.show(console, outcomes)
    results = report.as_json(outcomes, _options(options, sizes, time.perf_counter() - began, busy))
    report.save(options.out / f"{options.name}.json", results)
    plot.draw(options.out / f"{options.name}.png", results)
    console.print(f"{time.perf_counter() - began:.0f} s; {options.out / options.name}.json and .png", highlight=False)
    return 0


def _run(console: Console, sizes: Sizes, wanted: list[Experiment], peers: list[str]) -> list[Outcome]:
    outcomes = []
    with Arena(sizes) as arena, console.status("touching memory", refresh_per_second=1) as status:
        console.print(f"fresh memory is touched at {arena.pretouch():.2f} GB/s", highlight=False)

        def tell(line: str) -> None:
            status.update(line)

        for experiment in wanted:
            outcome = run(experiment, arena, peers, tell)
            outcomes.append(outcome)
            console.print(_headline(outcome), highlight=False)
    return outcomes


def _headline(outcome: Outcome) -> str:
    """One line per finished row, so that a run that is watched says something."""
    metric = outcome.experiment.metrics[0]
    cells = [
        f"{peer} {report.figure_text(metric, outcome.figure(peer, metric)) or 'n/a'}"
        for peer in outcome.experiment.peers
    ]
    label = METRICS[metric].label
    durability = outcome.experiment.durability
    return f"{outcome.experiment.title} ({durability}), {label}: {', '.join(cells)}"


def _wanted(every: list[Experiment], patterns: list[str]) -> list[Experiment]:
    if not patterns:
        return every
    for pattern in patterns:
        if not any(fnmatchcase(one.id, pattern) for one in every):
            sys.exit(f"python -m bench: no row is called {pattern}; --list names them")
    return [one for one in every if any(fnmatchcase(one.id, pattern) for pattern in patterns)]


def _sizes(options: argparse.Namespace) -> Sizes:
    sizes = QUICK if options.quick else FULL if options.full else DEFAULT
    return replace(sizes, rounds=options.rounds) if options.rounds else sizes


def _options(options: argparse.Namespace, sizes: Sizes, seconds: float, busy: float) -> dict[str, object]:
    kind = "quick" if options.quick else "full" if options.full else "default"
    facts = {"run_seconds": round(seconds), "busy_share_before": round(busy, 3)}
    return {"kind": kind, "rounds": sizes.rounds, "rows": options.rows} | facts


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", action="append", default=[], metavar="PATTERN", help="only rows whose id matches")
    parser.add_argument("--rounds", type=int, default=0, metavar="N")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--peers", default=",".join(ALL), metavar="NAMES")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results", metavar="DIR")
    parser.add_argument("--name", default="local", metavar="NAME")
    parser.add_argument("--list", action="store_true", help="name the rows and end")
    return parser


if __name__ == "__main__":
    sys.exit(main())
