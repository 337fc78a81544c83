"""Who leads a partition, and who is in sync: the rules that keep what was acknowledged.

Pure: the state of a partition and who is alive in, the next state and the reason out. The rules are

- Only a replica that holds everything acknowledged may lead: one that is in sync, or that was when so few were left
  that nothing could be acknowledged without it any more (`eligible`).
- A broker that comes back is in another life, with another broker epoch. Leadership ends with the life in which it
  was given, so that a leader which lost its newest messages never goes on in the same leader epoch.
- With messages in the page cache alone (`is_flushed` is false), a life that did not end with a clean stop may have
  lost some: such a replica is in sync no longer. Every life since it was known to hold everything has to have ended
  cleanly (`clean_since`), not only the last one. Flushed ones are what they were.
- A broker that comes back with another data directory, or with an older copy of its own (`held_since`), holds nothing
  of what it held that could be relied on, flushed or not.
- One that finds out by itself that it lacks something, or whose disk fails, leaves (`leave`).
- If nobody is left who may lead, the partition waits without a leader. Only where the topic says so
  (`unclean.leader.election.enable`), or where all who could hold everything are back and each may have lost
  something, is one elected all the same; the reason then says what that means.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from clarion.cluster.schema import NO_LEADER, BrokerRegistration, PartitionState

_THREE: Final = 3  # replicas in sync: from then on two of them acknowledge, if nobody has set how many should

Alive = Mapping[int, BrokerRegistration]


class ElectionRules(NamedTuple):
    """What a topic's settings say about it."""

    min_in_sync: int | None = None  # None: not set
    is_flushed: bool = True  # acknowledged means flushed, on every replica in sync
    may_lose: bool = False  # rather a leader without everything than none


class Verdict(NamedTuple):
    state: PartitionState
    reason: str


def settle(state: PartitionState, rules: ElectionRules, alive: Alive) -> Verdict | None:
    """What becomes of a partition now that these brokers are alive. None: it stays as it is."""
    trusted = [one for one in state.in_sync if _holds_everything(state, rules, alive, one)]
    verdict = _go_on(state, rules, alive, trusted) if trusted else _without_in_sync(state, rules, alive)
    return verdict if verdict is not None and _differs(verdict.state, state) else None


def is_calm(state: PartitionState, alive: Alive) -> bool:
    """Whether it can be seen at a glance that `settle` would change nothing: of ten thousand partitions nearly all."""
    if state.leader not in state.in_sync or state.adding or state.removing or state.eligible:
        return False
    if len(state.in_sync) >= _THREE and state.min_in_sync == 1:
        return False
    lives = dict(zip(state.replicas, state.lives, strict=False))
    for one in state.in_sync:
        broker = alive.get(one)
        if broker is None or broker.epoch != lives.get(one):
            return False
    return not alive[state.leader].is_leaving


def prefer(state: PartitionState, rules: ElectionRules, alive: Alive) -> Verdict | None:
    """Lead by the first of the replicas again, if it can. A term begins in the lives in which all in sync are here: one
    who is back and may have lost something is not in sync, which is to be settled before."""
    first = state.replicas[0]
    if state.leader in (first, NO_LEADER) or first not in state.in_sync:
        return None
    if (
        first not in alive
        or alive[first].is_leaving
        or not set(state.in_sync).isdisjoint(_doubted(state, rules, alive))
    ):
        return None
    led = _led_by(state, alive, first, state.in_sync)
    return Verdict(led, f"broker {first} leads again: it is the preferred leader, and in sync")


def shrink(state: PartitionState, rules: ElectionRules, out: Iterable[int]) -> PartitionState:
    """The leader no longer waits for these followers. It may not leave itself out."""
    gone = set(out)
    assert state.leader not in gone, "a leader is in sync with itself"
    return _with_in_sync(state, rules, [one for one in state.in_sync if one not in gone])


def expand(state: PartitionState, rules: ElectionRules, follower: int, life: int) -> PartitionState:
    """The leader has seen this follower, in this life of it, with all that it has itself."""
    assert follower in state.replicas
    assert follower not in state.in_sync
    joined = _with_life(state, {follower: life})
    in_sync = [one for one in state.replicas if one in state.in_sync or one == follower]
    return _with_in_sync(joined, rules, in_sync)


def leave(
    state: PartitionState, rules: ElectionRules, replica: int, alive: Alive | None = None
) -> PartitionState | None:
    """This replica says of itself that it lacks something, or can write nothing: it leads no longer, and nobody elects
    it. None if nobody else has everything either: then what it has is the best there is.

    `alive`: where it is being served, only who is there counts: to wait for somebody who may never come back helps
    nobody, and when he does it can still leave. Before it is served, all count: it might be elected for what it lost.
    A new term begins: what the replica has said in the last one, of how much it holds, lets nobody take it in again.
    """
    others = [one for one in state.in_sync if one != replica]
    eligible = [one for one in _eligible(state, rules) if one != replica]
    if replica not in state.replicas or not (others or eligible):
        return None
    if alive is not None and not any(_holds_everything(state, rules, alive, one) for one in (*others, *eligible)):
        return None
    left = _with_in_sync(state, rules, others, doubted=(replica,))
    leader = NO_LEADER if state.leader == replica else state.leader
    return left._replace(leader=leader, leader_epoch=state.leader_epoch + 1)


