"""Which task reads what. Pure.

A task costs some milliseconds before it reads anything, so there are few: as many as the rows are worth, at most two
for each core. All ranges are laid end to end and cut into equal lengths; small ranges thereby share a task, and a large
one is read by several.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from clarion.pipeline.kafka.range_progress import OffsetRange

# Reading this many rows takes about as long as a task takes to start.
ROWS_PER_TASK_MIN: Final = 25_000
TASKS_PER_CORE_MAX: Final = 2
# From here on a second task per core pays: the cores then finish together although some are slower.
ROWS_PER_CORE_LARGE: Final = 500_000


def plan(ranges: Sequence[OffsetRange], cores: int, tasks_min: int | None = None) -> list[list[OffsetRange]]:
    """The ranges of each task; empty ranges are left out."""
    wanted = sorted((one for one in ranges if one.rows_max), key=lambda one: (one.topic, one.partition, one.start))
    total = sum(one.rows_max for one in wanted)
    if not total:
        return []
    return _cut(wanted, total, _task_count(total, cores, tasks_min))


def _task_count(rows: int, cores: int, tasks_min: int | None) -> int:
    most = cores * (TASKS_PER_CORE_MAX if rows >= cores * ROWS_PER_CORE_LARGE else 1)
    count = min(most, -(-rows // ROWS_PER_TASK_MIN))
    return min(max(count, tasks_min or 1), rows)


def _cut(ranges: Sequence[OffsetRange], total: int, count: int) -> list[list[OffsetRange]]:
    tasks: list[list[OffsetRange]] = [[] for _ in range(count)]
    bounds = [total * nth // count for nth in range(1, count + 1)]
    at, nth = 0, 0
    for one in ranges:
        start = one.start
        while start < one.end:
            end = min(one.end, start + bounds[nth] - at)
            tasks[nth].append(replace(one, start=start, end=end))
            at += end - start
            start = end
            if at == bounds[nth]:
                nth += 1
    return tasks
