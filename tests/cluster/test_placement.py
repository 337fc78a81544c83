"""Where replicas go: apart, in different racks, evenly, and no further than they must."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from clarion.cluster.placement import Load, Racks, add_replica, place, spread, spread_leaders

THREE: Racks = {1: None, 2: None, 3: None}
RACKS = st.integers(1, 3).flatmap(
    lambda racks: st.integers(1, 3).map(
        lambda each: {rack * 10 + number: f"rack {rack}" for rack in range(racks) for number in range(each)}
    )
)


def spans(counts: Counter[int], brokers: Racks) -> int:
    return max(counts[one] for one in brokers) - min(counts[one] for one in brokers)


@given(racks=RACKS, count=st.integers(1, 60), factor=st.integers(1, 4), start=st.integers(0, 100))
def test_new_partitions_are_apart_in_different_racks_and_even(racks, count, factor, start):
    load = Load()
    placed = place(count, factor, racks, load, start)
    assert len(placed) == count
    for replicas in placed:
        assert len(set(replicas)) == len(replicas) == min(factor, len(racks))
        used = Counter(racks[one] for one in replicas)
        assert max(used.values()) - min(used.values()) <= 1 or len(used) == len(set(racks.values()))
        assert len(used) == min(len(replicas), len(set(racks.values())))
    assert spans(load.leaders, racks) <= 1
    assert spans(load.replicas, racks) <= max(2, factor)


def test_three_partitions_on_three_brokers_have_a_leader_each():
    placed = place(3, 3, THREE, Load())
    assert sorted(replicas[0] for replicas in placed) == [1, 2, 3]
    assert all(sorted(replicas) == [1, 2, 3] for replicas in placed)


def test_topics_of_one_partition_do_not_all_go_to_the_first_broker():
    load = Load()
    leaders = Counter(place(1, 1, THREE, load)[0][0] for _ in range(30))
    assert leaders == {1: 10, 2: 10, 3: 10}


def test_fewer_brokers_than_replicas_hold_as_many_as_they_are():
    assert place(1, 3, {7: None}, Load()) == [(7,)]
    assert add_replica((7,), {7: None}, Load()) is None
    assert add_replica((7,), {7: None, 8: None}, Load()) == 8


def test_one_more_replica_goes_to_a_rack_that_has_none():
    racks = {1: "a", 2: "a", 3: "b"}
    busy = Load(Counter({3: 100}))
    assert add_replica((1,), racks, busy) == 3


@given(racks=RACKS, count=st.integers(1, 40), factor=st.integers(1, 3), more=st.integers(1, 3))
def test_growing_moves_no_more_than_the_share_of_the_new_brokers(racks, count, factor, more):
    before = place(count, factor, racks, Load())
    grown = racks | {100 + number: f"new rack {number}" for number in range(more)}
    after = spread(before, grown)
    total = sum(len(replicas) for replicas in before)
    moved = sum(len(set(new) - set(old)) for old, new in zip(before, after, strict=True))
    assert all(len(set(new)) == len(new) == len(old) for old, new in zip(before, after, strict=True))
    assert moved <= -(-total // len(grown)) * more + len(grown), "what the new ones take over, and hardly more"
    newcomers = Load.of(after).replicas
    assert all(newcomers[100 + number] >= min(total // len(grown), count) for number in range(more))


@given(racks=RACKS.filter(lambda racks: len(racks) > 1), count=st.integers(1, 40), factor=st.integers(1, 3))
def test_a_broker_that_goes_leaves_its_replicas_to_the_others(racks, count, factor):
    before = place(count, factor, racks, Load())
    gone = min(racks)
    left = {broker: rack for broker, rack in racks.items() if broker != gone}
    after = spread(before, left)
    for old, new in zip(before, after, strict=True):
        assert gone not in new
        assert len(set(new)) == len(new) == min(len(old), len(left))
    moved = sum(len(set(new) - set(old)) for old, new in zip(before, after, strict=True))
    assert moved <= sum(gone in old for old in before) + len(left), "its own, and hardly more"


def test_what_is_even_already_is_left_alone():
    before = place(30, 3, THREE, Load())
    assert spread(before, THREE) == before


def test_leaders_are_dealt_out_without_moving_anything():
    crowded = [(1, 2, 3)] * 9
    dealt = spread_leaders(crowded)
    assert Counter(replicas[0] for replicas in dealt) == {1: 3, 2: 3, 3: 3}
    assert all(sorted(replicas) == [1, 2, 3] for replicas in dealt)
