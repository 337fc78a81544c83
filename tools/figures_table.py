"""Prints the tables of docs/benchmarks.md from results of `make bench`: `python -m tools.figures_table FILE…`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.experiment import METRICS
from bench.figures import ratio
from bench.report import figure_text, ratio_text

HEAD = "| row | figure | Clarion | {peers} | Clarion ÷ {first} | goal |\n|---|---|---:|{lines}---:|---|"
RIVAL = "rival"  # a column of whoever the row names
NAMES = {"nats": "NATS", "rabbitmq": "RabbitMQ"}


def figures_table(rows: list[dict[str, Any]], goals: dict[tuple[str, str], str], peers: dict[str, str]) -> str:
    """`peers`: whose columns stand beside Clarion's, and under which names; the first is the one compared with."""
    lines = "---:|" * len(peers)
    head = HEAD.format(peers=" | ".join(peers.values()), first=next(iter(peers.values())), lines=lines)
    return "\n".join([head, *(line for row in rows for line in _lines(row, goals, list(peers)))])


def _lines(row: dict[str, Any], goals: dict[tuple[str, str], str], peers: list[str]) -> Iterator[str]:
    for metric in row["metrics"]:
        ours, *theirs = [_figure(row, row["rival"] if peer == RIVAL else peer, metric) for peer in ("clarion", *peers)]
        if ours is None:
            continue
        texts = [figure_text(metric, value) for value in (ours, *theirs)]
        texts.append(ratio_text(ratio(ours, theirs[0])) if theirs[0] else "")
        goal = goals.get((row["id"], metric), "")
        beside = f" beside {NAMES[row['rival']]}" if RIVAL in peers else ""
        yield f"| `{row['id']}`{beside} | {METRICS[metric].label} | {' | '.join(texts)} | {goal} |"


def _figure(row: dict[str, Any], peer: str, metric: str) -> float | None:
    return row["peers"].get(peer, {}).get("figures", {}).get(metric)


def main(paths: list[str]) -> None:
    """Of a row that is in several files, the last one counts."""
    rows: dict[str, dict[str, Any]] = {}
    goals: dict[tuple[str, str], str] = {}
    for result in (json.loads(Path(path).read_text()) for path in paths):
        rows |= {row["id"]: row for row in result["rows"] if "clarion" in row["peers"]}
        goals |= _goals(result["goals"])
    of_spark = [row for name, row in rows.items() if name.startswith("spark")]
    of_queues = [row for row in rows.values() if row["rival"] in NAMES]
    of_brokers = [row for row in rows.values() if row not in of_spark and row not in of_queues]
    print(figures_table(of_brokers, goals, {"kafka": "Kafka", "nats": "NATS"}), end="\n\n")
    print(figures_table(of_queues, goals, {RIVAL: "rival"}), end="\n\n")
    print(figures_table(of_spark, goals, {"kafka": "Spark's connector"}))


def _goals(goals: list[dict[str, Any]]) -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], str] = {}
    for goal in goals:
        key = goal["row"], goal["metric"]
        found[key] = f"{found[key]}, {goal['goal']}" if key in found else goal["goal"]
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
