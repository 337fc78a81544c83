"""A jump of the wall clock pauses deletion (reliability #33)."""

from clarion.log.clock_watch import DOWN_MS_MAX, GRACE_MS, JUMP_MS, watch_after_start, watch_clock

HOUR = 3_600_000
NOW = 1_700_000_000_000


def watched(*looks):
    watch = None
    for wall_ms, monotonic_ms in looks:
        watch = watch_clock(watch, NOW + wall_ms, monotonic_ms)
    return watch


def test_clocks_that_run_together_are_trusted():
    assert watched((0, 0)).is_trusted
    assert watched((0, 0), (HOUR, HOUR), (2 * HOUR + 900, 2 * HOUR)).is_trusted


def test_slow_drift_never_adds_up_to_a_jump():
    looks = [(n * (HOUR + 1800), n * HOUR) for n in range(100)]
    assert watched(*looks).is_trusted


def test_a_jump_forward_pauses_deletion_and_says_so():
    watch = watched((0, 0), (31 * 24 * HOUR, HOUR))
    assert not watch.is_trusted
    assert "jumped forward by 2674800 s" in watch.sentence


def test_a_jump_back_pauses_deletion_too():
    watch = watched((0, 0), (-HOUR, 1000))
    assert not watch.is_trusted
    assert "back" in watch.sentence


def test_deletion_goes_on_when_the_clock_comes_back():
    assert watched((0, 0), (9 * HOUR, HOUR), (2 * HOUR + 10, 2 * HOUR)).is_trusted


def test_deletion_goes_on_when_the_new_time_has_stood_for_a_day():
    jumped = [(0, 0), (9 * HOUR, HOUR)]
    almost = (8 * HOUR + HOUR + GRACE_MS - 1, HOUR + GRACE_MS - 1)
    after = (8 * HOUR + HOUR + GRACE_MS, HOUR + GRACE_MS)
    assert not watched(*jumped, almost).is_trusted
    assert watched(*jumped, almost, after).is_trusted


def test_a_second_jump_does_not_shorten_the_pause_of_the_first():
    watch = watched((0, 0), (9 * HOUR, HOUR), (30 * HOUR, 2 * HOUR))
    assert not watch.is_trusted
    assert watch.jump_ms == 28 * HOUR


def test_what_counts_as_a_jump_is_more_than_a_minute():
    assert watched((0, 0), (JUMP_MS, 0)).is_trusted
    assert not watched((0, 0), (JUMP_MS + 1, 0)).is_trusted


def test_what_is_written_down_by_a_clock_that_is_behind_says_the_time_that_it_should_be():
    assert watched((0, 0), (-HOUR, 1000)).late_ms == NOW + 1000
    assert watched((0, 0), (HOUR, 1000)).late_ms == NOW + HOUR  # a time that comes later keeps things longer
    assert watched((0, 0), (-HOUR, 1000), (2000, 2000)).late_ms == NOW + 2000


def test_what_is_judged_by_a_clock_that_is_ahead_is_no_older_than_by_the_time_that_it_should_be():
    assert watched((0, 0), (HOUR, 1000)).early_ms == NOW + 1000
    assert watched((0, 0), (-HOUR, 1000)).early_ms == NOW - HOUR
    assert watched((0, 0), (HOUR, 1000), (2000, 2000)).early_ms == NOW + 2000


# After a start


def started(last, wall_ms, monotonic_ms=5):
    return watch_after_start(last, NOW + wall_ms, monotonic_ms)


def test_a_short_standstill_is_no_jump():
    assert started(None, 0).is_trusted
    assert started(watched((0, 0)), DOWN_MS_MAX).is_trusted
    assert started(watched((0, 0)), -HOUR).is_trusted


def test_after_a_long_standstill_or_with_the_clock_ahead_deletion_waits_for_a_day():
    watch = started(watched((0, 0)), 40 * 24 * HOUR)
    assert not watch.is_trusted
    assert "or the broker was down for so long" in watch.sentence
    later = watch_clock(watch, watch.wall_ms + GRACE_MS - 1, watch.monotonic_ms + GRACE_MS - 1)
    assert not later.is_trusted
    assert watch_clock(later, later.wall_ms + 1, later.monotonic_ms + 1).is_trusted


def test_a_clock_that_is_set_right_after_the_start_is_trusted_at_once():
    ahead = started(watched((0, 0)), 40 * 24 * HOUR)
    assert watch_clock(ahead, NOW + 10, ahead.monotonic_ms + 10).is_trusted


def test_the_day_is_counted_over_restarts():
    watch = started(watched((0, 0)), 40 * 24 * HOUR)
    again = watch_after_start(watch, watch.wall_ms + GRACE_MS - 2, 70)
    assert not again.is_trusted
    assert again.doubted_since_ms == watch.wall_ms
    assert watch_clock(again, again.wall_ms + 2, 72).is_trusted
    assert watch_after_start(watch, watch.wall_ms + GRACE_MS, 70).is_trusted


def test_a_jump_is_not_forgotten_by_a_restart_unless_the_clock_has_come_back():
    jumped = watched((0, 0), (40 * 24 * HOUR, HOUR))
    assert not watch_after_start(jumped, jumped.wall_ms + HOUR, 3).is_trusted
    assert watch_after_start(jumped, NOW + 2 * HOUR, 3).is_trusted
