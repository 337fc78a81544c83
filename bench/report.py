"""The answers: tables for the terminal, JSON for machines, and the list of goals with their verdicts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.experiment import KAFKA_WIRE, METRICS, STREAMS, Outcome
from bench.figures import ratio
from bench.goals import Goal, Verdict, judge
from bench.machine import machine
from bench.rows.raw import MACHINE

_COLOURS = {"PASS": "bold green", "FALL SHORT": "bold red", "no answer": "yellow"}


def show(console: Console, outcomes: Sequence[Outcome]) -> None:
    verdicts = judge({outcome.experiment.id: outcome for outcome in outcomes})
    tables = (
        _raw_table(outcomes),
        _peer_table(outcomes, verdicts),
        _queue_table(outcomes, verdicts),
        _spark_table(outcomes, verdicts),
        _goal_table(outcomes, verdicts),
    )
    for table in tables:
        if table.row_count:
            console.print(table)
    for line in _reasons(outcomes):
        console.print(line, style="yellow", highlight=False)


def as_json(outcomes: Sequence[Outcome], options: dict[str, Any]) -> dict[str, Any]:
    verdicts = judge({outcome.experiment.id: outcome for outcome in outcomes})
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "options": options,
        "rows": [_row_json(outcome) for outcome in outcomes],
        "goals": [_goal_json(verdict) for verdict in verdicts],
    }


def save(path: Path, results: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")


def figure_text(metric: str, value: float | None) -> str:
    return "" if value is None else f"{value:,.{METRICS[metric].digits}f}"


def ratio_text(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} ×"


def _raw_table(outcomes: Sequence[Outcome]) -> Table:
    table = Table(title="Raw limits of this machine, same run", title_justify="left")
    for heading in ("loop", "figure"):
        table.add_column(heading)
    table.add_column("value", justify="right")
    for outcome in outcomes:
        if _table_of(outcome) == "raw":
            for number, metric in enumerate(outcome.experiment.metrics):
                title = outcome.experiment.title if number == 0 else ""
                table.add_row(title, METRICS[metric].label, figure_text(metric, outcome.figure(MACHINE, metric)))
    return table


def _peer_table(outcomes: Sequence[Outcome], verdicts: Sequence[Verdict]) -> Table:
    brokers = [one for one in outcomes if _table_of(one) == "brokers"]
    title = "Clarion beside Apache Kafka and NATS JetStream"
    names = dict(zip(STREAMS, ("Clarion", "Kafka", "NATS"), strict=True))
    return _side_by_side(title, names, "÷ Kafka", brokers, verdicts)


def _queue_table(outcomes: Sequence[Outcome], verdicts: Sequence[Verdict]) -> Table:
    title = "Queues beside NATS JetStream (page-cache) and RabbitMQ's quorum queues (fsync)"
    names = {"clarion": "Clarion", "nats": "NATS", "rabbitmq": "RabbitMQ"}
    return _side_by_side(title, names, "÷ rival", [one for one in outcomes if _table_of(one) == "queue"], verdicts)


def _spark_table(outcomes: Sequence[Outcome], verdicts: Sequence[Verdict]) -> Table:
    title = "Spark on Clarion: its connector beside Spark's own Kafka connector"
    names = dict(zip(KAFKA_WIRE, ("Clarion's", "Spark's"), strict=True))
    spark = [one for one in outcomes if _table_of(one) == "spark"]
    return _side_by_side(title, names, "÷ Spark's", spark, verdicts)


def _table_of(outcome: Outcome) -> str:
    if outcome.experiment.peers == (MACHINE,):
        return "raw"
    family = outcome.experiment.id.partition("-")[0]
    return family if family in ("spark", "queue") else "brokers"


def _side_by_side(
    title: str, names: dict[str, str], ratio_heading: str, outcomes: Sequence[Outcome], verdicts: Sequence[Verdict]
) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("row")
    table.add_column("acks, durability")
    table.add_column("figure")
    for heading in (*names.values(), ratio_heading):
        table.add_column(heading, justify="right")
    table.add_column("goal")
    marks = {(one.goal.row, one.goal.metric): one for one in verdicts if not one.goal.against}
    for outcome in outcomes:
        for number, metric in enumerate(outcome.experiment.metrics):
            mark = marks.get((outcome.experiment.id, metric))
            table.add_row(*_peer_row(outcome, metric, list(names), number == 0, mark))
        table.add_section()
    return table


def _peer_row(
    outcome: Outcome, metric: str, peers: Sequence[str], is_first: bool, verdict: Verdict | None
) -> list[str]:
    experiment = outcome.experiment
    head = [experiment.title, f"{experiment.acks}, {experiment.durability}"] if is_first else ["", ""]
    cells = [_cell(outcome, peer, metric) for peer in peers]
    goal = f"[{_COLOURS[verdict.word]}]{verdict.word}[/] ({verdict.goal.sentence()})" if verdict else ""
    return [*head, METRICS[metric].label, *cells, ratio_text(_ratio_to_rival(outcome, metric)), goal]


def _cell(outcome: Outcome, peer: str, metric: str) -> str:
    if peer not in outcome.experiment.peers:
        return "–"
    if peer in outcome.why_not and peer not in outcome.rounds:
        return "failed" if outcome.why_not[peer].startswith("failed") else "n/a"
    return "saturated" if outcome.is_saturated(peer) else figure_text(metric, outcome.figure(peer, metric))


def _ratio_to_rival(outcome: Outcome, metric: str) -> float | None:
    ours, theirs = outcome.figure("clarion", metric), outcome.figure(outcome.experiment.rival, metric)
    return None if ours is None or theirs is None else ratio(ours, theirs)


def _goal_table(outcomes: Sequence[Outcome], verdicts: Sequence[Verdict]) -> Table:
    titles = {outcome.experiment.id: outcome.experiment for outcome in outcomes}
    table = Table(title="Goals", title_justify="left")
    for heading in ("row", "figure", "goal", "reached", "verdict"):
        table.add_column(heading)
    for verdict in verdicts:
        experiment = titles[verdict.goal.row]
        where = f"{experiment.title} ({experiment.durability})"
        reached = verdict.reason if verdict.value is None else _reached(verdict.goal, verdict.value)
        word = f"[{_COLOURS[verdict.word]}]{verdict.word}[/]"
        table.add_row(where, METRICS[verdict.goal.metric].label, verdict.goal.sentence(), reached, word)
    return table


def _reached(goal: Goal, value: float) -> str:
    return figure_text(goal.metric, value) if goal.is_absolute else ratio_text(value)


def _reasons(outcomes: Sequence[Outcome]) -> list[str]:
    """Each reason once, with the first row it kept from being measured."""
    seen: dict[str, str] = {}
    for outcome in outcomes:
        for peer, why in outcome.why_not.items():
            seen.setdefault(f"{peer}: {why}", outcome.experiment.id)
    return [f"{what}  [{row}]".replace("[", "\\[") for what, row in seen.items()]


def _row_json(outcome: Outcome) -> dict[str, Any]:
    experiment = outcome.experiment
    peers = {}
    for peer in experiment.peers:
        metrics = {key for sample in outcome.rounds.get(peer, []) for key in sample if key in METRICS}
        peers[peer] = {
            "figures": {metric: outcome.figure(peer, metric) for metric in sorted(metrics)},
            "rounds": outcome.rounds.get(peer, []),
            "why_not": outcome.why_not.get(peer),
        }
    shown = [metric for metric in experiment.metrics if _ratio_to_rival(outcome, metric) is not None]
    return {
        "id": experiment.id,
        "title": experiment.title,
        "acks": experiment.acks,
        "durability": experiment.durability,
        "metrics": list(experiment.metrics),
        "peers": peers,
        "rival": experiment.rival,
        "ratio_to_rival": {metric: _ratio_to_rival(outcome, metric) for metric in shown},
    }


def _goal_json(verdict: Verdict) -> dict[str, Any]:
    goal = verdict.goal
    return {
        "row": goal.row, "metric": goal.metric, "goal": goal.sentence(), "against": list(goal.against) or None,
        "value": verdict.value, "verdict": verdict.word, "reason": verdict.reason or None,
    }  # fmt: skip
