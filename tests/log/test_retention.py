"""Retention: exact to the message by time, to the batch by size, held back by groups."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clarion.log import retention
from clarion.log.retention import TRIM_ALWAYS_BYTES, Arrivals, Noticed, is_worth_trimming
from clarion.log.views import view_of
from clarion.wire.batch import read_header, stamp_log_append_time
from clarion.wire.compression import Codec
from clarion.wire.records import assemble_batch, encode_batch
from tests.log.ages import SECOND, TEN_SECONDS, offsets, one_each
from tests.log.batches import sweep_deleted
from tests.log.partitions import NOW, append, append_bytes, clean, headers, open_log, records, sweep, topic

# ------------------------------------------------------------------------------------------------ time


def test_young_messages_stay(log):
    one_each(log, 9000, 5000, 0)
    plan = sweep(log, TEN_SECONDS, NOW)
    assert (plan.reason, plan.roll) == ("", False)
    assert offsets(log) == [0, 1, 2]


def test_messages_go_when_they_are_older_than_the_retention_time(log):
    one_each(log, 10_001, 10_000, 9_999)
    plan = sweep(log, TEN_SECONDS, NOW)
    assert plan.reason == "time"
    assert offsets(log) == [1, 2]


@pytest.mark.parametrize("policy", [{"retention_ms": 10 * SECOND}, {"retention_bytes": 150}], ids=["time", "size"])
def test_a_gap_that_compaction_left_is_not_skipped_by_retention(log, policy):
    """A reader may stand in the gap, and would be told that its place does not exist any more."""
    kept = topic(cleanup_policy="compact,delete", **policy)
    for number in range(6):
        append(log, [(b"same", b"%d" % number, NOW)])
    log.roll(NOW)
    clean(log, kept, NOW)
    assert offsets(log) == [5]
    sweep(log, kept, NOW)
    assert log.start_offset == 0
    append(log, [(b"other", b"x" * 100, NOW + 20_000)])
    sweep(log, kept, NOW + 20_000)
    assert (log.start_offset, offsets(log)) == (6, [6])


@pytest.mark.parametrize("codec", list(Codec))
def test_inside_a_batch_every_message_counts_by_itself(log, codec):
    append(log, [(None, b"%d" % n, NOW - 13_500 + n * 1000) for n in range(8)], compression=codec)
    sweep(log, TEN_SECONDS, NOW)
    assert log.start_offset == 4
    assert offsets(log) == [4, 5, 6, 7]


def test_nothing_is_left_on_disk_of_a_small_topic_whose_messages_have_all_expired(log, tmp_path):
    append(log, [(b"k", b"confidential", NOW - 20_000)])
    plan = sweep(log, TEN_SECONDS, NOW)
    assert plan.roll
    assert (log.start_offset, log.next_offset, log.size_bytes) == (1, 1, 0)
    sweep_deleted(log, NOW)
    sweep_deleted(log, NOW + 60_001)
    assert b"confidential" not in everything_in(tmp_path)


def test_a_small_topic_keeps_no_expired_batch_beside_the_living(log, tmp_path):
    append(log, [(b"k", b"confidential", NOW - 20_000)])
    append(log, [(b"k", b"fresh", NOW)])
    sweep(log, TEN_SECONDS, NOW)
    sweep_deleted(log, NOW)
    sweep_deleted(log, NOW + 60_001)
    content = everything_in(tmp_path)
    assert b"confidential" not in content
    assert b"fresh" in content
    assert [record.value for record in records(log)] == [b"fresh"]


def everything_in(folder):
    return b"".join(
        open(os.path.join(where, name), "rb").read() for where, _, names in os.walk(folder) for name in names
    )


def test_a_trimmed_log_is_the_same_after_a_restart(log, tmp_path):
    one_each(log, 30_000, 20_000, 5_000, 0)
    sweep(log, TEN_SECONDS, NOW)
    append(log, [(None, b"later", NOW)])
    log.close()
    for was_clean in (True, False):
        again = open_log(tmp_path / "t-0", clean=was_clean)
        again.advance_start(2)
        assert not again.recovery.has_cut
        assert offsets(again) == [2, 3, 4]
        again.close()


def test_the_active_segment_is_rolled_once_per_retention_time_not_once_per_sweep(log):
    rolls = 0
    for second in range(60):
        now = NOW + second * SECOND
        append(log, [(None, b"x" * 50, now)], now_ms=now)
        rolls += sweep(log, TEN_SECONDS, now).roll
        assert log.next_offset - log.start_offset <= 11
    assert rolls <= 6


def test_a_large_first_file_is_rewritten_only_when_half_of_it_has_expired(log):
    for age in (40, 30, 20, 5, 4, 3, 2, 1):
        append(log, [(None, os.urandom(TRIM_ALWAYS_BYTES // 2), NOW - age * SECOND)])
    log.roll(NOW)
    size = log.size_bytes
    sweep(log, TEN_SECONDS, NOW)
    assert log.start_offset == 3
    assert log.size_bytes == size
    sweep(log, TEN_SECONDS, NOW + 6500)
    assert log.start_offset == 5
    assert log.size_bytes < size / 2


def test_the_first_file_is_not_rewritten_while_the_watermark_is_in_it(log):
    one_each(log, 20_000)
    watermark = log.end
    one_each(log, 20_000)
    sweep(log, TEN_SECONDS, NOW, limit_offset=1, trim=False)
    assert log.start_offset == 1
    assert not is_worth_trimming(view_of(log), watermark)
    assert is_worth_trimming(view_of(log), log.end)


def test_an_expired_message_behind_a_younger_one_waits_for_it(log):
    one_each(log, 5_000, 20_000, 0)
    sweep(log, TEN_SECONDS, NOW)
    assert offsets(log) == [0, 1, 2]
    sweep(log, TEN_SECONDS, NOW + 6_000)
    assert offsets(log) == [2]


def test_minus_one_keeps_for_ever_and_a_compacted_topic_is_not_touched(log):
    one_each(log, 10**12)
    for policy in (topic(retention_ms=-1), topic(retention_ms=1, cleanup_policy="compact")):
        assert sweep(log, policy, NOW).reason == ""
    assert sweep(log, topic(retention_ms=1, cleanup_policy="compact,delete"), NOW).reason == "time"


def test_nothing_that_is_not_committed_goes(log):
    one_each(log, 30_000, 30_000, 30_000)
    sweep(log, TEN_SECONDS, NOW, limit_offset=1)
    assert offsets(log) == [1, 2]


def test_append_time_counts_for_the_whole_batch(log):
    batch = encode_batch([(None, b"x", (), 0), (None, b"x", (), 5)])
    stamp_log_append_time(batch, NOW - 5000)
    append_bytes(log, batch)
    sweep(log, TEN_SECONDS, NOW)
    assert offsets(log) == [0, 1]
    sweep(log, TEN_SECONDS, NOW + 5001)
    assert offsets(log) == []


def test_a_batch_that_cannot_be_decoded_goes_as_a_whole_when_its_latest_time_has_expired(log):
    batch = encode_batch([(None, b"x", (), NOW - 20_000), (None, b"x", (), NOW - 5_000)])
    batch[61] = 0x7F  # a record that claims to be longer than the batch
    append_bytes(log, resealed(batch))
    sweep(log, TEN_SECONDS, NOW)
    assert log.start_offset == 0
    sweep(log, TEN_SECONDS, NOW + 5_001)
    assert log.start_offset == 2


def test_a_bomb_at_the_boundary_does_no_harm(log):
    batch = encode_batch([(None, bytes(80 << 20), (), NOW - 20_000), (None, b"x", (), NOW)], compression=Codec.ZSTD)
    append_bytes(log, batch)
    sweep(log, TEN_SECONDS, NOW)
    assert log.start_offset == 0


def resealed(batch):
    from tests.wire.test_records import reseal

    reseal(batch)
    return batch


def test_messages_without_a_time_count_from_when_they_were_appended_or_first_seen(log):
    append(log, [(None, b"x", -1)])
    plan = sweep(log, TEN_SECONDS, NOW)
    assert plan.noticed == Noticed(1, NOW)
    append(log, [(None, b"later", -1)], now_ms=NOW + 5_000)
    plan = sweep(log, TEN_SECONDS, NOW + 9_000, noticed=plan.noticed)
    assert offsets(log) == [0, 1]
    plan = sweep(log, TEN_SECONDS, NOW + 10_001, noticed=plan.noticed)
    assert offsets(log) == [1]
    assert plan.noticed == Noticed(2, NOW + 10_001)
    sweep(log, TEN_SECONDS, NOW + 15_001, noticed=plan.noticed)
    assert offsets(log) == []


MISSING_OR_STRANGE = st.sampled_from([-1, 0, 1, 86_400_000, NOW - 1, NOW, NOW + 10**11])


@settings(max_examples=60, deadline=None)
@given(
    times=st.lists(MISSING_OR_STRANGE, min_size=1, max_size=4),
    claimed=st.sampled_from([None, -1, 0]),
    later=st.lists(st.integers(0, 9_999), max_size=3),
    restarts=st.booleans(),
)
def test_a_batch_whose_time_cannot_be_believed_is_kept_for_the_retention_time_after_it_was_appended(
    tmp_path_factory, times, claimed, later, restarts
):
    folder = tmp_path_factory.mktemp("log") / "t-0"
    log = open_log(folder)
    batch = encode_batch([(None, b"x", (), time) for time in times])
    header = read_header(batch)
    if claimed is not None:
        header = header._replace(max_timestamp=claimed)
        batch = assemble_batch(header, bytes(batch[61:]))
    is_believed = 0 < header.base_timestamp <= header.max_timestamp <= NOW + 86_400_000
    append_bytes(log, batch)
    expires = (header.max_timestamp if is_believed else NOW) + 10_000
    plan = None
    for elapsed in sorted(later):
        if restarts:
            log = restarted(log, folder)
            plan = None
        plan = sweep(log, TEN_SECONDS, NOW + elapsed, noticed=plan.noticed if plan else None)
        if NOW + elapsed <= expires:
            assert log.next_offset - log.start_offset >= 1, "the batch, or what of it has not expired"
            first_without = next((n for n, time in enumerate(times) if time <= 0), len(times))
            assert log.start_offset <= first_without, "one without a time counts from when it was appended"
        if not is_believed:
            assert log.start_offset == 0
    log = restarted(log, folder)
    sweep(log, TEN_SECONDS, NOW + 10_001)
    assert log.start_offset == len(times) or (is_believed and header.max_timestamp > NOW), "and no longer"
    log.abandon()


def restarted(log, folder):
    """The log as the next process finds it: all it knows of the time of the append is the files' time."""
    start = log.start_offset
    log.close()
    for path in folder.glob("*.log"):
        os.utime(path, ns=(NOW * 1_000_000, NOW * 1_000_000))
    log = open_log(folder, clean=True)
    log.advance_start(start)
    return log


