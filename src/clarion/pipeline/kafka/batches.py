"""The record batches inside a fetch response: found, checked, and chosen, before any record is looked at.

A response may hold data of several partitions, each a run of batches whose last one may be cut off. Finding them is a
loop that hops over lengths; their headers are then read all at once into a numpy table. From the table come the next
offset to ask for (so that the next fetch can be under way while this one is decoded) and the batches worth decoding:
those with wanted offsets, without control batches and without the batches of aborted transactions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clarion.pipeline.kafka.crc import crc32c
from clarion.pipeline.kafka.errors import CorruptDataError

Buffer = bytes | bytearray | memoryview

HEADER_BYTES: Final = 61
LENGTH_PREFIX_BYTES: Final = 12
RECORD_BYTES_MIN: Final = 7  # length, attributes, timestamp delta, offset delta, key, value, header count: a byte each
COMPRESSION_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20

# The header as it lies on the wire (see `clarion.wire.batch` for the same table in words).
HEADER: Final = np.dtype(
    [
        ("base_offset", ">i8"),
        ("batch_length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("record_count", ">i4"),
    ]
)
assert HEADER.itemsize == HEADER_BYTES

_LENGTH = Struct(">i")
_TIMESTAMP_MAX: Final = 2**61  # milliseconds: seventy million years, and no sum with a delta leaves 64 bits


class BatchRun(NamedTuple):
    """One partition's data in a response, and which of its offsets are wanted."""

    partition: str  # `topic-3`, for messages to people
    at: int
    length: int
    start_offset: int
    end_offset: int
    aborted: tuple[tuple[int, int], ...] = ()  # (producer id, first offset) of aborted transactions


@dataclass(frozen=True, slots=True)
class FetchedBatches:
    """A table of whole batches: parallel arrays, one entry per batch."""

    at: NDArray[np.int64]
    run: NDArray[np.int64]  # which of the runs it belongs to
    header: NDArray[Any]  # of HEADER

    def __getitem__(self, chosen: Any) -> FetchedBatches:
        return FetchedBatches(self.at[chosen], self.run[chosen], self.header[chosen])

    @property
    def count(self) -> int:
        return len(self.at)

    @property
    def end(self) -> NDArray[np.int64]:
        end: NDArray[np.int64] = self.at + self.header["batch_length"] + LENGTH_PREFIX_BYTES
        return end

    @property
    def next_offset(self) -> NDArray[np.int64]:
        following: NDArray[np.int64] = (
            self.header["base_offset"] + self.header["last_offset_delta"].astype(np.int64) + 1
        )
        return following


def find_batches(frame: Buffer, runs: Sequence[BatchRun]) -> FetchedBatches:
    """Every whole batch of these runs, with believable headers."""
    at: list[int] = []
    counts = [_hop(frame, run, at) for run in runs]
    places = np.array(at, np.int64)
    batches = FetchedBatches(places, np.repeat(np.arange(len(runs)), counts), _read_headers(frame, places))
    _check(batches, runs)
    return batches


def next_offsets(batches: FetchedBatches, runs: Sequence[BatchRun]) -> list[int]:
    """Where to go on in each run: behind its last whole batch, or where it was."""
    following = np.array([run.start_offset for run in runs], np.int64)
    np.maximum.at(following, batches.run, batches.next_offset)
    offsets: list[int] = following.tolist()
    return offsets


def choose(batches: FetchedBatches, runs: Sequence[BatchRun]) -> FetchedBatches:
    """The batches that hold messages for the reader."""
    start = np.array([run.start_offset for run in runs], np.int64)[batches.run]
    end = np.array([run.end_offset for run in runs], np.int64)[batches.run]
    attributes = batches.header["attributes"]
    wanted = (batches.next_offset > start) & (batches.header["base_offset"] < end)
    wanted &= (attributes & CONTROL) == 0
    wanted &= batches.header["record_count"] > 0
    if any(run.aborted for run in runs):
        wanted &= ~_are_aborted(batches, runs)
    return batches if wanted.all() else batches[wanted]