def reassign(state: PartitionState, target: tuple[int, ...]) -> PartitionState:
    """Begin to move the partition to these replicas: new ones are filled first, old ones go when they are in sync.

    Another target than before replaces it; the present replicas as a target end the move.
    """
    staying = tuple(one for one in state.replicas if one not in state.adding)
    adding = tuple(one for one in target if one not in staying)
    removing = tuple(one for one in staying if one not in target)
    replicas = (*target, *removing)
    lives = tuple(state.life_of(one) for one in replicas)
    in_sync = tuple(one for one in state.in_sync if one in replicas)
    eligible = tuple(one for one in state.eligible if one in replicas)
    return state._replace(
        replicas=replicas,
        lives=lives,
        in_sync=in_sync,
        eligible=eligible,
        adding=adding,
        removing=removing,
        partition_epoch=state.partition_epoch + 1,
    )


def min_in_sync(state: PartitionState, rules: ElectionRules) -> int:
    """How many have to be in sync for anything to be acknowledged to all."""
    return rules.min_in_sync if rules.min_in_sync is not None else state.min_in_sync


def _go_on(state: PartitionState, rules: ElectionRules, alive: Alive, trusted: list[int]) -> Verdict:
    gone = [one for one in state.in_sync if one not in trusted]
    settled = _with_in_sync(state, rules, trusted, doubted=_doubted(state, rules, alive))
    reasons = [f"broker {one} {_fate(state, alive, one)}" for one in gone]
    if not _may_go_on_leading(state, alive, trusted):
        leader = _best(state.replicas, trusted, alive)
        reasons.append(_why_elected(state, alive, leader))
        settled = _led_by(settled, alive, leader, settled.in_sync)
    if settled.min_in_sync > state.min_in_sync:
        reasons.append("a third replica is in sync: two have to acknowledge from now on, if nobody has set how many")
    settled, moved = _finish_move(settled, alive)
    return Verdict(settled, "; ".join([*reasons, *moved]) or "others may lead if nobody in sync is left")


def _without_in_sync(state: PartitionState, rules: ElectionRules, alive: Alive) -> Verdict | None:
    """Nobody in sync is alive with everything."""
    eligible = _eligible(state, rules)
    elected = [one for one in eligible if _holds_everything(state, rules, alive, one)]
    if elected:
        leader = _best(state.replicas, elected, alive)
        reason = f"broker {leader} leads: it was in sync when nothing could be acknowledged without it any more"
        return Verdict(_led_by(state, alive, leader, (leader,))._replace(eligible=()), reason)
    could = (*state.in_sync, *eligible)
    if (left := _left_of(state, alive, could)) and all(one in alive for one in could):
        leader = state.leader if state.leader in left else left[0]
        reason = (
            f"broker {leader} leads: everybody who was in sync has restarted without a clean stop, or without its data;"
            " messages that were in no more than their page caches, or on those disks, may be missing"
        )
        return Verdict(_led_by(state, alive, leader, (leader,))._replace(eligible=()), reason)
    if rules.may_lose and (here := [one for one in state.replicas if one in alive]):
        leader = _best(state.replicas, here, alive)
        reason = (
            f"broker {leader} leads though it was not in sync: unclean.leader.election.enable allows losing messages"
        )
        return Verdict(_led_by(state, alive, leader, (leader,))._replace(eligible=()), reason)
    if state.leader == NO_LEADER:
        return None
    waits_for = " or ".join(f"broker {one}" for one in could) or "a replica"
    without = state._replace(leader=NO_LEADER, partition_epoch=state.partition_epoch + 1)
    return Verdict(without, f"nobody may lead: waiting for {waits_for}, which holds everything")


def _eligible(state: PartitionState, rules: ElectionRules) -> tuple[int, ...]:
    """Only as long as those in sync can acknowledge nothing: the minimum may have been lowered since."""
    return state.eligible if len(state.in_sync) < min_in_sync(state, rules) else ()


def _left_of(state: PartitionState, alive: Alive, could: tuple[int, ...]) -> tuple[int, ...]:
    """Those who still have the disk on which it was. An empty log leads only where no replica can have more."""
    has_any = any(one not in alive or not _is_empty_handed(state, alive, one) for one in state.replicas)
    return tuple(one for one in could if not (has_any and one in alive and _is_empty_handed(state, alive, one)))


def _is_empty_handed(state: PartitionState, alive: Alive, replica: int) -> bool:
    """It is back with another data directory than the one that held this, or with what was in it earlier."""
    return alive[replica].held_since > state.life_of(replica)


