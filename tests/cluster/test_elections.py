"""Elections keep what was acknowledged, rule by rule; `test_election_histories` has random histories."""

from __future__ import annotations

import random

import pytest

from clarion.cluster.elections import ElectionRules, expand, is_calm, leave, prefer, reassign, settle, shrink
from clarion.cluster.schema import NO_EPOCH, NO_LEADER, BrokerRegistration, Endpoint, PartitionState

FLUSHED = ElectionRules()
CACHED = ElectionRules(is_flushed=False)
LOSSY = ElectionRules(is_flushed=False, may_lose=True)


def broker(
    number: int, epoch: int = 10, *, clean_since: int = 0, is_leaving: bool = False, held_since: int = NO_EPOCH
) -> BrokerRegistration:
    return BrokerRegistration(number, epoch, (Endpoint("h", 1),), None, clean_since, is_leaving, held_since=held_since)


def alive(*brokers: BrokerRegistration | int) -> dict[int, BrokerRegistration]:
    registrations = [broker(one) if isinstance(one, int) else one for one in brokers]
    return {one.id: one for one in registrations}


def state(**changes: object) -> PartitionState:
    whole = PartitionState(1, 5, (1, 2, 3), (1, 2, 3), lives=(10, 10, 10), min_in_sync=2)
    return whole._replace(**changes)


def test_nothing_changes_while_everybody_is_alive():
    assert settle(state(), FLUSHED, alive(1, 2, 3)) is None


def test_the_next_in_sync_replica_leads_when_the_leader_is_gone():
    settled, reason = settle(state(), FLUSHED, alive(2, 3))
    assert (settled.leader, settled.leader_epoch, settled.in_sync, settled.eligible) == (2, 6, (2, 3), ())
    assert reason == "broker 1 is gone; broker 2 leads, because broker 1 is gone"


def test_a_follower_that_is_gone_leaves_the_in_sync_set_and_nobody_is_elected():
    settled, _ = settle(state(), FLUSHED, alive(1, 3))
    assert (settled.leader, settled.leader_epoch, settled.in_sync) == (1, 5, (1, 3))


def test_a_replica_that_is_not_in_sync_is_never_elected():
    settled, reason = settle(state(in_sync=(1,)), FLUSHED, alive(2, 3))
    assert (settled.leader, settled.in_sync) == (NO_LEADER, (1,))
    assert "waiting for broker 1, which holds everything" in reason
    back, _ = settle(settled, FLUSHED, alive(broker(1, 11), 2, 3))
    assert (back.leader, back.leader_epoch) == (1, 6)


def test_a_leader_that_has_restarted_leads_in_a_new_epoch_or_another_does():
    settled, _ = settle(state(in_sync=(1,)), FLUSHED, alive(broker(1, 11)))
    assert (settled.leader, settled.leader_epoch, settled.life_of(1)) == (1, 6, 11)


def test_with_page_cache_durability_a_replica_that_crashed_is_in_sync_no_longer():
    crashed = broker(2, 12, clean_since=12)
    settled, reason = settle(state(), CACHED, alive(1, crashed, 3))
    assert settled.in_sync == (1, 3)
    assert "broker 2 has restarted without a clean stop" in reason
    assert settle(state(), FLUSHED, alive(1, crashed, 3)) is None


def test_one_clean_stop_does_not_make_up_for_the_crash_before_it():
    """It crashed into life 12, and stopped cleanly before life 13: nobody had looked in between."""
    settled, _ = settle(state(), CACHED, alive(1, broker(2, 13, clean_since=12), 3))
    assert settled.in_sync == (1, 3)


def test_who_leaves_when_too_few_are_left_stays_eligible_and_may_lead():
    lonely, _ = settle(state(in_sync=(1, 2)), FLUSHED, alive(1))
    assert (lonely.in_sync, lonely.eligible) == ((1,), (2,))
    settled, reason = settle(lonely, FLUSHED, alive(broker(2, 11)))
    assert (settled.leader, settled.in_sync, settled.eligible) == (2, (2,), ())
    assert "nothing could be acknowledged without it" in reason


