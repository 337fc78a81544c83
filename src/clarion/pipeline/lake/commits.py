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
    work: Commit,
    version_of: Callable[[str], int | None],
    span_of: Callable[[Origin], tuple[int, int] | None],
    has_rows_of: Callable[[SourceRange], bool],
) -> bool:
    """Whether the table holds these rows. Rows of which it holds a part are refused: files cannot be cut.

    A span may have holes, where another query has written further on, or rows were deleted, or the table was restored:
    the rows themselves are looked for (`has_rows_of`), also of a batch whose number is known.
    """
    was_done = is_done(work.batch, version_of)
    if work.overwrite or not work.ranges:
        return was_done
    spans = [(each, span_of(each.origin)) for each in work.ranges]
    if all(_is_within(each, span) for each, span in spans):
        for each, span in spans:
            if span is not None and not has_rows_of(each):
                raise LakeError(_hole(each, span))
        return True
    held = [(each, span) for each, span in spans if span is not None and each.first_offset < span[1]]
    unknown = [(each, span) for each, span in spans if span is None]
    if was_done and (held or unknown):
        in_part = [one for one in held if not _is_within(*one)]
        raise LakeError(_other_messages(*[*in_part, *unknown, *spans][0]))
    if held:
        raise LakeError(_overlap(*next((one for one in held if not _is_within(*one)), held[0])))
    return False


def is_done(batch: WriterBatch | None, version_of: Callable[[str], int | None]) -> bool:
    """Whether the table has had a batch of this number. That they are the same rows only their origin can say: a
    checkpoint that lost its last entries (Spark does not flush them to the disk, and a machine may stop) or came from a
    backup gives the number to other messages."""
    known = None if batch is None else version_of(batch.app_id)
    return batch is not None and known is not None and known >= batch.version


def is_held(ranges: Sequence[SourceRange], span_of: Callable[[Origin], tuple[int, int] | None]) -> bool:
    return all(_is_within(each, span_of(each.origin)) for each in ranges)


def _is_within(part: SourceRange, span: tuple[int, int] | None) -> bool:
    return span is not None and span[0] <= part.first_offset and part.next_offset <= span[1]


def _other_messages(part: SourceRange, span: tuple[int, int] | None) -> str:
    topic, _, partition = part.origin
    holds = "nothing" if span is None else f"up to offset {span[1]}"
    return (
        f"a batch of this number is in the table already, with other messages: of {topic} [{partition}] the table "
        f"holds {holds}, and this batch has {part.first_offset} to {part.next_offset - 1}. The checkpoint is older "
        "than the table; begin anew without it where the table ends (an archive does so after `clarion pipeline reset`)"
    )


def _hole(part: SourceRange, span: tuple[int, int]) -> str:
    topic, _, partition = part.origin
    return (
        f"the table holds {topic} [{partition}] from offset {span[0]} to {span[1]}, but not {part.first_offset} to "
        f"{part.next_offset - 1}, which this batch has: another query archives here too, or they were deleted from the "
        f"table. Write them into a table of their own; here, start with startingOffsets at {span[1]}"
    )


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
