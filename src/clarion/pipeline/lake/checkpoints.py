"""Spark's note of which offsets a batch holds, brought to the disk before a table says that it has the batch.

Spark does not flush its checkpoint. If a machine stops, the note of the last batches may be gone while the table, which
is flushed, has them: their numbers would be given to other messages, and a table that knows a batch by its number alone
would leave those out. Only of checkpoints on this machine; a store that others keep does as it does.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def flush_offsets(checkpoint: str | None, batch_id: int) -> None:
    """To be called on the driver when a batch is planned and before it is committed anywhere."""
    place = (checkpoint or "").removeprefix("file://").removeprefix("file:")
    if not place or ":" in place:
        return
    folder = Path(place).absolute()
    places = [folder / "offsets" / str(batch_id), folder / "offsets"]
    if batch_id == 0:  # the query's id, and the folder itself: they stay as they are from now on
        places += [folder / "metadata", folder, folder.parent]
    for each in places:
        with suppress(FileNotFoundError):
            _flush(each)


def _flush(place: Path) -> None:
    handle = os.open(place, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