def test_a_message_without_a_time_among_others_does_not_begin_a_new_segment(log):
    for _ in range(4):
        append_without_time(log)
        append(log, [(None, b"x", NOW)])
    assert log.segment_count == 1


def append_without_time(log):
    """As librdkafka sends a message whose timestamp is -1."""
    batch = encode_batch([(None, b"x", (), -1)], base_offset=log.next_offset)
    append_bytes(log, assemble_batch(read_header(batch)._replace(max_timestamp=0), bytes(batch[61:])))


@pytest.mark.uncompiled
def test_a_batch_that_cannot_be_read_at_the_boundary_is_unpacked_once(log, monkeypatch):
    batch = encode_batch([(None, bytes(80 << 20), (), NOW - 20_000), (None, b"x", (), NOW)], compression=Codec.ZSTD)
    append_bytes(log, batch)
    unpacked = []
    original = retention.records_data
    monkeypatch.setattr(retention, "records_data", lambda *batch: unpacked.append(1) or original(*batch))
    unreadable = set()
    for later in (0, 1000, 2000):
        sweep(log, TEN_SECONDS, NOW + later, unreadable=unreadable)
    assert (len(unpacked), unreadable, log.start_offset) == (1, {0}, 0)


def test_a_time_from_a_far_future_does_not_keep_data_for_ever(log):
    append(log, [(None, b"x", NOW + 10**11)])
    append(log, [(None, b"y", NOW)])
    plan = sweep(log, TEN_SECONDS, NOW)
    assert offsets(log) == [0, 1]
    sweep(log, TEN_SECONDS, NOW + 10_001, noticed=plan.noticed)
    assert offsets(log) == []


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(0, 100), min_size=1, max_size=5), max_size=8), st.integers(0, 120), st.data())
def test_the_start_is_the_first_message_that_has_not_expired(tmp_path_factory, batches, retention, draw):
    log = open_log(tmp_path_factory.mktemp("log") / "t-0")
    ages = []
    for batch in batches:
        append(log, [(None, b"v", NOW - age) for age in batch])
        ages += batch
        if draw.draw(st.booleans()):
            log.roll(NOW)
    expected = next((n for n, age in enumerate(ages) if age <= retention), len(ages))
    sweep(log, topic(retention_ms=retention), NOW)
    assert log.start_offset == expected
    assert offsets(log) == list(range(expected, len(ages)))
    log.abandon()


