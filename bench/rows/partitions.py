"""Produce at 1 KB, spread round robin over 1, 100 and 2,000 partitions of one topic (JetStream has none)."""

from __future__ import annotations

from bench.experiment import KAFKA_WIRE, Experiment
from bench.rows.produce import produce_experiment
from bench.sizes import Sizes

COUNTS = (1, 100, 2000)


def experiments(sizes: Sizes) -> list[Experiment]:
    return [_experiment(count) for count in COUNTS]


def _experiment(count: int) -> Experiment:
    title = f"produce, 1 KB, {count:,} partition{'s' * (count > 1)}"
    return produce_experiment(f"partitions-{count}", title, "page-cache", 1024, partitions=count, peers=KAFKA_WIRE)