def test_an_eligible_replica_is_none_when_the_minimum_was_lowered_since():
    lonely = state(in_sync=(1,), eligible=(2,))
    settled, _ = settle(lonely, ElectionRules(min_in_sync=1), alive(2))
    assert settled.leader == NO_LEADER


def test_when_all_crashed_at_once_and_are_back_one_leads_and_the_reason_warns():
    back = alive(*(broker(one, 20, clean_since=20) for one in (1, 2, 3)))
    settled, reason = settle(state(), CACHED, back)
    assert (settled.leader, settled.in_sync, settled.leader_epoch) == (1, (1,), 6)
    assert "may be missing" in reason
    some = {number: back[number] for number in (2, 3)}
    waiting, _ = settle(state(), CACHED, some)
    assert waiting.leader == NO_LEADER, "the one that is away may have everything"


@pytest.mark.parametrize("rules", [FLUSHED, CACHED])
def test_a_broker_whose_disk_was_replaced_holds_nothing_and_is_elected_by_nobody(rules):
    """All lost power; the first one back is the one with a new disk."""
    empty = broker(1, 20, clean_since=20, held_since=20)
    waiting, _ = settle(state(leader=1), rules, alive(empty))
    assert (waiting.leader, waiting.in_sync) == (NO_LEADER, (1, 2, 3))
    back = alive(empty, broker(2, 21, clean_since=21), broker(3, 22, clean_since=22))
    settled, reason = settle(waiting, rules, back)
    assert settled.leader == 2
    assert 1 not in settled.in_sync
    assert ("another data directory" if rules.is_flushed else "may be missing") in reason


def test_an_empty_disk_leads_only_where_no_replica_can_have_more():
    empty = broker(1, 20, clean_since=20, held_since=20)
    alone_in_sync = state(in_sync=(1,), min_in_sync=1)
    waiting, _ = settle(alone_in_sync, FLUSHED, alive(empty, 2, 3))
    assert waiting.leader == NO_LEADER, "the other two have most of it: whoever runs the cluster decides"
    only = state(replicas=(1,), in_sync=(1,), lives=(10,), min_in_sync=1)
    settled, reason = settle(only, FLUSHED, alive(empty))
    assert (settled.leader, settled.life_of(1)) == (1, 20)
    assert "may be missing" in reason
    assert settle(settled, FLUSHED, alive(empty)) is None


def test_a_replica_that_lacks_something_leaves_and_leads_nothing_while_others_have_everything():
    left = leave(state(), FLUSHED, 1)
    assert left is not None
    assert (left.leader, left.in_sync, left.eligible, left.leader_epoch) == (NO_LEADER, (2, 3), (), 6)
    verdict = settle(left, FLUSHED, alive(1, 2, 3))
    assert verdict is not None
    assert (verdict.state.leader, verdict.state.in_sync, verdict.state.leader_epoch) == (2, (2, 3), 7)
    follower = leave(state(), FLUSHED, 3)
    assert follower is not None
    assert (follower.leader, follower.in_sync) == (1, (1, 2))
    assert follower.leader_epoch == 6, "what it said of itself in the term before counts no longer"


def test_one_that_lacks_something_stays_where_nobody_has_more():
    assert leave(state(in_sync=(1,), min_in_sync=1), FLUSHED, 1) is None
    assert leave(state(), FLUSHED, 4) is None, "no replica"


def test_one_that_lacks_something_gives_way_to_who_is_eligible():
    left = leave(state(in_sync=(1,), eligible=(2,)), FLUSHED, 1)
    assert left is not None
    assert (left.leader, left.in_sync, left.eligible) == (NO_LEADER, (), (2,))
    verdict = settle(left, FLUSHED, alive(1, 2, 3))
    assert verdict is not None
    assert (verdict.state.leader, verdict.state.in_sync) == (2, (2,))
    assert settle(left, FLUSHED, alive(1, 3)) is None, "it waits for the one that has everything"


