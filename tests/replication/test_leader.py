"""The leader's decisions: events in, commands out. No log, no clock, no network."""

from __future__ import annotations

import pytest

from clarion.model.ids import LogPosition
from clarion.replication.leader import LAG_MS_MAX, AlterInSync, Command, Do, Leader
from clarion.replication.watermark import Uncommitted

NOW = 1_000_000


def at(offset: int, segment: int = 0) -> LogPosition:
    return LogPosition(offset, segment, 100 * (offset - segment))


def alone(*, is_durable: bool = False, end: int = 0) -> Leader:
    return Leader(at(end), is_durable=is_durable, min_in_sync=1)


def leading(*followers: int, in_sync: tuple[int, ...] | None = None, min_in_sync: int = 1, **how: bool) -> Leader:
    leader = Leader(at(0), is_durable=how.get("is_durable", False), min_in_sync=min_in_sync)
    leader.set_followers(followers, followers if in_sync is None else in_sync, NOW)
    return leader


def test_alone_and_without_durability_what_is_appended_is_committed() -> None:
    leader = alone()
    assert leader.on_append(at(3)) == (Do.TELL_COMMITTED,)
    assert leader.high_watermark == at(3)
    assert leader.on_flushed(at(3)) == ()


def test_with_durability_what_is_flushed_is_committed() -> None:
    leader = alone(is_durable=True)
    assert leader.on_append(at(3)) == (Do.FLUSH,)
    assert leader.on_append(at(5)) == (Do.FLUSH,)
    assert leader.on_flushed(at(3)) == (Do.TELL_COMMITTED,)
    assert leader.high_watermark == at(3)
    assert leader.on_flushed(at(2)) == (), "a flush that comes back late"
    assert leader.on_flushed(at(5)) == (Do.TELL_COMMITTED,)


def test_a_roll_takes_the_watermark_to_the_new_file_where_all_is_committed() -> None:
    leader = alone(is_durable=True, end=3)
    assert leader.on_roll(at(3, segment=3)) == (Do.TELL_COMMITTED,)
    leader.on_append(at(4, segment=3))
    assert leader.on_roll(at(4, segment=4)) == ()
    assert leader.high_watermark == at(3, segment=3)


def test_a_change_of_durability_commits_or_flushes_what_is_there() -> None:
    leader = alone(is_durable=True)
    leader.on_append(at(3))
    assert leader.configure(is_durable=False, min_in_sync=1) == (Do.TELL_COMMITTED,)
    leader.on_append(at(4))
    assert leader.configure(is_durable=True, min_in_sync=1) == (Do.FLUSH,)
    assert leader.high_watermark == at(4), "the watermark never falls"


@pytest.mark.parametrize("is_durable", [False, True])
def test_a_message_is_committed_when_every_replica_in_sync_has_it(is_durable: bool) -> None:
    leader = leading(2, 3, is_durable=is_durable)
    leader.on_append(at(3))
    leader.on_append(at(5))
    leader.on_flushed(at(5))
    assert leader.on_fetch(2, 5, NOW, flushed_offset=5) == ()
    assert leader.on_fetch(3, 3, NOW, flushed_offset=3) == (Do.TELL_COMMITTED,)
    assert leader.high_watermark == at(3)
    assert leader.on_fetch(3, 5, NOW, flushed_offset=5) == (Do.TELL_COMMITTED,)
    assert leader.high_watermark == at(5)


def test_the_leaders_own_flush_counts_like_a_follower() -> None:
    leader = leading(2, is_durable=True)
    leader.on_append(at(3))
    assert leader.on_fetch(2, 3, NOW, flushed_offset=3) == ()
    assert leader.on_flushed(at(3)) == (Do.TELL_COMMITTED,)


def test_with_durability_a_follower_counts_by_what_it_has_flushed() -> None:
    leader = leading(2, is_durable=True)
    leader.on_append(at(3))
    leader.on_append(at(5))
    leader.on_flushed(at(5))
    assert leader.on_fetch(2, 5, NOW) == (), "who does not say what it has flushed has flushed nothing"
    assert leader.on_fetch(2, 5, NOW, flushed_offset=4) == (Do.TELL_COMMITTED,)
    assert leader.high_watermark == at(3)
    assert leader.on_fetch(2, 5, NOW, flushed_offset=5) == (Do.TELL_COMMITTED,)
    assert leader.high_watermark == at(5)


def test_with_durability_a_follower_joins_with_what_it_has_flushed() -> None:
    leader = leading(2, in_sync=(), is_durable=True)
    leader.on_append(at(3))
    leader.on_flushed(at(3))
    assert leader.high_watermark == at(3)
    assert leader.on_fetch(2, 3, NOW, flushed_offset=2) == ()
    assert leader.on_fetch(2, 3, NOW, flushed_offset=3) == (AlterInSync(frozenset({2})),)


