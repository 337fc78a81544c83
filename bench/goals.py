"""What the project promised itself: each goal names a row, a figure, and the bound it must keep.

A ratio is to the row's rival in the same run (Kafka, where a row names nobody else) or to a raw limit; an absolute
bound stands by itself. In Spark's rows Kafka is Spark's own Kafka connector.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench.experiment import METRICS, Outcome
from bench.figures import ratio
from bench.rows.raw import MACHINE


@dataclass(frozen=True, slots=True)
class Goal:
    row: str
    metric: str
    bound: float
    at_least: bool
    against: tuple[str, ...] = ()  # rows of raw limits, of which the best counts; empty: the row's rival
    is_absolute: bool = False

    def sentence(self) -> str:
        sign, to = "≥" if self.at_least else "≤", " raw" if self.against else ""
        return f"{sign} {self.bound:g}" + ("" if self.is_absolute else f" ×{to}")


@dataclass(frozen=True, slots=True)
class Verdict:
    goal: Goal
    value: float | None  # the ratio, or the figure itself where the bound is absolute
    reason: str = ""

    @property
    def is_met(self) -> bool | None:
        if self.value is None:
            return None
        return self.value >= self.goal.bound if self.goal.at_least else self.value <= self.goal.bound

    @property
    def word(self) -> str:
        return {True: "PASS", False: "FALL SHORT", None: "no answer"}[self.is_met]


GOALS = (
    Goal("produce-1k-page-cache", "mb_per_s", 2.0, True),
    Goal("produce-100b-page-cache", "mb_per_s", 2.0, True),
    Goal("produce-1k-page-cache", "cpu_s_per_gb", 0.35, False),
    Goal("produce-1k-page-cache", "rss_mb", 0.2, False),
    Goal("consume-1k", "mb_per_s", 1.0, True),
    Goal("fanout-100", "mb_per_s", 0.8, True),
    Goal("users-consume", "mb_per_s", 1.0, True),
    Goal("latency-page-cache", "p50_ms", 0.5, False),
    Goal("latency-page-cache", "p99_ms", 0.3, False),
    Goal("tiny-50-page-cache", "requests_per_s", 1.5, True),
    Goal("tiny-500-page-cache", "requests_per_s", 1.5, True),
    Goal("tiny-1-page-cache", "requests_per_s", 0.8, True),
    Goal("idle-memory", "idle_mb", 0.1, False),
    Goal("start", "first_ack_s", 0.1, False),
    Goal("produce-1k-fsync", "mb_per_s", 3.0, True),
    Goal("latency-fsync", "p50_ms", 0.6, False),
    Goal("tiny-50-fsync", "requests_per_s", 4.0, True),
    Goal("produce-1k-page-cache", "mb_per_s", 0.6, True, against=("raw-in-64k",)),
    Goal("consume-1k", "mb_per_s", 0.6, True, against=("raw-out-sendfile-1m", "raw-out-pread-1m")),
    Goal("idle-connections", "kb_per_connection", 20.0, False, is_absolute=True),
    Goal("many-partitions", "first_ack_s", 5.0, False, is_absolute=True),
    Goal("queue-100b-page-cache", "messages_per_s", 1.0, True),
    Goal("queue-1k-page-cache", "messages_per_s", 1.0, True),
    Goal("queue-100b-fsync", "messages_per_s", 1.0, True),
    Goal("queue-1k-fsync", "messages_per_s", 1.0, True),
    Goal("queue-client-100b", "messages_per_s", 1.0, True),
    Goal("queue-client-1k", "messages_per_s", 1.0, True),
    Goal("cluster-produce-page-cache", "mb_per_s", 2.0, True),
    Goal("cluster-produce-fsync", "mb_per_s", 1.0, True),
    Goal("cluster-latency-page-cache", "p50_ms", 0.5, False),
    Goal("cluster-latency-page-cache", "p99_ms", 0.5, False),
    Goal("cluster-failover", "gap_s", 1.0, False, is_absolute=True),
    Goal("spark-read-100b", "messages_per_s", 2.0, True),
    Goal("spark-read-1k", "messages_per_s", 1.8, True),
    Goal("spark-write", "messages_per_s", 1.5, True),
    Goal("spark-copy", "messages_per_s", 1.5, True),
    Goal("spark-copy-limit", "messages_per_s", 1.5, True),
    Goal("spark-stream", "messages_per_s", 2.0, True),
    Goal("spark-latency", "p50_ms", 0.25, False),
    Goal("spark-latency", "p90_ms", 0.25, False),
    Goal("latency-beside-http", "p99_growth", 2.0, False, is_absolute=True),
    Goal("latency-beside-http", "p99_growth_own", 2.0, False, is_absolute=True),
    Goal("neighbours", "streams_kept", 0.9, True, is_absolute=True),
    Goal("neighbours", "queue_kept", 0.9, True, is_absolute=True),
    Goal("neighbours", "webhook_kept", 0.9, True, is_absolute=True),
    Goal("spark-idle-source", "idle_source_ms", 20.0, False, is_absolute=True),
    Goal("spark-partitions", "empty_partition_ms", 1.0, False, is_absolute=True),
    Goal("spark-replay", "python_mb", 1000.0, False, is_absolute=True),
)


def judge(outcomes: Mapping[str, Outcome]) -> list[Verdict]:
    """One verdict per goal whose row was part of the run."""
    return [_judge(goal, outcomes) for goal in GOALS if goal.row in outcomes]


def _judge(goal: Goal, outcomes: Mapping[str, Outcome]) -> Verdict:
    ours = outcomes[goal.row].figure("clarion", goal.metric)
    if ours is None:
        return Verdict(goal, None, _why_no_figure(outcomes[goal.row], "clarion"))
    if goal.is_absolute:
        return Verdict(goal, ours)
    rival = outcomes[goal.row].experiment.rival
    theirs = _raw_limit(goal, outcomes) if goal.against else outcomes[goal.row].figure(rival, goal.metric)
    if theirs is None:
        return Verdict(goal, None, _why_no_figure(outcomes[goal.row], rival))
    return Verdict(goal, ratio(ours, theirs))


def _why_no_figure(outcome: Outcome, peer: str) -> str:
    if outcome.is_saturated(peer):
        return f"{peer} did not keep up with the rate"
    return outcome.why_not.get(peer, f"no figure of {peer}")


def _raw_limit(goal: Goal, outcomes: Mapping[str, Outcome]) -> float | None:
    limits = [outcomes[row].figure(MACHINE, goal.metric) for row in goal.against if row in outcomes]
    known = [limit for limit in limits if limit is not None]
    best = max if METRICS[goal.metric].kind.more_is_better else min
    return best(known) if known else None
