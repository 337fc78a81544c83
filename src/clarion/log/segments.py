"""The segments of one log, in order: all sealed but the last. What is done to their files as a whole is done here."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import chain

from clarion.log.active import ActiveSegment
from clarion.log.cleaned import CleanedSegment
from clarion.log.folder import LOG, SEGMENT_FILES, Folder, rename_if_there, rename_segment
from clarion.log.segment import Segment
from clarion.model.ids import LogPosition
from clarion.world import NO_DESCRIPTOR, event_log

log = event_log("log")


class Segments:
    __slots__ = ("_cuts", "_deleted", "_folder", "_sealed_bytes", "active", "sealed")

    def __init__(self, folder: Folder, sealed: list[Segment], active: ActiveSegment) -> None:
        self.sealed = sealed
        self.active = active
        self._folder = folder
        self._cuts: dict[int, int] = {}  # by base offset: how often a torn write was cut off since the last sync
        self._sealed_bytes: int | None = None  # counted on first use
        self._deleted: list[tuple[int | None, str]] = []  # when a sweep saw it first, path

    @property
    def all(self) -> list[Segment]:
        return [*self.sealed, self.active]

    @property
    def first(self) -> Segment:
        return self.sealed[0] if self.sealed else self.active

    @property
    def size_bytes(self) -> int:
        if self._sealed_bytes is None:
            self._sealed_bytes = sum(segment.size for segment in self.sealed)
        return self._sealed_bytes + self.active.size

    def from_offset(self, offset: int) -> Iterable[Segment]:
        """The segment that holds the offset, and all behind it."""
        active = self.active
        if offset >= active.base_offset:
            return (active,)
        first = max(0, _number(self.sealed, offset + 1) - 1)
        return chain(map(self.sealed.__getitem__, range(first, len(self.sealed))), (active,))

    def dirty_since(self, flushed: LogPosition) -> list[Segment]:
        """Those with bytes behind the position."""
        candidates: Iterable[Segment] = (self.active,)
        if flushed.segment != self.active.base_offset:
            candidates = [*self.sealed[_number(self.sealed, flushed.segment) :], self.active]
        return [
            segment
            for segment in candidates
            if segment.size > (flushed.position if segment.base_offset == flushed.segment else 0)
            or segment.base_offset in self._cuts
        ]

    @property
    def cuts(self) -> dict[int, int]:
        """What `mark_synced` is told after a sync that began now."""
        return dict(self._cuts)

    def note_cut(self) -> None:
        """A torn write was cut off the active segment. Until its next sync a power loss may bring it back."""
        base = self.active.base_offset
        self._cuts[base] = self._cuts.get(base, 0) + 1

    def mark_synced(self, sizes: Iterable[tuple[Segment, int]], cuts: dict[int, int]) -> None:
        for base, count in cuts.items():
            if self._cuts.get(base) == count:
                del self._cuts[base]
        for synced, size in sizes:
            number = _number(self.sealed, synced.base_offset)
            same = self.sealed[number] if number < len(self.sealed) else self.active
            # One that has taken its place meanwhile was synced whole before it came, and may be shorter.
            if same.base_offset == synced.base_offset and same.synced_bytes >= 0:
                assert size <= same.size, f"{size} bytes of {same.path} are synced, which has {same.size}"
                same.synced_bytes = max(same.synced_bytes, size)

    def forget(self) -> None:
        """Close every file."""
        for segment in self.all:
            segment.forget()

    # Changing

    def prepare_roll(self) -> None:
        """While nothing has changed yet: this may need the disk. Then `roll`, when all names last."""
        if self.active.size:
            self.active.prepare_seal()

    def roll(self, base_offset: int, now_ms: int) -> list[str]:
        """Seal the active segment and begin another; returns index files to sync. An empty one goes away."""
        self.prepare_roll()
        old = self.active
        self.active = create(self._folder, base_offset, now_ms)
        self._folder.changes += 1
        if not old.size:
            old.forget()
            self._folder.remove_segment(old.base_offset)
            return []
        sealed, paths = old.seal()
        assert sealed.base_offset < base_offset, f"segment {base_offset} does not come behind {sealed.base_offset}"
        self.sealed.append(sealed)
        if self._sealed_bytes is not None:
            self._sealed_bytes += sealed.size
        return paths

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Cut every batch that reaches the offset, for good; the last segment left becomes active."""
        self._drop_from(offset, now_ms)
        active = self.active
        found = active.find(offset, active.size)
        if found is not None:
            active.cut(found[0], offset)
            active.handle().sync()

    def _drop_from(self, offset: int, now_ms: int) -> None:
        """From the end: a crash in between leaves a shorter log, not one with a hole."""
        segments = self.all
        kept = segments[: _number(segments, offset)]
        if len(kept) == len(segments):
            return
        for segment in reversed(segments[len(kept) :]):
            self._remove(segment)
        self._folder.disk.sync_folder(self._folder.path)
        self.sealed = kept
        self.active = _grow_again(kept.pop(), now_ms)
        self._sealed_bytes = None

    def restart_at(self, offset: int, now_ms: int) -> None:
        for segment in reversed(self.all):
            self._remove(segment)
        self.sealed = []
        self._sealed_bytes = 0
        self.active = create(self._folder, offset, now_ms)
        self._folder.disk.sync_folder(self._folder.path)

    def drop_below(self, offset: int, *, must_last: bool = True) -> None:
        """Rename segments that end before the offset to .deleted, from the first on."""
        count = 0
        while self.is_first_below(offset):
            self._delete(self.sealed[0])
            del self.sealed[0]
            self._sealed_bytes = None
            count += 1
        if count > 1 and must_last:  # one of them coming back after a crash is the start it was
            self._make_names_last()
        self._folder.changes += count > 0

    def is_first_below(self, offset: int) -> bool:
        """Whether `drop_below` would find something."""
        return bool(self.sealed) and self._base_after(0) <= offset

    def replace(self, cleaned: CleanedSegment) -> None:
        """Kafka's order of renames: at every moment a start finds either all of the old or all of the new."""
        gone = set(cleaned.replaces)
        old = [segment for segment in self.sealed if segment.base_offset in gone]
        assert len(old) == len(gone), "only sealed segments are replaced"
        for segment in old:
            self._delete(segment)
        rename_segment(self._folder, cleaned.base_offset, ".swap", "")
        fresh = Segment(self._folder, cleaned.base_offset, cleaned.size)
        fresh.appended_ms = old[-1].appended_ms
        number = _number(self.sealed, cleaned.base_offset)
        self.sealed[number : number + len(old)] = [fresh]
        self._sealed_bytes = None
        self._folder.changes += 1

    def _make_names_last(self) -> None:
        try:
            self._folder.disk.sync_folder(self._folder.path)
        except OSError as error:
            if error.errno not in NO_DESCRIPTOR:
                raise
            log.warning("folder_sync_put_off", folder=self._folder.path, reason=str(error))  # the next flush does it

    def restart_times(self, now_ms: int) -> None:
        """The clock was wrong: as if all had been written, and what is deleted taken out, just now."""
        for segment in self.all:
            segment.appended_ms = now_ms
        self._deleted = [(None, path) for _, path in self._deleted]

    def take_deleted(self, now_ms: int, delay_ms: int) -> list[str]:
        if not self._deleted:
            return []
        due = [
            path
            for seen_ms, path in self._deleted
            if delay_ms < 0 or (seen_ms is not None and now_ms - seen_ms >= delay_ms)
        ]
        taken = set(due)
        self._deleted = [
            (now_ms if seen_ms is None else seen_ms, path) for seen_ms, path in self._deleted if path not in taken
        ]
        return due

    def _base_after(self, number: int) -> int:
        return self.sealed[number + 1].base_offset if number + 1 < len(self.sealed) else self.active.base_offset

    def _delete(self, segment: Segment) -> None:
        segment.forget()
        for kind in SEGMENT_FILES:
            path = self._folder.file(segment.base_offset, kind)
            rename_if_there(self._folder.disk, path, path + ".deleted")
            self._deleted.append((None, path + ".deleted"))

    def _remove(self, segment: Segment) -> None:
        segment.forget()
        self._folder.remove_segment(segment.base_offset)
        self._folder.changes += 1


def create(folder: Folder, base_offset: int, now_ms: int) -> ActiveSegment:
    """A new, empty active segment; its file exists when this returns."""
    segment = ActiveSegment(folder, base_offset, 0, now_ms)
    segment.file = folder.files.open(segment, folder.file(base_offset, LOG), create=True)
    return segment


def _grow_again(sealed: Segment, now_ms: int) -> ActiveSegment:
    """The same segment as an active one. Its file stays open: nobody else is told of an error of a writeback."""
    segment = ActiveSegment(sealed.folder, sealed.base_offset, sealed.size, now_ms)
    if sealed.is_dirty:
        segment.synced_bytes = sealed.synced_bytes
    segment.file = sealed.file
    sealed.forget()
    if segment.file is not None:
        segment.folder.files.adopt(segment)
    return segment


def end_in(segment: Segment, limit: LogPosition) -> int:
    """Where reading this segment ends under the limit."""
    if segment.base_offset == limit.segment:
        return min(limit.position, segment.size)
    return segment.size if segment.base_offset < limit.segment else 0


def _number(segments: list[Segment], base_offset: int) -> int:
    """The number of the first segment that begins at the offset or behind it."""
    return bisect_left(segments, base_offset, key=lambda segment: segment.base_offset)
