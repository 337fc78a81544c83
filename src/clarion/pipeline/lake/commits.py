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
    work: Commit, version_of: Callable[[str], int | None], span_of: Callable[[Origin], tuple[int, int] | None]
) -> bool:
    """Whether the table holds these rows. Rows of which it holds a part are refused: files cannot be cut."""
    if work.batch is not None and (known := version_of(work.batch.app_id)) is not None and known >= work.batch.version:
        return True
    if work.overwrite:
        return False  # they replace what is there
    spans = [(each, span) for each in work.ranges if (span := span_of(each.origin)) is not None]
    held = [(each, span) for each, span in spans if each.first_offset < span[1]]
    if held and len(held) == len(work.ranges) and all(_is_within(each, span) for each, span in held):
        return True
    if held:
        raise LakeError(_overlap(*next((one for one in held if not _is_within(*one)), held[0])))
    return False


def _is_within(part: SourceRange, span: tuple[int, int]) -> bool:
    return span[0] <= part.first_offset and part.next_offset <= span[1]


def _overlap(part: SourceRange, span: tuple[int, int]) -> str:
    topic, _, partition = part.origin
    if part.first_offset < span[0]:
        return (
            f"the table holds {topic} [{partition}] from offset {span[0]} to {span[1]}, and this batch begins before, "
            f"at {part.first_offset}: what is older goes into a table of its own; here, start with startingOffsets at "
            f"{span[1]}"
        )
    return (
        f"the table holds {topic} [{partition}] up to offset {span[1]}, and this batch begins at {part.first_offset}: "
        f"another query archives here too, or this one lost its checkpoint; start it with startingOffsets at {span[1]}"
    )
