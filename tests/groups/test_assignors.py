"""The server-side assignors: every partition once, evenly, and moving no more than needed."""

from __future__ import annotations

import time
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.groups.assignors import ASSIGNORS, Wishes, range_, uniform
from clarion.groups.partitions import count, each

TOPICS = [UUID(int=n) for n in range(1, 6)]
counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 9), min_size=1)


@st.composite
def wishes(draw, *, equal: bool = False) -> Wishes:
    members = [f"m{n:02}" for n in range(draw(st.integers(1, 8)))]
    partition_counts = draw(counts)
    subsets = st.frozensets(st.sampled_from(sorted(partition_counts)))
    everything = frozenset(partition_counts)
    subscriptions = {member: everything if equal else draw(subsets) for member in members}
    wanted = frozenset().union(*subscriptions.values())
    return Wishes(members, subscriptions, {t: n for t, n in sorted(partition_counts.items()) if t in wanted}, {})


def changed(draw, before: Wishes, assigned, *, equal: bool = False) -> Wishes:
    """The same group after members came and went."""
    after = draw(wishes(equal=equal))
    return after._replace(previous={member: held for member, held in assigned.items() if member in after.members})


def check_sound(asked: Wishes, assigned) -> None:
    assert set(assigned) == set(asked.members)
    given_out = [partition for held in assigned.values() for partition in each(held)]
    wanted = [(topic, number) for topic, total in asked.partition_counts.items() for number in range(total)]
    assert sorted(given_out) == sorted(wanted)
    for member, held in assigned.items():
        assert set(held) <= asked.subscriptions[member]
        assert all(held.values())


@pytest.mark.parametrize("name", ASSIGNORS)
@given(data=st.data())
def test_every_partition_has_exactly_one_owner_who_wants_it(name, data):
    asked = data.draw(wishes())
    assigned = ASSIGNORS[name](asked)
    check_sound(asked, assigned)
    later = changed(data.draw, asked, assigned)
    check_sound(later, ASSIGNORS[name](later))


@given(data=st.data())
def test_uniform_is_even_when_all_want_the_same(data):
    asked = data.draw(wishes(equal=True))
    for _ in range(3):
        assigned = uniform(asked)
        shares = [count(held) for held in assigned.values()]
        assert max(shares) - min(shares) <= 1
        asked = changed(data.draw, asked, assigned, equal=True)


@given(data=st.data())
def test_uniform_leaves_nobody_two_richer_than_one_who_could_take_it(data):
    asked = data.draw(wishes())
    asked = changed(data.draw, asked, uniform(asked))
    assigned = uniform(asked)
    for giver, held in assigned.items():
        for taker in asked.members:
            could_take = any(topic in asked.subscriptions[taker] for topic in held)
            assert not could_take or count(held) - count(assigned[taker]) < 2, giver


@pytest.mark.parametrize("name", ASSIGNORS)
@given(data=st.data())
def test_nothing_moves_when_nothing_changes(name, data):
    asked = data.draw(wishes())
    assigned = ASSIGNORS[name](asked)
    assert ASSIGNORS[name](asked._replace(previous=assigned)) == assigned


@given(st.integers(2, 8), st.integers(0, 40))
def test_uniform_moves_only_what_a_leaver_held(members, partitions):
    names = [f"m{n}" for n in range(members)]
    topic = frozenset(TOPICS[:1])
    asked = Wishes(names, dict.fromkeys(names, topic), {TOPICS[0]: partitions}, {})
    assigned = uniform(asked)
    remaining = names[1:]
    after = uniform(asked._replace(members=remaining, previous={one: assigned[one] for one in remaining}))
    for member in remaining:
        assert set(each(assigned[member])) <= set(each(after[member]))


@given(st.integers(1, 8), st.integers(0, 40))
def test_uniform_takes_from_each_no_more_than_a_newcomer_needs(members, partitions):
    names = [f"m{n}" for n in range(members)]
    topic = frozenset(TOPICS[:1])
    asked = Wishes(names, dict.fromkeys(names, topic), {TOPICS[0]: partitions}, {})
    before = uniform(asked)
    grown = [*names, "newcomer"]
    after = uniform(Wishes(grown, dict.fromkeys(grown, topic), {TOPICS[0]: partitions}, before))
    moved = sum(len(set(each(before[one])) - set(each(after[one]))) for one in names)
    assert moved == count(after["newcomer"])


def test_range_splits_topics_of_equal_size_alike():
    names = ["a", "b", "c"]
    topics = frozenset(TOPICS[:2])
    assigned = range_(Wishes(names, dict.fromkeys(names, topics), {TOPICS[0]: 7, TOPICS[1]: 7}, {}))
    assert [sorted(assigned[one][TOPICS[0]]) for one in names] == [[0, 1, 2], [3, 4], [5, 6]]
    assert all(assigned[one][TOPICS[0]] == assigned[one][TOPICS[1]] for one in names)


@pytest.mark.parametrize("name", ASSIGNORS)
@pytest.mark.parametrize("equal", [True, False])
def test_a_thousand_members_and_a_thousand_partitions_are_quick(name, equal):
    topics = [UUID(int=n) for n in range(10)]
    names = [f"m{n:04}" for n in range(1000)]
    subscriptions = {one: frozenset(topics if equal else topics[at % 5 :]) for at, one in enumerate(names)}
    asked = Wishes(names, subscriptions, dict.fromkeys(topics, 100), {})
    started = time.process_time()
    assigned = ASSIGNORS[name](asked)
    gone = {one: held for one, held in assigned.items() if one != "m0500"}
    again = asked._replace(members=sorted(gone), previous=gone)
    ASSIGNORS[name](again)
    assert time.process_time() - started < 2.0
