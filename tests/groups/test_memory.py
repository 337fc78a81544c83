"""What clients may make the coordinator keep: bounded by bytes, and given back when they go."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from clarion.groups.classic_group import ClassicGroup
from clarion.groups.config import GroupConfig
from clarion.model.errors import ErrorCode
from clarion.wire.messages.groups import DeleteGroupsRequest
from tests.groups.driver import ClassicClient, ConsumerClient, Driver, settle, subscription

MIB = 1024 * 1024


def _driver(**limits) -> Driver:
    driver = Driver(GroupConfig(initial_rebalance_delay_ms=0, **limits))
    driver.set_topics(t=4)
    return driver


def _used(driver: Driver) -> int:
    return driver.coordinator.shard.ledger.used


def test_members_with_megabytes_of_metadata_fill_their_group_and_no_more():
    driver = _driver(group_bytes_max=8 * MIB)
    fat = subscription("t", user_data=bytes(MIB))
    clients = [ClassicClient(driver, version=3, protocols=(("range", fat),)).join() for _ in range(20)]
    refused = [one for one in clients if not driver.is_waiting(one.ticket) and one.joined().error_code]
    assert {one.joined().error_code for one in refused} == {ErrorCode.GROUP_MAX_SIZE_REACHED}
    assert len(refused) == 13
    assert _used(driver) <= 8 * MIB
    driver.advance(700_000)
    assert _used(driver) < 2_000, "they are gone, and so is what they brought"
    driver.close()


def test_the_first_step_of_a_join_costs_little_and_is_counted_too():
    driver = _driver(group_bytes_max=100_000)
    codes = [driver.answers[ClassicClient(driver)._join()].error_code for _ in range(200)]
    assert codes[0] == ErrorCode.MEMBER_ID_REQUIRED
    assert codes[-1] == ErrorCode.GROUP_MAX_SIZE_REACHED
    driver.advance(20_000)
    assert _used(driver) == 0
    assert driver.answers[ClassicClient(driver)._join()].error_code == ErrorCode.MEMBER_ID_REQUIRED
    driver.close()


def test_a_member_that_rejoins_with_more_is_refused_and_keeps_its_place():
    driver = _driver(group_bytes_max=100_000)
    client = ClassicClient(driver).join()
    settle(client)
    client.protocols = (("range", subscription("t", user_data=bytes(200_000))),)
    assert client.join().joined().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert client.beat() == ErrorCode.NONE
    driver.close()


def test_an_assignment_beyond_the_groups_limit_is_refused_and_a_smaller_one_is_taken():
    driver = _driver(group_bytes_max=100_000)
    client = ClassicClient(driver).join()
    client.joined()
    refused = driver.answers[client.sync({client.member_id: bytes(200_000)})]
    assert refused.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert driver.answers[client.sync({client.member_id: b"work"})].assignment == b"work"
    driver.close()


def test_modern_members_are_bounded_by_what_they_subscribe_to():
    driver = _driver(group_bytes_max=100_000)
    names = tuple(f"{'x' * 200}-{n}" for n in range(100))
    codes = [ConsumerClient(driver, f"m{n}", *names).join().error_code for n in range(10)]
    assert codes[0] == ErrorCode.NONE
    assert codes[-1] == ErrorCode.GROUP_MAX_SIZE_REACHED
    first = ConsumerClient(driver, "m0", *names)
    assert first.join().error_code == ErrorCode.NONE, "who is in stays in"
    driver.close()


def test_many_groups_with_long_metadata_fill_the_brokers_share_and_old_ones_commit_on():
    driver = _driver(memory_bytes_max=MIB)
    note = "n" * 4_000
    codes = [driver.commit(f"g{n}", {("t", 0): 1}, metadata=note) for n in range(300)]
    taken = codes.count(ErrorCode.NONE)
    assert 100 < taken < 250
    assert codes[taken:] == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * (300 - taken)
    assert _used(driver) <= MIB
    assert driver.commit("g0", {("t", 0): 2}, metadata=note) == ErrorCode.NONE
    names = tuple(f"g{n}" for n in range(taken))
    driver.tell("delete_groups", DeleteGroupsRequest(groups_names=names), version=2)
    assert _used(driver) == 0
    assert driver.commit("new", {("t", 0): 1}, metadata=note) == ErrorCode.NONE
    driver.close()


def test_a_commit_does_not_look_at_the_members_of_its_group(monkeypatch):
    driver = _driver()
    client = ClassicClient(driver).join()
    settle(client)
    monkeypatch.setattr(ClassicGroup, "weight", None)  # what adds up all members cannot be called
    assert client.commit(5) == ErrorCode.NONE
    monkeypatch.undo()
    driver.close()


def test_a_restart_counts_what_the_log_has():
    driver = _driver()
    driver.commit("g", {("t", 0): 1}, metadata="n" * 100)
    settle(ClassicClient(driver, group="h").join())
    ConsumerClient(driver, "m", "t", group="i").join()
    before = _used(driver)
    driver.restart()
    assert _used(driver) == before
    driver.close()


@pytest.mark.parametrize("kind", ["offsets", "groups with one offset", "classic", "consumer", "pending"])
def test_the_estimate_is_about_what_python_takes(kind):
    """Between half and three times of it: enough to keep a promise about megabytes."""
    driver = _driver()
    driver.set_topics(t=1)
    tracemalloc.start()
    try:
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        for n in range(500):
            _bring(driver, kind, n)
        # What only this test's driver remembers.
        driver.answers.clear(), driver.asked.clear(), driver.dialects.clear(), driver.log.clear()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.5 < _used(driver) / (after - before) < 3, (_used(driver), after - before)


def _bring(driver: Driver, kind: str, n: int) -> None:
    if kind == "offsets":
        driver.commit("g", {("t", n): n + 1_000})
    elif kind == "groups with one offset":
        driver.commit(f"group-{n}", {("t", 0): n + 1_000})
    elif kind == "classic":
        settle(ClassicClient(driver, group=f"group-{n}", version=3).join())
    elif kind == "consumer":
        ConsumerClient(driver, f"member-{n}", "t", group=f"group-{n}").join()
    else:
        ClassicClient(driver)._join()
