"""A jump of the wall clock pauses deletion (reliability #33)."""

from clarion.log.clock_watch import GRACE_MS, JUMP_MS, watch_clock

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
