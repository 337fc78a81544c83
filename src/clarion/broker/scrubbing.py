"""Checks sealed files, little by little, for what a disk does to them in silence: every batch against its checksum.

One file after the other, of all partitions, as fast as `clarion.scrub.bytes.per.second` says and never for more than a
small part of the time; when all have been looked at, it begins again, not before a day is over. What does not match is
read again before it counts, by a view that is taken then: a file may have been cut or replaced meanwhile. A damaged log
is noted in its folder; in a cluster the replica leaves then and is filled anew (`unsound`), and on a broker that is
alone a log line, a metric and `clarion doctor` say so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from clarion.broker.threads import in_thread
from clarion.log.batch_headers import DamagedSegment
from clarion.log.compaction import let_others_run
from clarion.log.views import LogView, SegmentView, batches_of
from clarion.replication import Partition
from clarion.wire.batch import has_good_crc
from clarion.world import event_log

if TYPE_CHECKING:
    from clarion.broker.broker import Broker

log = event_log("broker")

_STEP_BYTES: Final = 4 << 20  # in a thread at a time: some tens of milliseconds
_REST: Final = 25  # times as long as a step took, however fast the disk is
_SEALED_AND_ACTIVE: Final = 2  # files
_IDLE_SECONDS: Final = 10.0  # until it is looked again whether there is something to do
_ROUND_SECONDS: Final = 24 * 3600.0  # what was good is looked at again no earlier


class Scrubber:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        self._checked: dict[Partition, int] = {}  # in this round: all sealed files before this offset
        self._waiting: list[Partition] = []  # with files to be looked at
        self._round_began = self._loop.time()
        self._under_way: tuple[Partition, SegmentView, Iterator[int]] | None = None
        self.bytes_total = 0
        self.damaged_total = 0

    async def step(self) -> float:
        """Look at a little; returns for how many seconds to rest."""
        rate = self._broker.config.scrub_bytes_per_second
        if rate <= 0:
            return _IDLE_SECONDS
        self._under_way = self._under_way or self._next()
        if self._under_way is None:
            return _IDLE_SECONDS
        partition, segment, bytes_of_batches = self._under_way
        began, done, is_over = self._loop.time(), 0, True
        try:
            done, is_over = await in_thread(lambda: _advance(bytes_of_batches, _STEP_BYTES))
        except DamagedSegment as damage:
            await self._judge(partition, segment, damage)
        except OSError as error:  # retention may have taken it away; a disk that fails is found by who writes to it
            log.info("scrub_passed_over", segment=segment.path, reason=str(error))
        if is_over:
            self._under_way = None
            self._checked[partition] = segment.next_offset
        self.bytes_total += done
        return max(done / rate, _REST * (self._loop.time() - began))

    def _next(self) -> tuple[Partition, SegmentView, Iterator[int]] | None:
        """The next sealed file that was not looked at in this round."""
        while self._waiting:
            partition = self._waiting[-1]
            if self._is_due(partition):
                view = partition.view()
                for segment in view.segments[:-1]:
                    if self._checked.get(partition, 0) < segment.next_offset <= partition.flushed_offset:
                        return partition, segment, _checked_batches(view, segment)
            self._waiting.pop()
        self._begin_round_if_due()
        self._waiting = [one for one in self._broker.partitions if self._is_due(one)]
        return None

    def _is_due(self, partition: Partition) -> bool:
        """Cheap: of ten thousand partitions most have but one file, which is being written."""
        if partition.segment_count < _SEALED_AND_ACTIVE or partition.is_gone or partition.unsound:
            return False
        return self._checked.get(partition, 0) < partition.end.segment

    def _begin_round_if_due(self) -> None:
        is_over = self._loop.time() - self._round_began >= _ROUND_SECONDS
        self._checked = {} if is_over else {one: at for one, at in self._checked.items() if not one.is_gone}
        if is_over:
            self._round_began = self._loop.time()

    async def _judge(self, partition: Partition, segment: SegmentView, damage: DamagedSegment) -> None:
        """Once more, if the file is still what it was: it may have been cut or replaced while it was read."""
        if partition.is_gone or partition.failure is not None:
            return
        view = partition.view()
        now = next((one for one in view.segments[:-1] if one[:4] == segment[:4]), None)
        if now is None or (now is view.segments[0] and damage.position < view.start_position):
            return  # nobody can read that part any longer
        try:
            await in_thread(lambda: _advance(_checked_batches(view, now), segment.size + 1))
        except DamagedSegment as again:
            if not partition.is_gone and partition.truncations == view.truncations:
                self.damaged_total += 1
                partition.note_damage(f"{again}; found by looking at files that nobody has written to for long")
        except OSError as error:
            log.info("scrub_passed_over", segment=segment.path, reason=str(error))


def _checked_batches(view: LogView, segment: SegmentView) -> Iterator[int]:
    """The size of every batch, once it has been compared with its checksum. DamagedSegment if one does not match."""
    at = 0
    for header, batch in batches_of(view.disk, segment):
        if not has_good_crc(batch, header):
            raise DamagedSegment(segment.path, at)
        at += len(batch)
        yield len(batch)
    if at != segment.size:
        raise DamagedSegment(segment.path, at)


def _advance(batches: Iterator[int], bytes_max: int) -> tuple[int, bool]:
    """In a thread: so many bytes further, or a little more; how many that were, and whether it was all."""
    done = 0
    for size in batches:
        done += size
        let_others_run()
        if done >= bytes_max:
            return done, False
    return done, True
