"""The questions, one module per family; `experiments` lists them in the order in which they are asked."""

from __future__ import annotations

from bench.experiment import Experiment
from bench.rows import consume, latency, partitions, produce, raw, recovery, scale, start, tiny, users
from bench.sizes import Sizes


def experiments(sizes: Sizes) -> list[Experiment]:
    families = (raw, produce, consume, users, latency, tiny, start, recovery, scale, partitions)
    return [experiment for family in families for experiment in family.experiments(sizes)]
