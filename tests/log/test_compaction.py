"""Compaction: the newest record of every key stays, whatever a reader's start; deleted keys are not reborn."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clarion.log.compaction import CompactionResult, compact, plan_compaction
from clarion.log.key_map import SLOT_BYTES
from clarion.log.swap import Swap
from clarion.log.tombstones import Tombstones
from clarion.log.views import view_of
from clarion.model.setting_kinds import LONG_MAX
from clarion.wire.batch import HAS_DELETE_HORIZON
from clarion.wire.compression import Codec
from clarion.wire.records import decode_batch
from tests.log.keys import COMPACT, GRACE, HOUR, contents, write
from tests.log.partitions import NOW, append, clean, headers, open_log, records, swap_in, topic

POLICY = COMPACT


def fold(found):
    """What a reader knows after reading: the table behind the changelog."""
    table = {}
    for one in found:
        if one.value is None:
            table.pop(one.key, None)
        else:
            table[one.key] = one.value
    return table


# ------------------------------------------------------------------------------------------------ stories


def test_of_every_key_the_newest_record_stays_at_its_offset(log):
    write(log, "a=1", "b=1")
    write(log, "a=2", "c=1")
    write(log, "b=2", roll=True)
    _, result = clean(log, COMPACT, NOW)
    assert contents(log) == ["2:a=2", "3:c=1", "4:b=2"]
    assert result.records_dropped == 2
    assert (result.is_done, result.next_dirty) == (True, 5)


def test_the_active_segment_is_never_touched(log):
    write(log, "a=1")
    write(log, "a=2", "a=3", roll=False)
    clean(log, COMPACT, NOW)
    assert contents(log) == ["0:a=1", "1:a=2", "2:a=3"]


def test_a_reader_in_the_middle_of_a_hole_gets_what_comes_after_it(log):
    for number in range(6):
        write(log, f"a={number}")
    clean(log, COMPACT, NOW)
    for start in range(7):
        assert [one.offset for one in records(log, start)] == ([5] if start <= 5 else [])


def test_cleaning_a_clean_log_changes_nothing(log):
    write(log, "a=1", "b=1")
    write(log, "a=2")
    _, first = clean(log, COMPACT, NOW)
    before = [bytes(batch) for batch in log.batches(0)]
    _, second = clean(log, COMPACT, NOW, first_dirty=first.next_dirty)
    assert [bytes(batch) for batch in log.batches(0)] == before
    assert second.bytes_written == 0


def test_every_rewritten_segment_still_says_where_it_ends(log, tmp_path):
    small = topic(cleanup_policy="compact", segment_bytes=1024)
    for number in range(4):
        write(log, "a=" + str(number) * 600, f"k{number}=" + "x" * 300)
        write(log, "b=" + str(number) * 900)
    clean(log, small, NOW)
    sealed = log.segments[:-1]
    assert len(sealed) > 2
    for segment, after in zip(sealed, log.segments[1:], strict=True):
        *_, (last, _) = segment.headers(segment.base_offset, segment.size)
        assert last.next_offset == after.base_offset
    assert len(contents(log)) == 6


def test_small_segments_become_one(log):
    for number in range(8):
        write(log, f"k{number}=1")
    clean(log, COMPACT, NOW)
    assert log.segment_count == 2
    assert len(contents(log)) == 8


@pytest.mark.parametrize("codec", list(Codec))
def test_the_codec_stays(log, codec):
    write(log, *[f"k{number}={'x' * 50}" for number in range(20)], compression=codec)
    write(log, "k3=new", compression=codec)
    clean(log, COMPACT, NOW)
    assert [header.compression for header in headers(log)] == [codec, codec]
    assert len(contents(log)) == 20


def test_timestamps_stay_and_the_greatest_is_found_again(log):
    append(log, [(b"a", b"1", NOW + 500), (b"b", b"1", NOW + 100), (b"c", b"1", NOW + 7)])
    append(log, [(b"a", b"2", NOW + 1)])
    log.roll(NOW)
    clean(log, COMPACT, NOW)
    assert [(one.key, one.timestamp) for one in records(log)] == [(b"b", NOW + 100), (b"c", NOW + 7), (b"a", NOW + 1)]
    assert [header.max_timestamp for header in headers(log)] == [NOW + 100, NOW + 1]
    assert log.max_timestamp() == (NOW + 100, 1)
    assert log.offset_for_time(NOW + 100) == (NOW + 100, 1)


def test_records_without_a_key_from_before_the_topic_was_compacted_stay(log):
    append(log, [(None, b"1", NOW), (b"a", b"1", NOW)])
    append(log, [(b"a", b"2", NOW)])
    log.roll(NOW)
    clean(log, COMPACT, NOW)
    assert [one.offset for one in records(log)] == [0, 2]


def test_what_lies_before_the_start_of_the_log_goes(log):
    write(log, "a=1", "b=1")
    write(log, "c=1", "d=1")
    log.advance_start(1)
    write(log, "e=1")
    log.roll(NOW)
    log.advance_start(3)
    clean(log, COMPACT, NOW)
    assert contents(log) == ["3:d=1", "4:e=1"]


# ------------------------------------------------------------------------------------------------ tombstones


def test_a_tombstone_stays_for_its_grace_and_then_goes(log):
    write(log, "a=1", "b=1")
    write(log, "a", "c=1")
    _, result = clean(log, GRACE, NOW)
    assert contents(log) == ["1:b=1", "2:a", "3:c=1"]
    assert result.next_horizon_ms == NOW + HOUR
    flagged = [header for header in headers(log) if header.attributes & HAS_DELETE_HORIZON]
    assert [header.base_timestamp for header in flagged] == [NOW + HOUR]
    assert [one.timestamp for one in records(log)] == [NOW] * 3

    clean(log, GRACE, NOW + HOUR - 1, first_dirty=4)
    assert "2:a" in contents(log)
    _, result = clean(log, GRACE, NOW + HOUR, first_dirty=4)
    assert contents(log) == ["1:b=1", "3:c=1"]
    assert result.next_horizon_ms is None


def test_the_grace_counts_from_the_first_cleaning_not_from_each(log):
    write(log, "a")
    for later in (0, HOUR // 2, HOUR - 1):
        clean(log, GRACE, NOW + later)
        assert contents(log) == ["0:a"]
    clean(log, GRACE, NOW + HOUR)
    assert contents(log) == []


def test_what_is_refused_because_it_lacks_tombstones_comes_again_with_them(log):
    """A replica has left meanwhile. Older values go all the same, and the run comes to its end."""
    at_once = topic(cleanup_policy="compact", delete_retention_ms=0)
    write(log, "a", "b=1")
    clean(log, at_once, NOW)
    write(log, "b=2")
    view = view_of(log)
    plan = plan_compaction(view, at_once, NOW, first_dirty=2, limit=log.end)
    result, tombstones = CompactionResult(2), Tombstones()
    rewritten = compact(view, plan, at_once, NOW, result, tombstones=tombstones)
    refused = next(rewritten)
    assert refused.lacks_tombstones
    tombstones.refuse()
    Swap(log, view, refused).withdraw()
    for cleaned in rewritten:
        assert not cleaned.lacks_tombstones
        assert swap_in(log, view, cleaned)
    assert contents(log) == ["0:a", "2:b=2"]
    assert (result.is_done, result.records_dropped, result.next_horizon_ms) == (True, 1, NOW)
    clean(log, at_once, NOW, first_dirty=3)
    assert contents(log) == ["2:b=2"]


def test_a_tombstone_that_the_map_did_not_reach_gets_no_horizon_yet(log):
    """Else it could go before the older records of its key, which the map does not know either."""
    write(log, *[f"k{number:02}=1" for number in range(20)])
    write(log, "k19")
    _, result = clean(log, GRACE, NOW, map_bytes_max=SLOT_BYTES * 8)
    assert result.next_dirty < 20
    assert not any(header.attributes & HAS_DELETE_HORIZON for header in headers(log))
    for _ in range(20):
        _, result = clean(log, GRACE, NOW, first_dirty=result.next_dirty, map_bytes_max=SLOT_BYTES * 8)
    clean(log, GRACE, NOW + HOUR, first_dirty=result.next_dirty)
    assert b"k19" not in fold(records(log))
    assert len(fold(records(log))) == 19


def test_a_batch_that_the_map_reached_half_gets_no_horizon_yet(log):
    write(log, "a=1", "b=1")
    write(log, "c=1", "a", "b")
    _, result = clean(log, GRACE, NOW, map_bytes_max=SLOT_BYTES * 4)
    assert result.next_dirty == 3
    assert not any(header.attributes & HAS_DELETE_HORIZON for header in headers(log))
    clean(log, GRACE, NOW + HOUR, first_dirty=3)
    assert contents(log) == ["2:c=1", "3:a", "4:b"]


def test_a_key_that_lives_again_loses_its_tombstone(log):
    write(log, "a=1")
    write(log, "a")
    write(log, "a=3")
    clean(log, GRACE, NOW)
    assert contents(log) == ["2:a=3"]


# ------------------------------------------------------------------------------------------------ producers


def test_the_last_batch_of_a_living_producer_stays_without_its_records(log):
    write(log, "a=1", producer_id=7, producer_epoch=2, base_sequence=10)
    write(log, "a=2", "b=1", producer_id=7, producer_epoch=2, base_sequence=11)
    write(log, "a=3", "b=3")
    clean(log, COMPACT, NOW, keep={2})
    assert contents(log) == ["3:a=3", "4:b=3"]
    empty, _ = headers(log)
    assert (empty.record_count, empty.base_offset, empty.last_offset) == (0, 1, 2)
    assert (empty.producer_id, empty.producer_epoch, empty.base_sequence, empty.last_sequence) == (7, 2, 11, 12)
    assert decode_batch(next(iter(log.batches(0)))) == []
    assert log.offset_for_time(NOW) == (NOW, 3)


def test_empty_batches_go_when_the_producer_is_forgotten(log):
    write(log, "a=1", producer_id=7, producer_epoch=2, base_sequence=10)
    write(log, "a=2")
    clean(log, COMPACT, NOW, keep={0})
    assert len(headers(log)) == 2
    clean(log, COMPACT, NOW)
    assert len(headers(log)) == 1


def test_control_and_transactional_batches_pass_untouched(log):
    write(log, "a=1")
    write(log, "a=2", transactional=True, producer_id=1, producer_epoch=0, base_sequence=0)
    write(log, "a=marker", control=True, transactional=True, producer_id=1, producer_epoch=0)
    write(log, "b=1")
    clean(log, COMPACT, NOW)
    assert [header.base_offset for header in headers(log)] == [0, 1, 2, 3]
    write(log, "a=5")
    clean(log, COMPACT, NOW)
    assert [header.base_offset for header in headers(log)] == [1, 2, 3, 4]


# ------------------------------------------------------------------------------------------------ when


def reason(log, policy, now_ms=NOW, first_dirty=0, **options):
    options.setdefault("limit", log.end)
    return plan_compaction(view_of(log), policy, now_ms, first_dirty=first_dirty, **options).reason


def test_a_log_is_cleaned_when_enough_of_it_is_dirty(log):
    write(log, "a=1")
    write(log, "a=2")
    write(log, "a=3")
    assert reason(log, COMPACT) == "ratio"
    assert reason(log, COMPACT, first_dirty=1) == "ratio"
    assert reason(log, COMPACT, first_dirty=2) == ""
    assert reason(log, topic(cleanup_policy="compact", min_cleanable_dirty_ratio=0.3), first_dirty=2) == "ratio"
    assert reason(log, COMPACT, first_dirty=3) == ""


def test_young_messages_wait(log):
    append(log, [(b"a", b"1", NOW - HOUR)])
    log.roll(NOW)
    append(log, [(b"a", b"2", NOW - HOUR // 2)])
    log.roll(NOW)
    policy = topic(cleanup_policy="compact", min_compaction_lag_ms=HOUR)
    assert plan_compaction(view_of(log), policy, NOW, first_dirty=0, limit=log.end).uncleanable == 1
    assert plan_compaction(view_of(log), policy, NOW + HOUR, first_dirty=0, limit=log.end).uncleanable == 2


def test_messages_without_a_time_wait_from_when_they_were_appended(log):
    append(log, [(b"a", b"1", -1)], now_ms=NOW - HOUR // 2)
    log.roll(NOW)
    waits = topic(cleanup_policy="compact", min_compaction_lag_ms=HOUR)
    assert plan_compaction(view_of(log), waits, NOW, first_dirty=0, limit=log.end).uncleanable == 0
    assert plan_compaction(view_of(log), waits, NOW + HOUR // 2, first_dirty=0, limit=log.end).uncleanable == 1
    append(log, [(b"a", b"2", -1)], now_ms=NOW)
    hurries = topic(cleanup_policy="compact", max_compaction_lag_ms=HOUR)
    assert not plan_compaction(view_of(log), hurries, NOW + HOUR, first_dirty=0, limit=log.end).roll
    assert plan_compaction(view_of(log), hurries, NOW + HOUR + 1, first_dirty=0, limit=log.end).roll


def test_a_message_from_a_far_future_does_not_stop_cleaning_for_ever(log):
    append(log, [(b"a", b"1", NOW + 10**12)])
    log.roll(NOW)
    policy = topic(cleanup_policy="compact", min_compaction_lag_ms=HOUR)
    assert reason(log, policy) == "ratio"


def test_no_message_waits_longer_than_the_greatest_lag(log):
    write(log, *[f"k{number}=1" for number in range(50)])
    append(log, [(b"k1", b"2", NOW)])
    log.roll(NOW)
    policy = topic(cleanup_policy="compact", max_compaction_lag_ms=HOUR)
    assert reason(log, policy, NOW + HOUR, first_dirty=50) == ""
    assert reason(log, policy, NOW + HOUR + 1, first_dirty=50) == "lag"
    append(log, [(b"k1", b"3", NOW)])
    assert plan_compaction(view_of(log), policy, NOW + HOUR + 1, first_dirty=51, limit=log.end).roll
    assert not plan_compaction(view_of(log), COMPACT, NOW + HOUR, first_dirty=51, limit=log.end).roll
    assert COMPACT.max_compaction_lag_ms == LONG_MAX


def test_tombstones_that_are_due_are_a_reason(log):
    write(log, "a")
    assert reason(log, COMPACT, first_dirty=1, next_horizon_ms=NOW + 1) == ""
    assert reason(log, COMPACT, first_dirty=1, next_horizon_ms=NOW) == "tombstones"


def test_nothing_behind_the_watermark_is_cleaned(log):
    write(log, "a=1")
    watermark = log.end
    write(log, "a=2")
    assert plan_compaction(view_of(log), COMPACT, NOW, first_dirty=0, limit=watermark).uncleanable == 1


def test_a_dirty_mark_that_cannot_be_is_forgotten(log):
    write(log, "a=1")
    write(log, "a=2")
    assert plan_compaction(view_of(log), COMPACT, NOW, first_dirty=99, limit=log.end).first_dirty == 0


def test_a_log_that_moved_on_meanwhile_is_left_alone(log, tmp_path):
    write(log, "a=1")
    write(log, "a=2")
    view = view_of(log)
    plan = plan_compaction(view, COMPACT, NOW, first_dirty=0, limit=log.end)
    cleaned = next(compact(view, plan, COMPACT, NOW, CompactionResult(0)))
    log.advance_start(1)
    assert not swap_in(log, view, cleaned)
    assert contents(log) == ["1:a=2"]
    assert not list((tmp_path / "t-0").glob("*.cleaned"))


# ------------------------------------------------------------------------------------------------ properties

KEYS = [b"a", b"b", b"c", b"a-long-key-of-some-bytes"]


changes = st.tuples(st.sampled_from(KEYS), st.none() | st.binary(min_size=1, max_size=3), st.just(NOW))


batches = st.lists(
    st.tuples(st.lists(changes, min_size=1, max_size=5), st.booleans(), st.sampled_from([Codec.NONE, Codec.LZ4])),
    min_size=1,
    max_size=10,
)


@settings(max_examples=40, deadline=None)
@given(batches, st.integers(2, 6), st.lists(st.integers(0, 2 * HOUR), min_size=1, max_size=4))
def test_from_every_start_a_reader_learns_the_same_before_and_after(tmp_path_factory, written, map_slots, times):
    folder = tmp_path_factory.mktemp("log") / "t-0"
    log = open_log(folder, GRACE)
    for pairs, roll, codec in written:
        append(log, pairs, compression=codec)
        if roll:
            log.roll(NOW)
    original = records(log)
    dirty = 0
    for time in sorted(times):
        _, result = clean(log, GRACE, NOW + time, first_dirty=dirty, map_bytes_max=map_slots * SLOT_BYTES)
        dirty = result.next_dirty
        for start in range(log.next_offset + 1):
            found = records(log, start)
            assert fold(found) == fold(one for one in original if one.offset >= start)
            assert set(found) <= set(original)
    log.close()
    again = open_log(folder, GRACE)
    assert not again.recovery.has_cut
    assert fold(records(again)) == fold(original)
    again.abandon()


@settings(max_examples=25, deadline=None)
@given(batches)
def test_a_tombstone_is_there_for_its_whole_grace(tmp_path_factory, written):
    log = open_log(tmp_path_factory.mktemp("log") / "t-0", GRACE)
    for pairs, roll, codec in written:
        append(log, pairs, compression=codec)
        if roll:
            log.roll(NOW)
    last = {one.key: one for one in records(log)}
    tombstones = {one for one in last.values() if one.value is None}
    for time in (0, HOUR // 2, HOUR - 1):
        clean(log, GRACE, NOW + time)
        assert tombstones <= set(records(log))
    log.abandon()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from(KEYS), st.booleans()), min_size=1, max_size=15))
def test_the_last_sequence_of_every_producer_survives(tmp_path_factory, written):
    log = open_log(tmp_path_factory.mktemp("log") / "t-0", COMPACT)
    sequences = dict.fromkeys((1, 2, 3), 0)
    for producer, key, roll in written:
        append(log, [(key, b"v", NOW)], producer_id=producer, producer_epoch=0, base_sequence=sequences[producer])
        sequences[producer] += 1
        if roll:
            log.roll(NOW)
    last = {header.producer_id: header for header in headers(log)}
    clean(log, COMPACT, NOW, keep={header.last_offset for header in last.values()})
    after = {header.producer_id: header for header in headers(log)}
    assert {pid: header.last_sequence for pid, header in after.items()} == {
        pid: header.last_sequence for pid, header in last.items()
    }
    log.abandon()
