"""A search by time finds what a reader of the whole log finds, whatever compaction and deletion have left of it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from clarion.log.config import LogConfig
from clarion.log.log import Log
from tests.log.keys import COMPACT
from tests.log.partitions import NOW, TOPIC_ID, append, clean, open_log, records
from tests.sim.disk import SimDisk

STEP = 10
BATCHES = st.lists(
    st.tuples(
        st.lists(st.tuples(st.sampled_from("abc"), st.integers(-1, 9)), min_size=1, max_size=4),  # key, time
        st.booleans(),  # whether a segment ends with it
        st.booleans(),  # whether a living producer is remembered by it
        st.booleans(),  # whether the broker stamps the time
    ),
    min_size=1,
    max_size=8,
)


def at(step: int) -> int:
    """No time, or one of a few."""
    return -1 if step < 0 else NOW + step * STEP


def first_from(log: Log, time: int) -> tuple[int, int] | None:
    """As a reader of everything finds it."""
    return next(((one.timestamp, one.offset) for one in records(log) if one.timestamp >= time), None)


def latest(log: Log) -> tuple[int, int]:
    found = [one for one in records(log) if one.timestamp >= 0]
    greatest = max((one.timestamp for one in found), default=-1)
    return next(((one.timestamp, one.offset) for one in found if one.timestamp == greatest), (-1, -1))


@settings(max_examples=150, deadline=None)
@given(batches=BATCHES, compacts=st.booleans(), start=st.floats(0, 1), opens_again=st.booleans())
def test_a_search_by_time_finds_what_a_reader_would(batches, compacts, start, opens_again):
    disk = SimDisk()
    log = open_log("/data/t-0", disk=disk)
    kept = []
    for messages, rolls, is_remembered, is_stamped in batches:
        timed = [(key.encode(), b"v", at(step)) for key, step in messages]
        producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0} if is_remembered else {}
        append(log, timed, log_append_time=is_stamped, **producer)
        if is_remembered:
            kept.append(log.next_offset - 1)
        if rolls:
            log.roll(NOW)
    if compacts:
        clean(log, COMPACT, NOW, keep=frozenset(kept))
    log.advance_start(round(start * log.next_offset))
    if opens_again:
        start_offset = log.start_offset
        log.close()
        log = Log.open(
            disk, "/data/t-0", LogConfig(), now_ms=NOW, clean=True, topic_id=TOPIC_ID, start_offset=start_offset
        )
    assert log.max_timestamp() == latest(log)
    for step in range(11):
        assert log.offset_for_time(at(step)) == first_from(log, at(step)), step


def test_the_greatest_time_is_that_of_a_record_which_compaction_has_left():
    log = open_log("/data/t-0", disk=SimDisk())
    append(log, [(b"b", b"1", NOW)])
    append(log, [(b"a", b"1", NOW + 9)], producer_id=7, producer_epoch=0, base_sequence=0)
    append(log, [(b"a", b"2", NOW + 5)])
    log.roll(NOW)
    clean(log, COMPACT, NOW, keep=frozenset({1}))
    assert [one.offset for one in records(log)] == [0, 2]
    assert log.max_timestamp() == (NOW + 5, 2)


def test_the_greatest_time_is_not_that_of_a_deleted_record_in_the_same_batch():
    log = open_log("/data/t-0", disk=SimDisk())
    append(log, [(None, b"x", NOW + shift) for shift in (0, 9, 1, 2)])
    log.advance_start(2)
    assert log.max_timestamp() == (NOW + 2, 3)
