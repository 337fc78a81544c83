"""The questions, one module per family; `experiments` lists them in the order in which they are asked."""

from __future__ import annotations

from bench.experiment import Experiment
from bench.rows import (
    cluster,
    consume,
    http,
    latency,
    partitions,
    produce,
    push,
    queue_clients,
    queues,
    raw,
    recovery,
    scale,
    spark,
    start,
    tiny,
    users,
)
from bench.sizes import Sizes


def experiments(sizes: Sizes) -> list[Experiment]:
    """A raw limit is measured right before what it limits: neighbours come and go."""
    return [
        *raw.into_file(),
        *produce.experiments(sizes),
        *raw.from_file(),
        *consume.experiments(sizes),
        *users.experiments(sizes),
        *queues.experiments(sizes),
        *queue_clients.experiments(sizes),
        *latency.experiments(sizes),
        *push.experiments(sizes),
        *http.experiments(sizes),
        *raw.answers(),
        *tiny.experiments(sizes),
        *start.experiments(sizes),
        *recovery.experiments(sizes),
        *scale.experiments(sizes),
        *partitions.experiments(sizes),
        *cluster.experiments(sizes),
        *spark.experiments(sizes),
    ]
