"""How much of what is there goes into the next micro-batch. Pure.

Limits on rows and on bytes are shared out in proportion to what each partition has waiting, so that all of them advance
together. Bytes are estimated from the batches seen last; rows are offsets, of which compaction and transaction markers
may leave some empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from clarion.model.ids import TopicPartition

Offsets = Mapping[TopicPartition, int]

BYTES_PER_ROW_UNKNOWN: Final = 1024.0  # a guess for a topic from which nothing has been seen yet


def admit(
    start: Offsets,
    latest: Offsets,
    *,
    rows_max: int | None = None,
    bytes_max: int | None = None,
    bytes_per_row: Mapping[TopicPartition, float] | None = None,
) -> dict[TopicPartition, int]:
    """The end of the batch that begins at `start`. A log that is shorter than it was ends where it ends."""
    waiting = {tp: latest[tp] - start[tp] for tp in latest if latest[tp] > start[tp]}
    room = _rows_that_fit(waiting, rows_max, bytes_max, bytes_per_row or {})
    if room is None or room >= sum(waiting.values()):
        return dict(latest)
    if room < len(waiting):
        shares = _take_turns(sorted(waiting), room, sum(start[tp] for tp in latest))
    else:
        shares = _share_out(waiting, room)
    return {tp: start[tp] + shares.get(tp, 0) if tp in waiting else latest[tp] for tp in latest}


def _rows_that_fit(
    waiting: Offsets, rows_max: int | None, bytes_max: int | None, bytes_per_row: Mapping[TopicPartition, float]
) -> int | None:
    """The stricter of the two limits, in rows; None where there is none."""
    limits = [] if rows_max is None else [rows_max]
    total = sum(waiting.values())
    if bytes_max is not None and total:
        usual = _usual(bytes_per_row)
        size = sum(rows * bytes_per_row.get(tp, usual) for tp, rows in waiting.items())
        limits.append(int(total * min(1.0, bytes_max / size)) if size > 0 else total)
    # At least one row, or a message larger than the limit would stop the stream for good.
    return max(1, min(limits)) if limits else None


def _usual(bytes_per_row: Mapping[TopicPartition, float]) -> float:
    return sum(bytes_per_row.values()) / len(bytes_per_row) if bytes_per_row else BYTES_PER_ROW_UNKNOWN


def _take_turns(waiting: list[TopicPartition], room: int, read: int) -> dict[TopicPartition, int]:
    """A row each for as many as there is room for. Who comes next follows from how many rows were read before, so that
    the next batch goes on where this one ends, whoever plans it."""
    return {waiting[(read + nth) % len(waiting)]: 1 for nth in range(room)}


def _share_out(waiting: Offsets, room: int) -> dict[TopicPartition, int]:
    """`room` rows in proportion to what waits; what rounding leaves goes to those that lost most by it. Everybody has
    one at least: a few rows must not wait until the backlog beside them is gone."""
    total = sum(waiting.values())
    least = 0 if min(waiting.values()) * room >= total else 1
    room, total = room - least * len(waiting), total - least * len(waiting)
    exact = {tp: least + (rows - least) * room / total for tp, rows in waiting.items()}
    shares = {tp: min(int(share), waiting[tp]) for tp, share in exact.items()}
    left = room + least * len(waiting) - sum(shares.values())
    for tp in sorted(exact, key=lambda tp: (int(exact[tp]) - exact[tp], tp))[:left]:
        shares[tp] += 1
    return shares
