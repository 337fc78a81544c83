"""A partition as its readers see it: where it begins and ends, what is committed, where leaders' terms ended.

This is the only door to the partition's log. Readers get no further than the watermark; followers are the exception,
who read all there is. Retention and compaction come through here too: they take a view, work it out in a thread, and
swap files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from clarion.log.batch_headers import Reader, read_any
from clarion.log.cleaned import CleanedSegment
from clarion.log.flush import NameSync
from clarion.log.log import Log
from clarion.log.slices import FileSlice
from clarion.log.swap import Swap
from clarion.log.times import TimeSearch
from clarion.log.views import LogView, view_of
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import LogPosition, TopicId, TopicPartition

UNKNOWN_EPOCH: Final = (-1, -1)


class ReadablePartition:
    def __init__(self, tp: TopicPartition, topic_id: TopicId, partition_log: Log, leader_epoch: int) -> None:
        self.tp = tp
        self.topic_id = topic_id
        self.log = partition_log
        self.leader_epoch = leader_epoch
        self.high_watermark: LogPosition = partition_log.end
        self.saved_start = partition_log.start_offset  # as the disk has it

    @property
    def start_offset(self) -> int:
        return self.log.start_offset

    @property
    def next_offset(self) -> int:
        return self.log.next_offset

    @property
    def end(self) -> LogPosition:
        return self.log.end

    @property
    def failure(self) -> OSError | None:
        """Why it takes no more messages: its disk has failed. What there is can still be read."""
        return self.log.failed

    @property
    def unsound(self) -> str:
        """Why nobody should rely on this replica while there are others: damage, or a disk that fails. Else empty."""
        return self.log.damage or ("" if self.log.failed is None else str(self.log.failed))

    @property
    def is_damaged(self) -> bool:
        """What it holds is not what was written: another replica has to be its source."""
        return bool(self.log.damage)

    @property
    def is_short(self) -> bool:
        """When it was opened it ended before what had been flushed: it may lack what was acknowledged."""
        return self.log.is_short

    @property
    def size_bytes(self) -> int:
        return self.log.size_bytes

    @property
    def segment_count(self) -> int:
        return self.log.segment_count

    @property
    def flushed_offset(self) -> int:
        """All before is on disk."""
        return self.log.flushed.offset

    def is_flushed_to(self, offset: int) -> bool:
        return self.flushed_offset >= offset

    def note_damage(self, reason: str) -> None:
        """What it holds is not what was written."""
        self.log.note_damage(reason)

    # Messages

    def read(
        self, offset: int, max_bytes: int, *, at_least_one_batch: bool = True, reader: Reader = read_any
    ) -> list[FileSlice]:
        """What is committed from the offset on; see `Log.read`."""
        return self.log.read(
            offset, max_bytes, self.high_watermark, at_least_one_batch=at_least_one_batch, reader=reader
        )

    def read_around(
        self, offset: int, max_bytes: int, *, reader: Reader = read_any
    ) -> tuple[list[FileSlice], int, LogPosition]:
        """See `Log.read_around`; and where what is committed ends by now."""
        slices, floor = self.log.read_around(offset, max_bytes, self.high_watermark, reader=reader)
        return slices, floor, self.high_watermark

    def batches(self) -> Iterator[bytes]:
        """All that is in the log. To be asked for in the loop; a thread may go through them."""
        return self.log.batches(self.log.start_offset)

    def search_times(self) -> TimeSearch:
        """In the loop, for a search in a thread."""
        return self.log.search_times(self.high_watermark)

    # Leaders' terms (KIP-101, KIP-320)

    @property
    def latest_epoch(self) -> int:
        """The latest in which a leader has written into this log; -1 if none has."""
        return self.log.epochs.latest

    def epoch_at(self, offset: int) -> int:
        return self.log.epochs.epoch_at(offset)

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """The greatest epoch up to this one that wrote something, and the offset where it ended.

        A term in which nothing was written leaves no trace in the log, but clients have heard of it, from Metadata and
        ListOffsets. To call it unknown would tell them that the log was cut, and they would start again from the
        beginning.
        """
        if epoch < 0 or epoch > self.leader_epoch:
            return UNKNOWN_EPOCH
        if epoch == self.leader_epoch:
            return epoch, self.log.next_offset
        latest = self.log.epochs.latest
        if epoch > latest:
            return (latest if latest >= 0 else epoch), self.log.next_offset
        return self.log.epochs.end_offset_for(epoch)

    def diverging_epoch(self, last_fetched_epoch: int, next_offset: int) -> tuple[int, int] | None:
        """A reader that followed a log which has since lost its tail learns where the two part (KIP-595)."""
        if last_fetched_epoch < 0:
            return None
        known = self.end_of_epoch(last_fetched_epoch)
        if known == UNKNOWN_EPOCH or next_offset < self.log.start_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)  # nothing here tells where the two logs part
        epoch, end_offset = known
        if epoch < last_fetched_epoch or end_offset < next_offset:
            return epoch, end_offset
        return None

    # Files, for whoever keeps house

    def view(self) -> LogView:
        """As it is now, for a thread to work from."""
        return view_of(self.log)

    def swap(self, view: LogView, cleaned: CleanedSegment) -> Swap:
        return Swap(self.log, view, cleaned)

    @property
    def cleaned_to(self) -> int:
        """Compaction has seen all keys up to there, and nothing of it has been cut since."""
        return self.log.cleaned_to

    def note_cleaned(self, view: LogView, offset: int) -> None:
        self.log.note_cleaned(view, offset)

    @property
    def truncations(self) -> int:
        """How often its end was cut: a view of before is one of another log."""
        return self.log.truncations

    @property
    def is_cut_noted(self) -> bool:
        """It was cut after the last checkpoint was taken, or a crash left what says so."""
        return self.log.cut_at is not None

    def forget_cut(self, truncations: int) -> NameSync | None:
        """In the loop: a checkpoint that was taken after so many cuts is on disk. Then `run`, `finish_name_sync`."""
        return self.log.forget_cut(truncations)

    @property
    def told_start(self) -> int:
        """What a leader may believe of where this log begins: it is on disk."""
        return min(self.saved_start, self.log.start_offset)

    def raise_start(self, offset: int) -> None:
        """For readers; `drop_below_start` takes the files. In between the caller may have the new start saved."""
        self.log.raise_start(offset)

    @property
    def has_files_below_start(self) -> bool:
        return self.log.has_files_below_start

    def has_files_below(self, offset: int) -> bool:
        """Whether a sealed file has nothing from there on."""
        return self.log.has_files_below(offset)

    def drop_below_start(self, *, is_start_saved: bool) -> None:
        self.log.drop_below_start(is_start_saved=is_start_saved)

    def take_deleted(self, now_ms: int, *, at_once: bool) -> list[str]:
        """Files that may be removed now, in a thread."""
        return self.log.take_deleted(now_ms, at_once=at_once)

    def begin_name_sync(self) -> NameSync | None:
        return self.log.begin_name_sync()

    def finish_name_sync(self, sync: NameSync) -> None:
        self.log.finish_name_sync(sync)