# ------------------------------------------------------------------------------------------------ grace

WITH_GRACE = topic(retention_ms=10 * SECOND, clarion_retention_grace_ms=60 * SECOND)


def test_what_arrives_too_old_to_stay_can_be_read_for_the_grace_period(log):
    one_each(log, 20_000, 90_000)
    plan = sweep(log, WITH_GRACE, NOW)
    assert (offsets(log), plan.arrived_expired) == ([0, 1], False), "the first was too old by less than the grace"
    assert offsets_after(log, NOW + 59_999) == [0, 1]
    assert offsets_after(log, NOW + 60_000) == []


def test_a_backfill_is_noticed(log):
    one_each(log, 90_000)
    assert sweep(log, WITH_GRACE, NOW).arrived_expired
    assert not sweep(log, WITH_GRACE, NOW + 60_000).arrived_expired, "it has gone"


def offsets_after(log, now_ms, **seen):
    sweep(log, WITH_GRACE, now_ms, **seen)
    return offsets(log)


def test_a_restart_neither_shortens_nor_renews_the_grace_period(log, tmp_path):
    one_each(log, 90_000)
    log = restarted(log, tmp_path / "t-0")
    assert offsets_after(log, NOW + 59_999) == [0]
    assert offsets_after(log, NOW + 60_000) == []
    log.abandon()


