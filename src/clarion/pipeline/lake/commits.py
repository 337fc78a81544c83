"""What a commit is, and whether a table has it already: the decision that makes a replayed batch harmless."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from clarion.pipeline.lake.errors import LakeError
from clarion.pipeline.lake.files import DataFile
from clarion.pipeline.lake.ranges import Origin, SourceRange


@dataclass(frozen=True, slots=True)
class WriterBatch:
    """What makes two writes the same write: who, and its how manieth. Later batches have larger numbers."""

    app_id: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    schema: pa.Schema  # of the rows, partition columns included
    files: Sequence[DataFile]
    ranges: Sequence[SourceRange] = ()
    batch: WriterBatch | None = None
    overwrite: bool = False


def is_there(
    work: Commit, version_of: Callable[[str], int | None], next_offset_of: Callable[[Origin], int | None]
) -> bool:
    """Whether the table holds these rows. Rows of which it holds a part are refused: files cannot be cut."""
    if work.batch is not None and (known := version_of(work.batch.app_id)) is not None and known >= work.batch.version:
        return True
    known_next = [(each, next_offset_of(each.origin) or 0) for each in work.ranges]
    held = [(each, end) for each, end in known_next if each.first_offset < end]
    if held and len(held) == len(work.ranges) and all(each.next_offset <= end for each, end in held):
        return True
    if held:
        raise LakeError(_overlap(*held[0]))
    return False


def _overlap(part: SourceRange, end: int) -> str:
    topic, _, partition = part.origin
    return (
        f"the table holds {topic} [{partition}] up to offset {end}, and this batch begins at {part.first_offset}: "
        f"another query archives here too, or this one lost its checkpoint; start it with startingOffsets at {end}"
    )
