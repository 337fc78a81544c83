"""Which task reads what. Pure.

A task costs some milliseconds before it reads anything, so there are few: as many as the rows are worth. By default a
partition is read by one task, whole and in order, so that whatever is written behind it (another topic) keeps that
order; small partitions share a task. Where order cannot matter, or where more tasks are asked for than there are
partitions, all ranges are laid end to end and cut into equal lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from clarion.pipeline.kafka.range_progress import OffsetRange

# Reading this many rows takes about as long as a task takes to start.
ROWS_PER_TASK_MIN: Final = 25_000
# From here on a task more costs nothing to speak of, however many cores there are; and the cores finish together
# although some are slower.
ROWS_PER_TASK_LARGE: Final = 250_000


@dataclass(frozen=True, slots=True)
class Tasks:
    """What was asked for."""

    least: int | None = None  # tasks
    rows_max: int | None = None  # of one task
    may_split: bool = False  # a partition over several tasks, for no other reason than speed


def plan(ranges: Sequence[OffsetRange], cores: int | None, asked: Tasks | None = None) -> list[list[OffsetRange]]:
    """The ranges of each task; empty ranges are left out. Where nobody knows how many cores there are, it is as if each
    partition had one."""
    asked = asked or Tasks()
    wanted = sorted((one for one in ranges if one.rows_max), key=lambda one: (one.topic, one.partition, one.start))
    total = sum(one.rows_max for one in wanted)
    if not total:
        return []
    worthwhile = _worthwhile(total, len(wanted) if cores is None else cores)
    count = min(max(worthwhile, asked.least or 1, -(-total // (asked.rows_max or total))), total)
    if asked.may_split or (asked.least or 1) > len(wanted):
        return _cut(wanted, total, count)
    tasks = _share_out(wanted, min(count, len(wanted)))
    is_too_large = asked.rows_max is not None and max(map(_rows, tasks)) > asked.rows_max
    return _cut(wanted, total, count) if is_too_large else tasks


def _worthwhile(rows: int, cores: int) -> int:
    return max(min(cores, -(-rows // ROWS_PER_TASK_MIN)), rows // ROWS_PER_TASK_LARGE)


def _rows(task: Sequence[OffsetRange]) -> int:
    return sum(one.rows_max for one in task)


def _share_out(ranges: Sequence[OffsetRange], count: int) -> list[list[OffsetRange]]:
    """Whole ranges, the largest first, each to the task that has least; of one partition all to the same task."""
    tasks: list[list[OffsetRange]] = [[] for _ in range(count)]
    rows = [0] * count
    owners: dict[tuple[str, int], int] = {}
    for one in sorted(ranges, key=lambda one: -one.rows_max):
        nth = owners.setdefault((one.topic, one.partition), min(range(count), key=rows.__getitem__))
        tasks[nth].append(one)
        rows[nth] += one.rows_max
    placed = [sorted(task, key=lambda one: (one.topic, one.partition, one.start)) for task in tasks if task]
    return sorted(placed, key=lambda task: (task[0].topic, task[0].partition))


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
