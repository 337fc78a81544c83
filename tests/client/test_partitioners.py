"""Where messages go that name no partition."""

from __future__ import annotations

from collections import Counter

import pytest

import clarion
from clarion.client.partitioners import partitioner_of
from clarion.model.key_hash import partition_of_key
from clarion.testing import EmbeddedBroker


def chosen(told: object, count: int, partitions: int = 3) -> list[int]:
    choose = partitioner_of(told)  # type: ignore[arg-type]
    return [choose("orders", b"key", partitions) for _ in range(count)]


def test_round_robin_goes_to_each_in_turn_topic_by_topic() -> None:
    assert chosen("round-robin", 7) == [0, 1, 2, 0, 1, 2, 0]
    choose = partitioner_of("round-robin")
    assert [choose("a", None, 2), choose("b", None, 2), choose("a", None, 2)] == [0, 0, 1]


def test_weights_are_kept_exactly_and_spread_evenly() -> None:
    assert chosen({0: 5, 1: 1, 2: 1}, 7) == [0, 0, 1, 0, 2, 0, 0]
    assert Counter(chosen({0: 2, 1: 0}, 90)) == {0: 60, 2: 30}
    with pytest.raises(clarion.InvalidRequest, match="0 or more"):
        partitioner_of({0: -1})
    with pytest.raises(clarion.InvalidRequest, match="no partition of 'orders' has a weight"):
        chosen({0: 0, 1: 0, 2: 0}, 1)


def test_at_random_every_partition_gets_its_share() -> None:
    counts = Counter(chosen("random", 30_000))
    assert all(9_000 < counts[partition] < 11_000 for partition in range(3))


def test_a_partition_a_key_or_a_function() -> None:
    assert chosen(2, 3) == [2, 2, 2]
    assert chosen("key", 1) == [partition_of_key(b"key", 3)]
    assert chosen(lambda topic, key, partitions: partitions - 1, 1) == [2]
    with pytest.raises(clarion.InvalidRequest, match="key, round-robin, random"):
        partitioner_of("sticky")


def test_a_bus_writes_where_its_partitioner_says(broker: EmbeddedBroker) -> None:
    with clarion.connect(broker.bootstrap, partitioner={0: 2, 1: 1, 2: 0}) as bus:
        bus.create("weighted", partitions=3)
        assert [bus.write("weighted", b"x", key=b"k").partition for _ in range(6)] == [0, 1, 0, 0, 1, 0]
        assert bus.write("weighted", 2, b"named").partition == 2
    with (
        clarion.connect(broker.bootstrap, partitioner=lambda topic, key, partitions: partitions) as bus,
        pytest.raises(clarion.UnknownTopic, match="no partition 3"),
    ):
        bus.write("weighted", b"x")


def test_keys_go_where_every_other_writer_sends_them(broker: EmbeddedBroker) -> None:
    keys = [b"k%d" % number for number in range(50)]
    with clarion.connect(broker.bootstrap) as bus:
        bus.create("keyed", partitions=7)
        written = bus.write_many("keyed", [(key, b"v") for key in keys])
    assert [one.partition for one in written] == [partition_of_key(key, 7) for key in keys]
