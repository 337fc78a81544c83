"""Names that no record could hold are refused at the door, and never break the coordinator."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clarion.model.errors import ErrorCode
from tests.groups.driver import ClassicClient, ConsumerClient, Driver

HUGE = "x" * 40_000


@pytest.fixture
def driver():
    driver = Driver()
    driver.set_topics(t=1)
    yield driver
    assert driver.log == []
    driver.close()


def test_a_huge_group_id_is_no_group_id(driver):
    client = ClassicClient(driver, group=HUGE)
    assert client.join().joined().error_code == ErrorCode.INVALID_GROUP_ID
    assert client.beat() == ErrorCode.INVALID_GROUP_ID
    assert driver.commit(HUGE, {("t", 0): 1}) == ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize(
    "twist", [{"instance": HUGE}, {"protocol_type": HUGE}, {"protocols": ((HUGE, b""),)}], ids=list
)
def test_huge_names_in_a_join_are_refused(driver, twist):
    assert ClassicClient(driver, **twist).join().joined().error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("twist", [{"group_id": HUGE}, {"member_id": HUGE}, {"instance_id": HUGE}], ids=list)
def test_huge_names_in_a_modern_heartbeat_are_refused(driver, twist):
    request = replace(ConsumerClient(driver, "a", "t").request(), **twist)
    assert driver.tell("consumer_group_heartbeat", request, version=1).error_code == ErrorCode.INVALID_REQUEST


def test_ids_of_255_bytes_are_taken_and_longer_ones_are_not():
    driver = Driver()
    longest = "é" * 127 + "x"
    assert driver.commit(longest, {("t", 0): 1}) == ErrorCode.NONE
    assert driver.commit(longest + "x", {("t", 0): 1}) == ErrorCode.INVALID_GROUP_ID
    client = ClassicClient(driver, instance=longest).join()
    assert client.joined().error_code == ErrorCode.NONE
    assert len(client.member_id.encode()) <= 255
    driver.close()


def test_an_offset_in_a_topic_that_cannot_exist_is_refused(driver):
    assert driver.commit("g", {(HUGE, 0): 1}) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_retention_time_beyond_all_time_is_kept_for_ever():
    driver = Driver()
    assert driver.commit("g", {("t", 0): 1}, retention=2**63 - 1, version=4) == ErrorCode.NONE
    assert driver.committed("g") == {("t", 0): 1}
    driver.close()


def test_modern_members_wait_until_the_coordinator_knows_the_topics():
    driver = Driver()
    driver.coordinator = driver._built_from([])
    assert ConsumerClient(driver, "a", "t").join().error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
