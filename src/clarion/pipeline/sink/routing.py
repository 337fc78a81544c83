"""Where each staged row goes: its own partition if it names one, its key's, or the next in turn; then sorted by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from clarion.model.ids import TopicPartition
from clarion.pipeline.kafka.columns import number_column
from clarion.pipeline.kafka.encode import Messages
from clarion.pipeline.kafka.errors import RefusedRowError
from clarion.pipeline.kafka.partitioner import Dealer, partitions_of_keys
from clarion.pipeline.kafka.varints import Longs
from clarion.pipeline.sink.rows import Staged

PartitionCount = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Routed:
    """Messages sorted by partition, each partition's in the order of its rows."""

    messages: Messages
    groups: list[tuple[TopicPartition, int]]  # which partition begins at which message
    positions: NDArray[np.int64]  # the row that each message was


def route(staged: Staged, topic: str | None, partition_count: PartitionCount, dealer: Dealer) -> Routed:
    names, which = _topics(staged, topic)
    partitions = np.empty(staged.messages.count, np.int64)
    for nth, name in enumerate(names):
        (rows,) = (which == nth).nonzero() if len(names) > 1 else (None,)
        partitions[rows if rows is not None else slice(None)] = _partitions(
            staged, name, partition_count(name), rows, dealer
        )
    return _sorted(staged, names, which, partitions)


def _topics(staged: Staged, topic: str | None) -> tuple[list[str], Longs]:
    """The topics by name, and which of them each row goes to."""
    count = staged.messages.count
    if topic is not None or staged.topics is None:
        assert topic is not None, "the columns have been checked"
        return [topic], np.zeros(count, np.int64)
    missing = pc.is_null(staged.topics)
    if pc.any(missing).as_py():
        raise RefusedRowError(f"row {staged.first_row + pc.index(missing, True).as_py()} names no topic")
    encoded = staged.topics.dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def _partitions(
    staged: Staged, topic: str, count: int, rows: NDArray[np.int64] | None, dealer: Dealer
) -> NDArray[np.int64]:
    """Of these rows of one topic; None stands for all."""
    keys, sizes, chosen = staged.messages.key, staged.sizes, staged.partitions
    if rows is not None:
        taken = number_column(rows, pa.int64())
        keys, sizes = keys.take(taken), sizes[rows]
        chosen = chosen.take(taken) if chosen is not None else None
    partitions = partitions_of_keys(keys, count)
    if chosen is not None:
        named: Longs = pc.fill_null(chosen, -1).to_numpy(zero_copy_only=False).astype(np.int64)
        is_named = pc.is_valid(chosen).to_numpy(zero_copy_only=False)
        _check_partitions(staged, topic, count, rows, named, is_named)
        partitions = np.where(is_named, named, partitions)
    free = partitions < 0
    if free.any():
        partitions[free] = dealer.deal(sizes[free], count)
    return partitions


def _check_partitions(
    staged: Staged, topic: str, count: int, rows: NDArray[np.int64] | None, named: Longs, is_named: NDArray[np.bool_]
) -> None:
    unknown = is_named & ((named < 0) | (named >= count))
    if unknown.any():
        at = int(unknown.argmax())
        row = staged.first_row + (at if rows is None else int(rows[at]))
        raise RefusedRowError(f"row {row} names partition {named[at]} of {topic}, which has {count}")


def _sorted(staged: Staged, names: list[str], which: Longs, partitions: NDArray[np.int64]) -> Routed:
    places = which << 32 | partitions
    positions = np.arange(len(places)) + staged.first_row
    rows = staged.messages
    if (places != places[0]).any():
        order = np.argsort(places, kind="stable")
        places, positions = places[order], positions[order]
        rows = rows.take(order)
    starts = np.flatnonzero(np.concatenate([[True], places[1:] != places[:-1]]))
    groups = [
        (TopicPartition(names[place >> 32], place & 0xFFFFFFFF), start)
        for place, start in zip(places[starts].tolist(), starts.tolist(), strict=True)
    ]
    return Routed(rows, groups, positions)
