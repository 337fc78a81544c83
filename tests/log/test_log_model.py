"""A log against a list: whatever is done to it, it holds what the list holds."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from clarion.log.files import FileCache
from clarion.wire.batch import read_header
from tests.log.batches import SMALL, append, open_log, sweep_deleted
from tests.sim.disk import SimDisk


class LogAndList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk = SimDisk()
        self.files = FileCache(self.disk, limit=2, index_bytes_max=200)
        self.list: list[bytes] = []  # every batch that is not cut off at the end
        self.start = 0
        self.epoch = 0
        self.clock = 1000
        self.log = open_log(self.disk, files=self.files)

    @rule(count=st.integers(1, 4), size=st.integers(0, 120), gap=st.sampled_from([0, 0, 0, 3]), step=st.integers(-5, 9))
    def append(self, count: int, size: int, gap: int, step: int) -> None:
        self.clock += step
        self.list.append(append(self.log, count, size, self.epoch, self.clock, gap))

    @rule()
    def roll(self) -> None:
        self.log.roll(self.clock)

    @rule()
    def flush(self) -> None:
        self.log.flush()
        assert self.log.flushed == self.log.end

    @rule()
    def new_epoch(self) -> None:
        self.epoch += 1

    @rule(part=st.floats(0, 1))
    def truncate(self, part: float) -> None:
        offset = self.start + round((self.log.next_offset - self.start) * part)
        self.log.truncate_to(offset)
        self.list = [one for one in self.list if read_header(one).last_offset < offset]
        self.start = min(self.start, self.log.next_offset)
        self.epoch += 1

    @rule(part=st.floats(0, 1))
    def advance_start(self, part: float) -> None:
        self.start = self.start + round((self.log.next_offset - self.start) * part)
        self.log.advance_start(self.start)

    @rule()
    def sweep(self) -> None:
        self.clock += SMALL.file_delete_delay_ms
        sweep_deleted(self.log, self.clock)

    @rule(is_clean=st.booleans())
    def open_again(self, is_clean: bool) -> None:
        if is_clean:
            self.log.close()
        else:
            self.log.abandon()
        epochs = self.epochs
        self.log = open_log(self.disk, clean=is_clean, start_offset=self.start, files=self.files)
        assert self.log.recovery.cut_bytes == 0
        assert self.epochs == epochs

    @property
    def epochs(self) -> list[int]:
        """Of every batch. Of a gap before the first one nobody knows it any more when its segment is gone."""
        headers = [header for header, _ in self.log.batch_headers(self.start)]
        return [self.log.epochs.epoch_at(one.last_offset) for one in headers if one.last_offset >= self.start]

    @invariant()
    def holds_the_same(self) -> None:
        expected = [one for one in self.list if read_header(one).last_offset >= self.start]
        assert list(self.log.batches(self.start)) == expected
        assert self.log.start_offset == self.start
        if expected:
            assert self.log.next_offset == read_header(expected[-1]).next_offset
        assert self.log.flushed <= self.log.end
        assert self.files.open_count <= 2 + sum(1 for segment in self.log.segments if segment.is_dirty)

    @precondition(lambda self: self.log.next_offset > self.start)
    @rule(part=st.floats(0, 1), limit_part=st.floats(0, 1), max_bytes=st.integers(1, 600), whole=st.booleans())
    def read(self, part: float, limit_part: float, max_bytes: int, whole: bool) -> None:
        positions = [position for _, position in self.log.batch_headers(self.start)] + [self.log.end]
        limit = positions[round((len(positions) - 1) * limit_part)]
        offset = min(self.start + round((self.log.next_offset - self.start) * part), self.log.next_offset - 1)
        slices = self.log.read(offset, max_bytes, limit, at_least_one_batch=whole)
        data = b"".join(one.read() for one in slices)
        wanted = [one for one in self.list if offset <= read_header(one).last_offset < limit.offset]
        assert b"".join(wanted).startswith(data)
        if whole and wanted:
            assert len(data) >= len(wanted[0])
        if len(data) > max_bytes:
            assert data == wanted[0]
        if not whole and wanted and len(wanted[0]) <= max_bytes:
            assert len(data) >= len(wanted[0])

    @precondition(lambda self: self.list)
    @rule(step=st.integers(-10, 10))
    def search_by_time(self, step: int) -> None:
        wanted = self.clock + step
        times = [
            (header.base_timestamp + number, header.base_offset + number)
            for header in map(read_header, self.list)
            for number in range(header.record_count)
            if header.base_offset + number >= self.start
        ]
        first = next((one for one in times if one[0] >= wanted), None)
        assert self.log.offset_for_time(wanted) == first
        latest = max((time for time, _ in times), default=-1)
        assert self.log.max_timestamp() == next((one for one in times if one[0] == latest), (-1, -1))


TestLogAndList = LogAndList.TestCase
TestLogAndList.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