def test_a_follower_joins_when_it_has_what_the_leader_had_when_its_term_began() -> None:
    """The watermark that a new leader knows may be older than what its predecessor has told clients."""
    uncommitted = Uncommitted()
    uncommitted.add(at(9))
    leader = Leader(at(9), is_durable=False, min_in_sync=1, high_watermark=at(4), uncommitted=uncommitted)
    leader.set_followers((2, 3), (2,), NOW)
    assert leader.on_fetch(3, 4, NOW) == ()
    assert leader.on_fetch(3, 8, NOW) == ()
    assert leader.on_fetch(3, 9, NOW) == (AlterInSync(frozenset({2, 3})),)


def test_a_follower_joins_when_its_log_begins_where_records_were_deleted_to() -> None:
    """It may lead next: what was answered as deleted would be back."""
    leader = leading(2, in_sync=())
    leader.on_append(at(5))
    leader.promise_start(3)
    assert leader.on_fetch(2, 5, NOW, start_offset=2) == ()
    assert leader.on_fetch(2, 5, NOW, start_offset=3) == (AlterInSync(frozenset({2})),)


def test_a_new_leader_takes_in_nobody_whose_log_begins_before_its_own() -> None:
    """Its predecessor may have answered a DeleteRecords of which only those in sync have heard."""
    leader = Leader(at(5), is_durable=False, min_in_sync=1, start_offset=3)
    leader.set_followers((2, 3), (2,), NOW)
    assert leader.on_fetch(3, 5, NOW, start_offset=0) == ()
    assert leader.on_fetch(3, 5, NOW, start_offset=3) == (AlterInSync(frozenset({2, 3})),)


def test_the_cluster_hears_in_which_life_a_follower_was_seen() -> None:
    leader = leading(2, 3, in_sync=(2,))
    assert leader.life_of(3) == -1
    assert leader.on_fetch(3, 0, NOW, life=17) == (AlterInSync(frozenset({2, 3})),)
    assert leader.life_of(3) == 17


def test_a_follower_that_had_nothing_to_ask_for_is_not_slow_when_there_is_something() -> None:
    leader = leading(2)
    leader.on_fetch(2, 0, NOW)
    later = NOW + 10 * LAG_MS_MAX
    assert leader.on_tick(later) == ()
    leader.on_append(at(3))
    assert leader.on_tick(later + 1_000) == ()
    assert leader.on_tick(later + LAG_MS_MAX + 1_000) == (AlterInSync(frozenset()),)


def test_a_follower_that_was_not_let_in_when_it_came_is_let_in_later() -> None:
    """It has everything, and nothing to ask for: the store did not know it yet, say, when it said so."""
    leader = leading(2, 3, in_sync=())
    assert leader.on_fetch(2, 0, NOW, life=7) == (AlterInSync(frozenset({2})),)
    leader.on_in_sync(())
    assert leader.on_tick(NOW) == (), "it may be gone"
    assert leader.on_tick(NOW, {2: 8, 3: 1}) == (), "another life of it has said nothing yet"
    assert leader.on_tick(NOW, {2: 7, 3: 1}) == (AlterInSync(frozenset({2})),)


def test_followers_hear_of_every_batch() -> None:
    assert leading(2, in_sync=()).on_append(at(3)) == (Do.TELL_FOLLOWERS, Do.TELL_COMMITTED)
    assert leading(2).on_append(at(3)) == (Do.TELL_FOLLOWERS,)
    assert leading(2, is_durable=True).on_append(at(3)) == (Do.TELL_FOLLOWERS, Do.FLUSH)


def test_a_follower_in_the_middle_of_a_batch_has_what_ends_before_it() -> None:
    leader = leading(2)
    leader.on_append(at(3))
    leader.on_append(at(9))
    leader.on_fetch(2, 7, NOW)
    assert leader.high_watermark == at(3)


def test_a_silent_follower_leaves_the_in_sync_set_after_the_lag_limit() -> None:
    leader = leading(2, 3)
    leader.on_append(at(3))
    leader.on_fetch(2, 3, NOW + LAG_MS_MAX)
    assert leader.on_tick(NOW + LAG_MS_MAX) == ()
    assert leader.on_tick(NOW + LAG_MS_MAX + 1) == (AlterInSync(frozenset({2})),)
    assert leader.on_tick(NOW + LAG_MS_MAX + 2) == (), "asked once"
    assert leader.high_watermark == at(0), "until the cluster has agreed it counts"
    assert leader.on_in_sync({2}) == (Do.TELL_COMMITTED,)
    assert leader.high_watermark == at(3)


