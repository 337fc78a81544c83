"""Figures against goals, and what the report says where a peer is missing."""

import io
import json

import pytest
from bench.__main__ import main
from bench.experiment import METRICS, Experiment, Outcome, run, with_costs
from bench.goals import GOALS, judge
from bench.load import LoadFailed
from bench.peers.process import PeerUnavailable
from bench.rows import experiments
from bench.sizes import DEFAULT, FULL, QUICK, Sizes
from rich.console import Console

from bench import report


class QuietArena:
    """As much of an arena as rounds need that start no server."""

    def __init__(self, rounds: int = 3) -> None:
        self.sizes = Sizes(rounds=rounds)
        self.why_not: dict[str, str] = {}

    def wait_for_quiet(self) -> None:
        pass


def experiment(measure, **changes):
    settings = {
        "id": "produce-1k-page-cache", "title": "produce", "acks": "1", "durability": "none", "metrics": ("mb_per_s",),
        "measure": measure, "peers": ("clarion", "kafka"),
    }  # fmt: skip
    return Experiment(**(settings | changes))


def outcome_of(clarion: float, kafka: float, row: str = "produce-1k-page-cache") -> Outcome:
    rounds = {"clarion": [{"mb_per_s": clarion}], "kafka": [{"mb_per_s": kafka}]}
    return Outcome(experiment(None, id=row), rounds)


def test_rounds_are_interleaved_and_alternate_who_begins():
    turns = []
    run(
        experiment(lambda arena, peer: turns.append(peer) or {}), QuietArena(2), ["clarion", "kafka"], lambda line: None
    )
    assert turns == ["clarion", "kafka", "kafka", "clarion"]


def test_a_peer_that_cannot_be_had_is_asked_once_and_its_column_says_so():
    def measure(arena, peer):
        if peer == "kafka":
            raise PeerUnavailable("mvn is not installed")
        return {"mb_per_s": 5.0}

    outcome = run(experiment(measure), QuietArena(), ["clarion", "kafka"], lambda line: None)
    assert outcome.why_not == {"kafka": "mvn is not installed"}
    text = printed([outcome])
    assert "n/a" in text
    assert "mvn is not installed" in text
    assert "no answer" in text


def test_a_failed_load_is_a_failure_of_that_row_only():
    def measure(arena, peer):
        raise LoadFailed("the server closed a connection under load")

    arena = QuietArena()
    outcome = run(experiment(measure), arena, ["clarion"], lambda line: None)
    assert outcome.why_not["clarion"].startswith("failed: the server closed")
    assert arena.why_not == {}


@pytest.mark.parametrize(("clarion", "word"), [(200.0, "PASS"), (199.0, "FALL SHORT")])
def test_a_goal_is_met_at_its_bound_and_not_below(clarion, word):
    verdict = judge({"produce-1k-page-cache": outcome_of(clarion, 100.0)})[0]
    assert verdict.word == word
    assert word in printed([outcome_of(clarion, 100.0)])


def test_a_peer_that_falls_behind_the_rate_gives_no_cheap_victory():
    outcome = Outcome(
        experiment(None, id="latency-fsync", metrics=("p50_ms",)),
        {"clarion": [{"p50_ms": 1.0}], "kafka": [{"p50_ms": 900.0, "saturated": 1.0}]},
    )
    (verdict,) = judge({"latency-fsync": outcome})
    assert verdict.word == "no answer"
    assert "kafka did not keep up" in verdict.reason
    assert "saturated" in printed([outcome])
    outcome.rounds["kafka"].append({"p50_ms": 2.0, "saturated": 0.0})
    assert judge({"latency-fsync": outcome})[0].value == 0.5


def test_the_raw_limit_is_the_best_of_the_loops_named():
    outcomes = {"consume-1k": outcome_of(70.0, 100.0, "consume-1k")}
    for row, limit in (("raw-out-sendfile-1m", 100.0), ("raw-out-pread-1m", 50.0)):
        outcomes[row] = Outcome(experiment(None, id=row, peers=("machine",)), {"machine": [{"mb_per_s": limit}]})
    raw = next(verdict for verdict in judge(outcomes) if verdict.goal.against)
    assert raw.value == pytest.approx(0.7)
    assert raw.is_met


def test_costs_stand_beside_every_rate():
    sample = with_costs({"broker_cpu_s": 0.5, "gb": 2.0, "requests": 1000.0})
    assert sample["cpu_s_per_gb"] == 0.25
    assert sample["cpu_us_per_request"] == 500.0


def test_results_are_json_with_every_round():
    results = json.loads(json.dumps(report.as_json([outcome_of(3.0, 2.0)], {"kind": "quick"})))
    (row,) = results["rows"]
    assert (row["rival"], row["ratio_to_rival"]) == ("kafka", {"mb_per_s": 1.5})
    assert row["peers"]["kafka"]["rounds"] == [{"mb_per_s": 2.0}]


@pytest.mark.parametrize("sizes", [DEFAULT, FULL, QUICK])
def test_every_goal_names_a_row_and_a_figure_that_exist(sizes):
    rows = {one.id: one for one in experiments(sizes)}
    assert len(rows) == len(experiments(sizes))
    for goal in GOALS:
        assert goal.metric in rows[goal.row].metrics
        assert all(raw in rows for raw in goal.against)
    assert all(metric in METRICS for row in rows.values() for metric in row.metrics)


def test_the_rows_can_be_listed_without_starting_anything(capsys):
    assert main(["--list", "--rows", "tiny-*"]) == 0
    assert len(capsys.readouterr().out.strip().splitlines()) == 6


def test_the_documentation_names_every_row():
    from bench.peers.process import ROOT

    text = (ROOT / "docs" / "benchmarks.md").read_text()
    missing = [one.id for one in experiments(FULL) if f"`{one.id}`" not in text]
    assert missing == []


def printed(outcomes):
    console = Console(file=io.StringIO(), width=200)
    report.show(console, outcomes)
    return console.file.getvalue()
