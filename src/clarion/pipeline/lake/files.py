"""Record batches to parquet files: what a task does for its share of a batch.

Rows wait in memory until a row group is worth writing; a file is closed when it is large enough. Both are bounded: by
bytes over all partitions, and by the number of files open at once. A file that is closed is on disk (or in the object
store), and no table mentions it yet; `discard` takes all of them back.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from clarion.pipeline.lake.errors import LakeError
from clarion.pipeline.lake.location import Location
from clarion.pipeline.lake.partitions import Values, folder, split
from clarion.pipeline.lake.ranges import SourceRange, ranges_of, united
from clarion.pipeline.lake.statistics import columns_with_bounds, file_statistics
from clarion.world import SystemClock

MIB: Final = 1 << 20
ROW_GROUP_BYTES: Final = 32 * MIB  # of rows in memory: a unit to scan and to skip
WAITING_BYTES_MAX: Final = 96 * MIB  # over all partitions of a task, so that a worker stays far below a gigabyte
OPEN_FILES_MAX: Final = 64  # a batch that spans more hours than this closes its oldest files early


@dataclass(frozen=True, slots=True)
class DataFile:
    path: str  # below the table's folder
    size: int
    rows: int
    partition_values: dict[str, str | None]
    statistics: str
    modified_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the files of one write look; the driver decides it, every task follows it."""

    root: Location
    schema: pa.Schema  # of the rows, partition columns included
    partition_by: tuple[str, ...] = ()
    target_file_bytes: int = 128 * MIB
    compression: str = "zstd"
    source_columns: tuple[str, ...] = ()
    sync: bool = True

    @property
    def file_schema(self) -> pa.Schema:
        return pa.schema([each for each in self.schema if each.name not in self.partition_by])


class TaskFiles:
    def __init__(self, layout: Layout, prefix: str) -> None:
        self._layout = layout
        self._prefix = prefix
        self._open: dict[Values, _OpenFile] = {}  # the least recently used first
        self._closed: list[DataFile] = []
        self._ranges: list[SourceRange] = []
        self._waiting_bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        batch = batch.cast(self._layout.schema)
        if batch.num_rows and self._layout.source_columns:
            table = pa.Table.from_batches([batch])
            self._ranges = united([*self._ranges, *ranges_of(table, self._layout.source_columns)])
        for values, rows in split(batch, self._layout.partition_by):
            self._add(values, rows)

    def close(self) -> tuple[list[DataFile], list[SourceRange]]:
        for values in list(self._open):
            self._close(values)
        if self._layout.sync and self._layout.root.is_local:
            sync_folders(self._layout.root.uri, [each.path for each in self._closed])
        return self._closed, self._ranges

    def discard(self) -> None:
        for each in self._open.values():
            each.abandon()
        self._layout.root.remove(each.path for each in self._closed)

    def _add(self, values: Values, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        file = self._open.pop(values, None) or self._new_file(values)
        self._open[values] = file
        self._waiting_bytes += file.add(rows)
        if file.waiting_bytes >= ROW_GROUP_BYTES:
            self._flush(file)
        while self._waiting_bytes > WAITING_BYTES_MAX:
            self._flush(max(self._open.values(), key=lambda each: each.waiting_bytes))
        if file.written_bytes >= self._layout.target_file_bytes:
            self._close(values)

    def _new_file(self, values: Values) -> _OpenFile:
        while len(self._open) >= OPEN_FILES_MAX:
            self._close(next(iter(self._open)))
        name = f"{self._prefix}-{uuid.uuid4()}.{self._layout.compression}.parquet"
        return _OpenFile(self._layout, os.path.join(folder(self._layout.partition_by, values), name), values)

    def _flush(self, file: _OpenFile) -> None:
        self._waiting_bytes -= file.waiting_bytes
        file.flush()

    def _close(self, values: Values) -> None:
        file = self._open.pop(values)
        self._waiting_bytes -= file.waiting_bytes
        self._closed.append(file.close())


@dataclass(slots=True)
class _OpenFile:
    layout: Layout
    path: str
    values: Values
    waiting_bytes: int = 0
    rows: int = 0
    _waiting: list[pa.RecordBatch] = field(default_factory=list)
    _footers: list[pq.FileMetaData] = field(default_factory=list)
    _file: Any = None
    _writer: pq.ParquetWriter | None = None

    @property
    def written_bytes(self) -> int:
        return 0 if self._file is None else self._file.tell()

    def add(self, rows: pa.RecordBatch) -> int:
        size = int(rows.nbytes)
        self._waiting.append(rows)
        self.waiting_bytes += size
        self.rows += rows.num_rows
        return size

    def flush(self) -> None:
        if not self._waiting:
            return
        if self._writer is None:
            self._writer = self._begin()
        self._writer.write_table(pa.Table.from_batches(self._waiting))
        self._waiting, self.waiting_bytes = [], 0

    def close(self) -> DataFile:
        self.flush()
        assert self._writer is not None, "a file is opened by its first row"
        assert self._file is not None
        self._writer.close()
        size = int(self._file.tell())
        if self.layout.root.is_local:
            self._file.flush()
            if self.layout.sync:
                os.fsync(self._file.fileno())
        self._file.close()  # in an object store it is there from now on
        return DataFile(
            path=self.path,
            size=size,
            rows=self.rows,
            partition_values=dict(zip(self.layout.partition_by, self.values, strict=True)),
            statistics=file_statistics(self._footers[0], columns_with_bounds(self.layout.file_schema)),
            modified_ms=SystemClock().now_ms(),
        )

    def abandon(self) -> None:
        if self._writer is not None and self._file is not None:
            with suppress(OSError):  # a full disk or a lost connection may be why it is abandoned
                self._writer.close()
                self._file.close()
            self.layout.root.remove([self.path])

    def _begin(self) -> pq.ParquetWriter:
        self._file = self.layout.root.create(self.path)
        schema = self.layout.file_schema
        return pq.ParquetWriter(
            self._file,
            schema,
            compression=self.layout.compression,
            use_dictionary=[each.name for each in schema if not _is_payload(each.type)],
            write_statistics=columns_with_bounds(schema),
            metadata_collector=self._footers,
        )


def check_files(root: Location, files: Sequence[DataFile]) -> None:
    """What tasks say they wrote is here, whole, before a commit names it: one look at each file.

    A task on another machine may have written to a folder of the same name that nobody else sees."""
    for each, size in zip(files, root.sizes([each.path for each in files]), strict=True):
        place = f"{root}/{each.path}"
        if size is None:
            raise LakeError(
                f"{place}: a task wrote this file, and it is not here; nothing was committed. Is the table where the "
                "driver and every worker share it?"
            )
        if size != each.size:
            raise LakeError(f"{place}: a task wrote {each.size} bytes, and {size} are here; nothing was committed")


def sync_folders(root: str, paths: Sequence[str]) -> None:
    """New names reach the disk too: every folder between a file and the table's root."""
    folders = {parent for path in paths for parent in Path(path).parents}
    for each in sorted(folders):
        handle = os.open(os.path.join(root, each), os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _is_payload(kind: pa.DataType) -> bool:
    """Bytes hardly ever repeat; looking for repetitions costs a tenth of the write."""
    return bool(pa.types.is_binary(kind) or pa.types.is_nested(kind))