def test_a_silent_follower_that_has_everything_stays() -> None:
    leader = leading(2)
    leader.on_append(at(3))
    leader.on_fetch(2, 3, NOW)
    assert leader.on_tick(NOW + 100 * LAG_MS_MAX) == ()


def test_a_follower_that_always_has_what_there_was_a_fetch_ago_keeps_up() -> None:
    leader = leading(2)
    end = 0
    for step in range(10):
        now = NOW + step * LAG_MS_MAX // 2
        leader.on_append(at(end := end + 5))
        leader.on_fetch(2, end - 5, now)
        assert leader.on_tick(now) == ()


def test_a_follower_that_has_reached_the_watermark_is_taken_in_and_counts_from_then_on() -> None:
    leader = leading(2, 3, in_sync=(2,))
    leader.on_append(at(3))
    leader.on_append(at(5))
    leader.on_fetch(2, 3, NOW)
    assert leader.on_fetch(3, 2, NOW) == ()
    assert leader.on_fetch(3, 3, NOW) == (AlterInSync(frozenset({2, 3})),)
    assert leader.on_fetch(2, 5, NOW) == (), "the next leader may be chosen by the new set, and has to have it"
    assert leader.high_watermark == at(3)
    assert leader.on_in_sync({2, 3}) == ()
    assert leader.on_fetch(3, 5, NOW) == (Do.TELL_COMMITTED,)


def test_enough_replicas_are_those_in_sync() -> None:
    leader = leading(2, 3, min_in_sync=3)
    assert leader.has_enough_in_sync
    leader.on_in_sync({2})
    assert not leader.has_enough_in_sync
    leader.configure(is_durable=False, min_in_sync=2)
    assert leader.has_enough_in_sync


def test_with_fewer_in_sync_than_the_minimum_nothing_is_committed() -> None:
    """Who left may be elected, for he has all that was acknowledged: readers must not have seen more than that."""
    leader = leading(2, 3, min_in_sync=2)
    leader.on_in_sync({})
    before = leader.high_watermark
    assert Do.TELL_COMMITTED not in leader.on_append(at(9))
    assert leader.high_watermark == before
    leader.on_fetch(2, 9, NOW)
    assert leader.on_in_sync({2}) == (Do.TELL_COMMITTED,)
    assert leader.high_watermark == at(9)


def test_a_minimum_beyond_the_number_of_replicas_holds_up_no_reader() -> None:
    leader = leading(2, min_in_sync=3)
    leader.on_append(at(9))
    assert leader.on_fetch(2, 9, NOW) == (Do.TELL_COMMITTED,)


def test_what_was_not_committed_when_followers_came_waits_for_them() -> None:
    leader = alone(is_durable=True)
    leader.on_append(at(3))
    leader.set_followers((2,), (2,), NOW)
    assert leader.on_flushed(at(3)) == ()
    commands: tuple[Command, ...] = leader.on_fetch(2, 3, NOW, flushed_offset=3)
    assert commands == (Do.TELL_COMMITTED,)


def test_what_cannot_be_is_refused() -> None:
    leader = leading(2)
    leader.on_append(at(3))
    with pytest.raises(AssertionError, match="what the leader does not"):
        leader.on_fetch(2, 4, NOW)
    with pytest.raises(AssertionError, match="more is flushed"):
        leader.on_flushed(at(4))
    with pytest.raises(AssertionError, match="only replicas"):
        leader.on_in_sync({9})


def test_while_others_are_eligible_a_lowered_minimum_commits_nothing() -> None:
    """It may be raised again before the cluster has struck them out, and one of them be elected."""
    leader = leading(2, 3, in_sync=(), min_in_sync=2)
    leader.set_followers((2, 3), (), NOW, has_eligible=True)
    leader.on_append(at(1))
    assert leader.configure(is_durable=False, min_in_sync=1) == ()
    assert leader.high_watermark == at(0)
    assert leader.set_followers((2, 3), (), NOW) == (Do.TELL_COMMITTED,)
    assert leader.high_watermark == at(1)


def test_a_follower_that_comes_back_for_the_same_could_not_use_what_it_got() -> None:
    leader = leading(2, 3)
    leader.on_append(at(5))
    leader.on_fetch(2, 2, NOW)
    assert not leader.returns_to(2, 2, NOW + 500), "it tells of a flush, say"
    assert leader.returns_to(2, 2, NOW + 5_000)
    assert not leader.returns_to(2, 3, NOW + 5_000)
    assert not leader.returns_to(3, 0, NOW + 5_000), "for the first time"
    assert not leader.returns_to(4, 2, NOW + 5_000)
    leader.on_fetch(2, 5, NOW + 5_000)
    assert not leader.returns_to(2, 5, NOW + 60_000), "there is nothing more to have"
