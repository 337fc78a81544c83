"""What one answer to ShareFetch brought of one partition, and the messages in it.

The bytes are looked into when the application asks for them, in its own thread: the event loop goes on meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from clarion.client.held_partition import HeldPartition
from clarion.client.received import ReceivedMessage
from clarion.model.errors import KafkaError
from clarion.wire.batch import HEADER_BYTES, read_header
from clarion.wire.messages.share_groups import AcquiredRecords
from clarion.wire.records import read_headers, read_whole_header, records_data, scan_spans

log = logging.getLogger("clarion.client")


class QueueChunk:
    __slots__ = ("_acquired", "_records", "arrived", "count", "source", "until")

    def __init__(
        self,
        source: HeldPartition,
        records: bytes,
        acquired: Sequence[AcquiredRecords],
        arrived: float,
        lock_seconds: float,
    ) -> None:
        self.source = source
        self._records = records
        self._acquired = acquired
        self.count = sum(run.last_offset - run.first_offset + 1 for run in acquired)
        self.arrived = arrived
        self.until = arrived + lock_seconds  # then others may have them

    def offsets(self) -> Iterator[int]:
        for run in self._acquired:
            yield from range(run.first_offset, run.last_offset + 1)

    def messages(self) -> list[ReceivedMessage]:
        """Those that are still held. What was acquired and is not in the log is told as such."""
        found: list[ReceivedMessage] = []
        there: set[int] = set()
        runs = list(self._acquired)
        at, last, view = 0, -1, memoryview(self._records)
        while runs and at + HEADER_BYTES <= len(view):
            header = read_header(view, at)
            end = at + header.size_bytes
            if end > len(view):
                break  # cut off; what is in it comes again
            last = header.base_offset + header.last_offset_delta
            if not header.is_control and last >= runs[0].first_offset:
                try:
                    self._read(view[at:end], runs, found, there)
                except KafkaError as error:  # what is around it can be read all the same
                    log.warning("unreadable: %s-%s@%s, %s", *self.source.place, header.base_offset, error.message)
                    there |= self.source.release_within(header.base_offset, last)
            at = end
        if len(there) != self.count:
            self.source.note_gaps(offset for offset in self.offsets() if offset <= last and offset not in there)
        return found

    def _read(
        self, batch: memoryview, runs: list[AcquiredRecords], found: list[ReceivedMessage], there: set[int]
    ) -> None:
        """The records of the runs that were acquired: batches come whole, and others may have the rest of them.

        In one piece, because it runs once per record.
        """
        header = read_whole_header(batch)
        data = records_data(batch, header)
        base_offset, base_timestamp = header.base_offset, header.base_timestamp
        append_time = header.max_timestamp if header.is_log_append_time else None
        source, held = self.source, self.source.held
        first, last, deliveries = _ends(runs[0])
        for _, _, _, shift, delta, key, value_at, headers_at in scan_spans(data, header):
            offset = base_offset + delta
            while offset > last:
                del runs[0]
                if not runs:
                    return
                first, last, deliveries = _ends(runs[0])
            if offset < first:
                continue
            there.add(offset)
            if held.get(offset) == deliveries:
                found.append(
                    ReceivedMessage(
                        source,
                        offset,
                        base_timestamp + shift if append_time is None else append_time,
                        key,
                        None if value_at < 0 else data[value_at:headers_at],
                        read_headers(data, headers_at) if data[headers_at] else (),
                        deliveries,
                    )
                )


def _ends(run: AcquiredRecords) -> tuple[int, int, int]:
    return run.first_offset, run.last_offset, run.delivery_count
