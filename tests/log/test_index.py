"""The sparse indexes against a full scan."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clarion.log.index import IndexBuilder, OffsetIndex, TimeIndex

BASE = 1000
batches = st.lists(st.tuples(st.integers(1, 5), st.integers(61, 400), st.integers(-1, 50)), max_size=60)


def build(sizes: list[tuple[int, int, int]]) -> tuple[IndexBuilder, list[tuple[int, int, int]]]:
    """The builder, and (last offset, position, timestamp) of every batch."""
    builder = IndexBuilder.empty(BASE, 300)
    laid, offset, position = [], BASE, 0
    for count, size, timestamp in sizes:
        last = offset + count - 1
        builder.add(last, position, size, timestamp)
        laid.append((last, position, timestamp))
        offset, position = last + 1, position + size
    builder.seal()
    return builder, laid


@given(batches, st.integers(BASE - 1, BASE + 400))
def test_the_offset_index_never_leads_past_the_batch(sizes: list[tuple[int, int, int]], offset: int) -> None:
    builder, laid = build(sizes)
    entry = builder.index.lookup(offset)
    reached = next((position for last, position, _ in laid if last >= offset), None)
    if entry is not None:
        assert entry in [(last, position) for last, position, _ in laid]
        assert entry[0] <= offset
        assert reached is None or entry[1] <= reached


@given(batches, st.integers(-1, 60))
def test_the_time_index_never_leads_past_the_first_batch_as_late_as_that(
    sizes: list[tuple[int, int, int]], time: int
) -> None:
    builder, laid = build(sizes)
    entry = builder.times.lookup(time)
    first = next((last for last, _, timestamp in laid if timestamp >= time), None)
    if entry is not None and first is not None:
        assert entry[1] <= first
    latest = max((timestamp for _, _, timestamp in laid), default=-1)
    assert (builder.times.last or (-1, -1))[0] == latest


@given(batches)
def test_the_indexes_survive_the_disk_byte_for_byte(sizes: list[tuple[int, int, int]]) -> None:
    builder, laid = build(sizes)
    index = OffsetIndex(BASE, bytes(builder.index.entries))
    times = TimeIndex(BASE, bytes(builder.times.entries))
    assert [index[number] for number in range(len(index))] == [
        builder.index[number] for number in range(len(builder.index))
    ]
    assert times.last == builder.times.last
    if laid:
        assert index.last == laid[-1][:2]


@given(batches, st.integers(0, 60))
def test_a_truncated_index_speaks_only_of_what_is_left(sizes: list[tuple[int, int, int]], keep: int) -> None:
    builder, laid = build(sizes)
    position, offset = (laid[keep][1], laid[keep][0]) if keep < len(laid) else (1 << 30, 1 << 30)
    builder.index.truncate_to(position)
    builder.times.truncate_to(offset)
    assert all(builder.index[number][1] < position for number in range(len(builder.index)))
    assert all(builder.times[number][1] < offset for number in range(len(builder.times)))


def test_the_formats_are_kafkas() -> None:
    index, times = OffsetIndex(BASE), TimeIndex(BASE)
    index.append(BASE + 7, 4711)
    times.append(1_700_000_000_000, BASE + 7)
    assert bytes(index.entries) == (7).to_bytes(4, "big") + (4711).to_bytes(4, "big")
    assert bytes(times.entries) == (1_700_000_000_000).to_bytes(8, "big") + (7).to_bytes(4, "big")
