"""An archive as the past of its topics: which files hold it, and from where to where it is complete.

A snapshot of the table gives both in one step, so the live tail can begin exactly where the files end: no gap, no
message twice, however busy the archive is meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from clarion.pipeline.lake.errors import LakeError
from clarion.pipeline.lake.options import local_path
from clarion.pipeline.lake.ranges import Origin


class Span(NamedTuple):
    """What the archive holds of one partition: everything the topic had from the first to before the next offset."""

    first_offset: int
    next_offset: int


class ArchiveFile(NamedTuple):
    path: str
    size: int


class History(NamedTuple):
    spans: dict[Origin, Span]
    files: list[ArchiveFile]


def next_offsets(path: str, origins: Iterable[Origin]) -> dict[Origin, int]:
    """Where the table ends, per partition that it knows."""
    return {origin: span.next_offset for origin, span in spans_of(path, origins).items()}


def spans_of(path: str, origins: Iterable[Origin]) -> dict[Origin, Span]:
    from clarion.pipeline.lake import delta, parquet

    path = local_path(path)
    if delta.exists(path):
        return _spans(delta.open_table(path), delta, origins)
    return _spans(path, parquet, origins) if parquet.exists(path) else {}


def history(path: str, origins: Iterable[Origin]) -> History:
    """The archived past of these partitions. On the driver; the files are read with `read_file` anywhere."""
    from clarion.pipeline.lake import delta

    path = local_path(path)
    if not delta.exists(path):
        raise LakeError(f"history: there is no Delta table at {path}")
    table = delta.open_table(path)
    names = delta.schema_of(table).names
    if not {"key", "value", "topic", "topic_id", "partition", "offset", "timestamp"} <= set(names):
        raise LakeError(f"history: {path} is no archive of raw messages; it has the columns {', '.join(names)}")
    spans = _spans(table, delta, origins)
    sizes = {each: os.path.getsize(os.path.join(path, each)) for each in (delta.paths_of(table) if spans else ())}
    return History(spans, [ArchiveFile(os.path.join(path, each), size) for each, size in sorted(sizes.items())])


def read_file(path: str, ids: dict[str, str], schema: pa.Schema, rows: int = 10_000) -> Iterator[pa.RecordBatch]:
    """The messages of these topics (by name and id) in one file of an archive, with the connector's columns."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    with pq.ParquetFile(path, memory_map=False) as file:
        wanted = [each for each in (*schema.names, "topic", "topic_id") if each in file.schema_arrow.names]
        for batch in file.iter_batches(batch_size=rows, columns=list(dict.fromkeys(wanted))):
            mine = [
                pc.and_(pc.equal(batch["topic"], name), pc.equal(batch["topic_id"], topic_id))
                for name, topic_id in ids.items()
            ]
            mask = mine[0]
            for each in mine[1:]:
                mask = pc.or_(mask, each)
            found = batch.filter(mask)
            if found.num_rows:
                yield _shaped(found, schema)


def _shaped(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Exactly the wanted columns: Spark takes the first batch's word for all of them."""
    columns = [
        batch[each.name].cast(each.type) if each.name in batch.schema.names else pa.nulls(batch.num_rows, each.type)
        for each in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _spans(table: object, keeper: object, origins: Iterable[Origin]) -> dict[Origin, Span]:
    found: dict[Origin, Span] = {}
    for origin in origins:
        end = keeper.next_offset(table, origin)  # type: ignore[attr-defined]
        if end is not None:
            found[origin] = Span(keeper.first_offset(table, origin), end)  # type: ignore[attr-defined]
    return found


def pack(files: Sequence[ArchiveFile], parts: int) -> list[list[str]]:
    """The files in at most so many lots of about the same size, for as many tasks."""
    lots: list[tuple[int, list[str]]] = [(0, []) for _ in range(max(1, min(parts, len(files))))]
    for each in sorted(files, key=lambda file: (-file.size, file.path)):
        smallest = min(range(len(lots)), key=lambda index: lots[index][0])
        total, names = lots[smallest]
        lots[smallest] = (total + each.size, [*names, each.path])
    return [names for _, names in lots if names]