def check_crcs(frame: Buffer, batches: FetchedBatches, runs: Sequence[BatchRun]) -> None:
    view = memoryview(frame)
    ends = batches.end.tolist()
    for nth, (at, crc) in enumerate(zip(batches.at.tolist(), batches.header["crc"].tolist(), strict=True)):
        if crc32c(view[at + 21 : ends[nth]]) != crc:
            raise corrupt(batches, nth, runs, "it does not match its CRC")


def corrupt(batches: FetchedBatches, nth: int, runs: Sequence[BatchRun], what: str) -> CorruptDataError:
    """An error that names the place."""
    offset = int(batches.header["base_offset"][nth])
    return CorruptDataError(f"{runs[int(batches.run[nth])].partition}: the batch at offset {offset} is damaged: {what}")


def _hop(frame: Buffer, run: BatchRun, found: list[int]) -> int:
    """Note where the whole batches of a run begin; how many they are."""
    at, end, before = run.at, run.at + run.length, len(found)
    read_length = _LENGTH.unpack_from
    while at + HEADER_BYTES <= end:
        (length,) = read_length(frame, at + 8)
        if length < HEADER_BYTES - LENGTH_PREFIX_BYTES:
            raise CorruptDataError(
                f"{run.partition}: after offset {run.start_offset} comes a batch that says it has {length} bytes"
            )
        following = at + LENGTH_PREFIX_BYTES + length
        if following > end:
            break
        found.append(at)
        at = following
    return len(found) - before


def _read_headers(frame: Buffer, at: NDArray[np.int64]) -> NDArray[Any]:
    data = np.frombuffer(frame, np.uint8)
    if not len(at):
        return np.empty(0, HEADER.newbyteorder("="))
    windows = np.lib.stride_tricks.sliding_window_view(data, HEADER_BYTES)
    return windows[at].view(HEADER)[:, 0].astype(HEADER.newbyteorder("="))


def _check(batches: FetchedBatches, runs: Sequence[BatchRun]) -> None:
    """Refuse headers that contradict themselves."""
    header = batches.header
    count = header["record_count"].astype(np.int64)
    rules: Iterable[tuple[NDArray[np.bool_], str]] = (
        (header["magic"] != 2, "its message format is not v2"),
        ((count < 0) | (header["last_offset_delta"] < count - 1), "its record count does not fit its offsets"),
        (
            ((header["attributes"] & COMPRESSION_MASK) == 0)
            & (count * RECORD_BYTES_MIN > header["batch_length"] + LENGTH_PREFIX_BYTES - HEADER_BYTES),
            "its record count does not fit its length",
        ),
        (header["base_offset"] < 0, "its offset is negative"),
        (np.abs(header["base_timestamp"]) > _TIMESTAMP_MAX, "its timestamp is out of range"),
    )
    for broken, what in rules:
        if broken.any():
            raise corrupt(batches, int(broken.argmax()), runs, what)


def _are_aborted(batches: FetchedBatches, runs: Sequence[BatchRun]) -> NDArray[np.bool_]:
    """Which batches belong to an aborted transaction: from its first offset to its producer's next control batch."""
    hidden = np.zeros(batches.count, np.bool_)
    for index, run in enumerate(runs):
        waiting = sorted(run.aborted, key=lambda one: one[1])
        aborting: set[int] = set()
        for nth in np.flatnonzero(batches.run == index).tolist() if waiting else ():
            row = batches.header[nth]
            while waiting and waiting[0][1] <= int(row["base_offset"]) + int(row["last_offset_delta"]):
                aborting.add(waiting.pop(0)[0])
            producer = int(row["producer_id"])
            if row["attributes"] & CONTROL:
                aborting.discard(producer)
            elif row["attributes"] & TRANSACTIONAL and producer in aborting:
                hidden[nth] = True
    return hidden