def test_one_that_is_served_gives_way_only_to_who_is_there():
    """The others may never come back; when they do, it still can leave. Before it is served it must not be elected."""
    alone = state(in_sync=(1,), eligible=(2,))
    assert leave(alone, FLUSHED, 1, alive(1, 3)) is None
    assert leave(alone, FLUSHED, 1, alive(1, 2, 3)) is not None
    assert leave(alone, FLUSHED, 1) is not None
    not_settled_yet = state(in_sync=(1, 2))
    assert leave(not_settled_yet, FLUSHED, 1, alive(1, 3)) is None
    assert leave(not_settled_yet, FLUSHED, 1, alive(1, broker(2, 20, held_since=20), 3)) is None, "it lost its disk"
    left = leave(not_settled_yet, FLUSHED, 1, alive(1, 2))
    assert left is not None
    assert left.in_sync == (2,)


def test_losing_messages_has_to_be_asked_for():
    settled, reason = settle(state(in_sync=(1,), min_in_sync=1), LOSSY, alive(2, 3))
    assert (settled.leader, settled.in_sync) == (2, (2,))
    assert "unclean.leader.election.enable" in reason


def test_a_broker_that_is_about_to_stop_leads_nothing_if_another_can():
    settled, _ = settle(state(), FLUSHED, alive(broker(1, is_leaving=True), 2, 3))
    assert (settled.leader, settled.in_sync) == (2, (1, 2, 3))
    everybody = alive(*(broker(one, is_leaving=True) for one in (1, 2, 3)))
    assert settle(state(), FLUSHED, everybody) is None


def test_the_preferred_leader_leads_again_when_it_is_in_sync():
    led_by_2 = state(leader=2)
    again, _ = prefer(led_by_2, FLUSHED, alive(1, 2, 3))
    assert (again.leader, again.leader_epoch) == (1, 6)
    assert prefer(led_by_2._replace(in_sync=(2, 3)), FLUSHED, alive(1, 2, 3)) is None
    assert prefer(led_by_2, FLUSHED, alive(broker(1, is_leaving=True), 2, 3)) is None
    assert prefer(led_by_2, CACHED, alive(broker(1, 12, clean_since=12), 2, 3)) is None


def test_two_have_to_acknowledge_once_a_third_was_in_sync_unless_somebody_set_it():
    young = PartitionState(1, 0, (1, 2, 3), (1,), lives=(10, -1, -1))
    two = expand(young, FLUSHED, 2, 10)
    three = expand(two, FLUSHED, 3, 10)
    assert [one.min_in_sync for one in (young, two, three)] == [1, 1, 2]
    assert shrink(three, FLUSHED, [2, 3]).min_in_sync == 2
    filled = young._replace(adding=(3,))
    assert expand(expand(filled, FLUSHED, 2, 10), FLUSHED, 3, 10).min_in_sync == 1, "replicas being added do not count"


def test_no_verdict_goes_without_a_reason():
    _, reason = settle(state(min_in_sync=1), FLUSHED, alive(1, 2, 3))
    assert "two have to acknowledge from now on" in reason
    _, reason = settle(state(in_sync=(1, 2), eligible=(3,)), FLUSHED, alive(1, 2, 3))
    assert reason


@pytest.mark.parametrize("back", [broker(3, 11, held_since=11), broker(3, 11, clean_since=11)])
def test_a_preferred_leader_does_not_make_one_hold_everything_who_has_come_back_without(back: BrokerRegistration):
    """ElectLeaders may come before the cluster manager has settled that it is in sync no longer."""
    known, here = state(leader=2), alive(1, 2, back)
    assert prefer(known, CACHED, here) is None
    settled, _ = settle(known, CACHED, here)
    preferred, _ = prefer(settled, CACHED, here)
    assert (preferred.leader, preferred.in_sync, preferred.life_of(3)) == (1, (1, 2), 10)
    assert prefer(known, CACHED, alive(1, 2)), "who is away holds what it held"