def _holds_everything(state: PartitionState, rules: ElectionRules, alive: Alive, replica: int) -> bool:
    """It is alive, and nothing that it held has been lost since."""
    broker = alive.get(replica)
    if broker is None or _is_empty_handed(state, alive, replica):
        return False
    return rules.is_flushed or broker.clean_since <= state.life_of(replica)


def _doubted(state: PartitionState, rules: ElectionRules, alive: Alive) -> list[int]:
    """They are back, and may have lost something."""
    return [one for one in state.replicas if one in alive and not _holds_everything(state, rules, alive, one)]


def _is_here(state: PartitionState, alive: Alive, replica: int) -> bool:
    return replica in alive and alive[replica].epoch == state.life_of(replica)


def _may_go_on_leading(state: PartitionState, alive: Alive, trusted: list[int]) -> bool:
    leader = state.leader
    if leader not in trusted or not _is_here(state, alive, leader):
        return False
    return not alive[leader].is_leaving or all(alive[one].is_leaving for one in trusted)


def _best(order: Iterable[int], candidates: Iterable[int], alive: Alive) -> int:
    """The most preferred one that is not about to leave; else the most preferred one."""
    places = {replica: at for at, replica in enumerate(order)}
    return min(candidates, key=lambda one: (alive[one].is_leaving, places[one]))


def _led_by(state: PartitionState, alive: Alive, leader: int, in_sync: Iterable[int]) -> PartitionState:
    lives = {one: alive[one].epoch for one in in_sync if one in alive}
    return _with_life(state, lives)._replace(
        leader=leader,
        leader_epoch=state.leader_epoch + 1,
        in_sync=tuple(in_sync),
        partition_epoch=state.partition_epoch + 1,
    )


def _with_life(state: PartitionState, lives: Mapping[int, int]) -> PartitionState:
    return state._replace(lives=tuple(lives.get(one, state.life_of(one)) for one in state.replicas))


def _with_in_sync(
    state: PartitionState, rules: ElectionRules, in_sync: Iterable[int], doubted: Iterable[int] = ()
) -> PartitionState:
    """Who leaves when fewer than the minimum are left stays eligible: nothing is acknowledged from there on."""
    now = tuple(in_sync)
    settled = sum(one not in state.adding for one in now)
    minimum = 2 if settled >= _THREE else state.min_in_sync
    state = state._replace(min_in_sync=minimum)
    eligible: tuple[int, ...] = ()
    if len(now) < min_in_sync(state, rules):
        left = (*state.eligible, *(one for one in state.in_sync if one not in state.eligible))
        eligible = tuple(one for one in left if one not in now and one not in tuple(doubted))
    return state._replace(in_sync=now, eligible=eligible, partition_epoch=state.partition_epoch + 1)


def _finish_move(state: PartitionState, alive: Alive) -> tuple[PartitionState, list[str]]:
    """The move to other replicas is over when all new ones are in sync."""
    if not (state.adding or state.removing) or not set(state.adding) <= set(state.in_sync):
        return state, []
    kept = tuple(one for one in state.in_sync if one not in state.removing)
    if not kept:
        return state, []
    target = tuple(one for one in state.replicas if one not in state.removing)
    done = state._replace(
        replicas=target,
        lives=tuple(state.life_of(one) for one in target),
        in_sync=kept,
        eligible=tuple(one for one in state.eligible if one in target),
        adding=(),
        removing=(),
        min_in_sync=state.min_in_sync if len(target) >= _THREE else 1,  # as of a topic that is made with so few
        partition_epoch=state.partition_epoch + 1,
    )
    reasons = [f"its move to the brokers {', '.join(map(str, target))} is complete"]
    if state.leader in state.removing:
        leader = _best(target, kept, alive)
        done = _led_by(done, alive, leader, kept)
        reasons.append(f"broker {leader} leads, since broker {state.leader} is a replica no longer")
    return done, reasons


def _fate(state: PartitionState, alive: Alive, replica: int) -> str:
    if replica not in alive:
        return "is gone"
    is_empty = _is_empty_handed(state, alive, replica)
    return "is back with another data directory, or an older copy" if is_empty else "has restarted without a clean stop"


def _why_elected(state: PartitionState, alive: Alive, leader: int) -> str:
    before = state.leader
    if before == NO_LEADER:
        return f"broker {leader} leads: it is here with everything"
    if before == leader:
        return f"broker {leader} leads on in a new epoch: it has restarted"
    if before in alive and alive[before].is_leaving:
        return f"broker {leader} leads, because broker {before} is leaving"
    if before in alive:
        return f"broker {leader} leads, because broker {before} has restarted"
    return f"broker {leader} leads, because broker {before} is gone"


def _differs(new: PartitionState, old: PartitionState) -> bool:
    return new._replace(partition_epoch=0, lives=()) != old._replace(partition_epoch=0, lives=())