def test_in_a_file_that_is_written_to_all_the_time_old_messages_go_all_the_same(log):
    arrivals = Arrivals()
    arrived = []
    for second in range(200):
        now = NOW + second * SECOND
        append(log, [(None, b"x", now - 20_000)], now_ms=now)
        arrived.append(now)
        arrivals.note(log.next_offset, now, WITH_GRACE.retention_grace_ms)
        offsets_after(log, now, arrivals=arrivals)
        assert all(at < now - 59_000 for at in arrived[: log.start_offset]), "not before the grace period is over"
        assert all(at > now - 70_000 for at in arrived[log.start_offset :]), "and not much later"


def test_what_is_known_of_arrivals_is_bounded_and_forgotten_when_the_clock_goes_back():
    arrivals = Arrivals()
    for second in range(10_000):
        arrivals.note(second, NOW + second * SECOND, 60 * SECOND)
    assert len(arrivals._seen) <= 12
    assert arrivals.before(NOW + 9_939 * SECOND) >= 9_930
    arrivals.note(10_000, NOW, 60 * SECOND)
    assert arrivals.before(NOW - 1) == 0


def test_the_grace_period_does_not_keep_more_bytes_than_allowed(log):
    one_each(log, 90_000, 90_000)
    sweep(log, topic(retention_bytes=1, clarion_retention_grace_ms=60 * SECOND), NOW)
    assert offsets(log) == [1]


# ------------------------------------------------------------------------------------------------ size


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 300), max_size=12), st.integers(0, 3000), st.data())
def test_what_remains_is_the_longest_tail_of_batches_that_fits(tmp_path_factory, sizes, limit, draw):
    log = open_log(tmp_path_factory.mktemp("log") / "t-0")
    for size in sizes:
        append(log, [(None, b"v" * size, NOW)])
        if draw.draw(st.booleans()):
            log.roll(NOW)
    every = [header.size_bytes for header in headers(log)]
    start = next(n for n in range(len(every) + 1) if sum(every[n:]) <= limit)
    if limit and every:
        start = min(start, len(every) - 1)
    plan = sweep(log, topic(retention_bytes=limit, retention_ms=-1), NOW)
    assert log.start_offset == start
    assert plan.reason == ("size" if start else "")
    assert view_of(log).size_bytes == sum(every[start:])
    log.abandon()


def test_the_newest_batch_stays_even_if_it_is_larger_than_the_limit(log):
    one_each(log, 0, 0)
    sweep(log, topic(retention_bytes=5), NOW)
    assert offsets(log) == [1]


def test_a_limit_of_nothing_keeps_nothing(log):
    one_each(log, 0, 0)
    sweep(log, topic(retention_bytes=0), NOW)
    assert offsets(log) == []