def test_a_move_ends_when_all_new_replicas_are_in_sync():
    moving = reassign(state(), (4, 5, 1))
    assert (moving.replicas, moving.adding, moving.removing) == ((4, 5, 1, 2, 3), (4, 5), (2, 3))
    assert settle(moving, FLUSHED, alive(1, 2, 3, 4, 5)) is None
    half = expand(moving, FLUSHED, 4, 10)
    assert settle(half, FLUSHED, alive(1, 2, 3, 4, 5)) is None
    done, reason = settle(expand(half, FLUSHED, 5, 10), FLUSHED, alive(1, 2, 3, 4, 5))
    assert (done.replicas, done.in_sync, done.adding, done.removing) == ((4, 5, 1), (4, 5, 1), (), ())
    assert (done.leader, done.leader_epoch) == (1, 5)
    assert "complete" in reason


def test_with_fewer_than_three_replicas_left_one_is_enough_again_unless_somebody_set_it():
    """Else a topic that is moved from three brokers to one takes nothing for all ever again."""
    for target, minimum in (((1,), 1), ((1, 2), 1), ((1, 2, 4), 2)):
        moving = reassign(state(), target)
        filled = moving._replace(in_sync=moving.replicas, lives=(10,) * len(moving.replicas))
        moved, _ = settle(filled, FLUSHED, alive(1, 2, 3, 4))
        assert (moved.replicas, moved.in_sync, moved.min_in_sync) == (target, target, minimum)


def test_a_leader_that_moves_away_hands_over_when_the_move_is_complete():
    moving = reassign(state(replicas=(1,), in_sync=(1,), lives=(10,), min_in_sync=1), (2,))
    done, _ = settle(expand(moving, FLUSHED, 2, 10), FLUSHED, alive(1, 2))
    assert (done.leader, done.leader_epoch, done.replicas, done.in_sync) == (2, 6, (2,), (2,))


def test_a_move_can_be_taken_back_and_changed():
    moving = reassign(state(), (4, 2, 3))
    back = reassign(moving, (1, 2, 3))
    assert (back.replicas, back.adding, back.removing) == ((1, 2, 3), (), ())
    other = reassign(moving, (5, 2, 3))
    assert (other.adding, other.removing) == ((5,), (1,))


def test_what_looks_calm_at_a_glance_is_what_would_not_be_changed():
    """Random states: `is_calm` may be wrong in one direction only."""
    chance = random.Random(7)
    calm = 0
    for _ in range(5000):
        replicas = tuple(chance.sample((1, 2, 3, 4), chance.choice((1, 3, 3))))
        in_sync = tuple(one for one in replicas if chance.random() < 0.9)
        known = state(
            leader=chance.choice((*replicas, NO_LEADER)),
            replicas=replicas,
            in_sync=in_sync,
            lives=tuple(10 if chance.random() < 0.95 else 9 for _ in replicas),
            eligible=tuple(one for one in replicas if one not in in_sync and chance.random() < 0.2),
            adding=tuple(one for one in replicas if chance.random() < 0.05),
            min_in_sync=chance.choice((1, 2, 2)),
        )
        here = alive(*(broker(one, is_leaving=chance.random() < 0.1) for one in (1, 2, 3, 4) if chance.random() < 0.9))
        rules = ElectionRules(chance.choice((None, 1, 2)), chance.random() < 0.5, chance.random() < 0.2)
        if is_calm(known, here):
            calm += 1
            assert settle(known, rules, here) is None, (known, here, rules)
    assert calm > 500
