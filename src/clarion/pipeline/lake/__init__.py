"""Tables in the lake: Delta, written by executors and committed by the driver.

- plan: what the driver decides before a write: the table's schema with new columns, its partition columns.
- data file: one parquet file that a task has written and nobody can see yet.
- commit: the driver makes all data files of a batch visible in one step, once per (query, batch) and per source offset.

A batch is never half there and never there twice, whoever dies when. What a dead writer leaves behind are files that no
table mentions; `vacuum` removes them when they are old enough to belong to nobody.

What executors import (`sink`, `files`, `location`, `snapshots`, `table_reader`, `history` …) needs pyarrow and numpy
only; delta-rs is the driver's. This room never reads from a topic and never moves rows through the driver.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clarion.pipeline.lake.compaction import compact, vacuum
    from clarion.pipeline.lake.errors import LakeError
    from clarion.pipeline.lake.reading import read_table
    from clarion.pipeline.lake.tables import stream_table, write_table

__all__ = ["LakeError", "compact", "read_table", "stream_table", "vacuum", "write_table"]

_HOMES = {
    "LakeError": "errors",
    "compact": "compaction",
    "read_table": "reading",
    "stream_table": "tables",
    "vacuum": "compaction",
    "write_table": "tables",
}


def __getattr__(name: str) -> Any:
    """Names load on first use: executors import this package without delta-rs."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
