"""That a log has been cut since the last checkpoint, told by the name of an empty file in its folder.

    <start>-<end>-<at>.cutting.tmp   a cut is under way: the next start finishes it, and nothing from `at` on stays
    <start>-<end>.cut.tmp            the log begins at `start`; of what the checkpoint says, what lies below `end` holds

A checkpoint is written every 30 seconds, and speaks of the log as it was then. After a cut other messages come to be at
those offsets: what it says is flushed or committed may be neither, and the log may begin elsewhere by now. So a cut
begins with a mark that is on disk, and ends with one that says what has become of it. The first checkpoint that was
taken after it removes it. There is one at most, which a rename turns into the next: that needs no room on the disk.

A version that does not know of marks goes on with the log as it is, and one that comes back later must not cut what has
been written meanwhile. So a mark looks like what every version, from the first one on, removes for good when it opens a
log: a small file that was being replaced.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from clarion.log.folder import DIGITS, Folder

CUT: Final = ".cut.tmp"
CUTTING: Final = ".cutting.tmp"
_NOT_UNDER_WAY: Final = -1


class CutMark(NamedTuple):
    start: int
    end: int
    at: int = _NOT_UNDER_WAY

    @property
    def is_under_way(self) -> bool:
        return self.at != _NOT_UNDER_WAY

    @property
    def name(self) -> str:
        at, kind = (f"-{self.at:0{DIGITS}d}", CUTTING) if self.is_under_way else ("", CUT)
        return f"{self.start:0{DIGITS}d}-{self.end:0{DIGITS}d}{at}{kind}"


def take_mark(folder: Folder, names: Iterable[str]) -> CutMark | None:
    """At a start. Beside that of a cut that began a power loss may bring back one that was taken away before."""
    marks = sorted(find_marks(names), key=lambda mark: mark.at, reverse=True)
    for other in marks[1:]:
        folder.disk.remove(f"{folder.path}/{other.name}")
    if len(marks) > 1:
        folder.disk.sync_folder(folder.path)
    return marks[0] if marks else None


def find_marks(names: Iterable[str]) -> list[CutMark]:
    return [mark for name in names if (mark := mark_of(name)) is not None]


def mark_of(name: str) -> CutMark | None:
    if not name.endswith((CUT, CUTTING)):
        return None
    fields = name.partition(".")[0].split("-")
    if not 2 <= len(fields) <= 3 or not all(one.isdecimal() and one.isascii() for one in fields):
        return None
    mark = CutMark(*map(int, fields))
    return mark if mark.name == name else None


def drop_cut(folder: Folder, bases: list[int], mark: CutMark) -> list[int]:
    """Remove the segments that the cut was to remove, all if the log was to begin anew; returns those that stay."""
    kept = [base for base in bases if base < mark.at and mark.start < mark.at]
    for base in reversed(bases[len(kept) :]):
        folder.remove_segment(base)
    if len(kept) < len(bases):
        folder.disk.sync_folder(folder.path)
    return kept
