"""What an interrupted step may have left in a folder, and how it is finished or undone at the next start.

    .tmp      a small file that was being replaced      removed, unless it is the mark of a cut
    .deleted  a segment that nobody wants any longer    removed
    .cleaned  a compacted segment that was not finished removed
    .swap     a finished one on its way in              takes the place of the segments it covers
    .corrupt  what recovery cut away                    left alone, for whoever wants to look into it

A writer of several renames .cleaned to .swap from the last to the first, as Kafka does: while one .cleaned is left, the
.swap files behind it are not complete and go too. An index without its segment is removed.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from clarion.log.batch_headers import SWEEP_BYTES, DamagedSegment, iter_batch_headers
from clarion.log.cut_mark import mark_of
from clarion.log.folder import DIGITS, INDEX, LOG, SEGMENT_FILES, TIME_INDEX, Folder, base_offset_of, remove_if_there
from clarion.world import event_log

log = event_log("log")

_SUFFIXES: Final = (".tmp", ".deleted", ".cleaned", ".swap")


def segment_bases(folder: Folder, names: list[str]) -> list[int]:
    """The base offsets of the segments in a folder, after everything unfinished in it has been settled."""
    names = [name for name in names if mark_of(name) is None]
    bases = [base for name in names if (base := base_offset_of(name)) is not None]
    if any(name.endswith(_SUFFIXES) for name in names):
        bases = _settle(folder, names, bases)
        folder.disk.sync_folder(folder.path)
    if len(names) > len(bases):
        _remove_stray_indexes(folder, names, bases)
    return bases


def _settle(folder: Folder, names: list[str], bases: list[int]) -> list[int]:
    swaps = _bases_of(names, ".swap")
    cleaned = _bases_of(names, ".cleaned")
    unfinished = {base for base in swaps if cleaned and base >= cleaned[0]}
    for name in names:
        is_undone = name.endswith(".swap") and name[:DIGITS].isdecimal() and int(name[:DIGITS]) in unfinished
        if is_undone or name.endswith((".tmp", ".deleted", ".cleaned")):
            folder.disk.remove(f"{folder.path}/{name}")
    for base in swaps:
        if base not in unfinished:
            bases = _swap_in(folder, base, bases)
    return bases


def _bases_of(names: list[str], suffix: str) -> list[int]:
    return [base for name in names if (base := base_offset_of(name, LOG + suffix)) is not None]


def _swap_in(folder: Folder, base: int, bases: list[int]) -> list[int]:
    """Finish a swap: remove what the new segment covers, then give it its name."""
    end = _end_of_swap(folder, base)
    covered = bases[bisect_left(bases, base) : bisect_left(bases, max(end, base + 1))]
    for old in covered:
        folder.remove_segment(old)
    for kind in (TIME_INDEX, INDEX, LOG):
        path = folder.file(base, kind)
        if folder.disk.exists(path + ".swap"):
            folder.disk.rename(path + ".swap", path)
    log.info("swap_finished", folder=folder.path, segment=base, covered=len(covered))
    return sorted({*bases, base} - ({*covered} - {base}))


def _end_of_swap(folder: Folder, base: int) -> int:
    file = folder.disk.open(folder.file(base, LOG) + ".swap")
    end = base
    try:
        for header, _ in iter_batch_headers(file, 0, file.size(), SWEEP_BYTES):
            end = header.next_offset
    except DamagedSegment as damage:
        log.error("segment_damaged", segment=file.path, position=damage.position)
    finally:
        file.close()
    return end


def _remove_stray_indexes(folder: Folder, names: list[str], bases: list[int]) -> None:
    known = set(bases)
    for name in names:
        for kind in SEGMENT_FILES[1:]:
            base = base_offset_of(name, kind)
            if base is not None and base not in known:
                remove_if_there(folder.disk, f"{folder.path}/{name}")
