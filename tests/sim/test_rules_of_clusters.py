"""Every rule that keeps a cluster's promises is needed: without it a story ends with a promise broken, with it well.

A rule is switched off by a patch, as if somebody had forgotten it; the broker has no such switch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

from clarion.broker.apis import k01_fetch
from clarion.broker.config import Durability
from clarion.cluster import controller, elections, in_sync
from clarion.cluster.changes import change
from clarion.cluster.coordination import Compare
from clarion.cluster.membership import BrokerMembership
from clarion.cluster.schema import CONTROLLER
from clarion.replication.leader import NOTHING, TELL_COMMITTED, Commands, Leader, Progress
from clarion.replication.partition import Partition
from clarion.wire.apis import FETCH
from clarion.wire.replica_fetch import LAST_VERSION, AskedPartition, ReplicaRequest, encode_request
from tests.sim.cluster import LEASE_SECONDS
from tests.sim.stories import Story, StoryLife, tell

# What a dead process was doing is collected after its life, and may complain about it.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited"),
]

ONE_IS_ENOUGH = {"min.insync.replicas": "1"}
# What the checker calls it when something acknowledged is gone, or something older is told than before.
BROKEN = ("lost-write", "unseen", "inconsistent-offsets", "commit-lost")


# Stories


async def leader_dies_with_what_nobody_else_has(life: StoryLife) -> None:
    await life.send_until_acked("all have it", 1)
    life.cut(1)
    await life.send("only at 1", 1)
    life.lose_power(1)
    life.network.mend()
    await life.until_led_by(2)
    await life.send_until_acked("after it", 2)


async def leader_comes_back_with_a_tail_that_was_never_acknowledged(life: StoryLife) -> None:
    await life.send_until_acked("all have it", 1)
    life.cut(1)
    for number in range(3):
        await life.send(f"tail {number}", 1, acks=1)
    life.kill(1)
    life.network.mend()
    await life.until_led_by(2)
    for number in range(5):
        await life.send_until_acked(f"kept {number}", 2)
    await life.start(1)
    await life.until_led_by(1)  # as the preferred leader, as soon as it is in sync


async def all_lose_power_in_the_moment_of_an_acknowledgement(life: StoryLife) -> None:
    assert await life.send("acknowledged", 1) == 0
    life.lose_power(1, 2, 3)
    await life.start(2, 3)
    await asyncio.sleep(2 * LEASE_SECONDS)
    await life.start(1)


async def follower_loses_its_page_cache_and_is_alone(life: StoryLife) -> None:
    assert await life.send("acknowledged", 1) == 0
    life.lose_power(2)
    life.cut(2)
    await life.start(2)
    await asyncio.sleep(0.5)
    life.kill(1, 3)
    life.network.mend()
    await asyncio.sleep(3 * LEASE_SECONDS)
    await life.start(1, 3)


async def one_that_was_away_is_alone_for_a_while(life: StoryLife) -> None:
    life.kill(2, 3)
    await life.until_in_sync(1)
    await life.send_until_acked("only 1 was there", 1)
    life.kill(1)
    await life.start(2, 3)
    await asyncio.sleep(3 * LEASE_SECONDS)
    await life.start(1)


async def somebody_calls_himself_the_followers(life: StoryLife) -> None:
    life.cut(1)
    sending = asyncio.ensure_future(life.send("only at 1", 1))
    await life.until(lambda: life.partition(1).next_offset == 1)  # type: ignore[union-attr]
    for replica in (2, 3):
        await fetch_as(life, replica)
    await sending
    life.lose_power(1)
    life.network.mend()
    await life.until_led_by(2)
    await life.send_until_acked("after it", 2)


async def fetch_as(life: StoryLife, replica: int) -> None:
    """In the leader's epoch, and with all that it has, as somebody says who may know that, but not the secret."""
    led = life.partition(1)
    assert led is not None
    asked = AskedPartition(0, led.leader_epoch, led.next_offset, led.latest_epoch, 0, 1 << 20, led.next_offset)
    request = ReplicaRequest(replica, 1, b"guessed", 0, -1, 0, 0, 1 << 20, {life.topic_id: [asked]}, {})
    link = await life.link(1)
    await link.send(FETCH, LAST_VERSION, encode_request(request))
    link.close()


async def coordinator_is_cut_off_and_asked_when_it_has_a_successor(life: StoryLife) -> None:
    before = await life.coordinator(1)
    await life.commit_until_acked(5, before)
    life.cut(before)
    life.cut_from_store(before)
    other = next(one for one in (1, 2, 3) if one != before)
    after = await life.coordinator(other, other_than=before)
    await life.commit_until_acked(6, after)
    await life.committed(after)
    await life.committed(before)


async def leader_is_dead_when_its_word_arrives(life: StoryLife) -> None:
    """1 wants to go on without 3. When the store hears of it, 1 has died, 2 leads and has acknowledged more."""
    life.network.cut("broker-1", "broker-3")
    life.network.cut("broker-3", "broker-1")
    held = life.hold_next_change(1)
    await life.send("3 lacks it", 1)
    await life.until(lambda: held)
    life.kill(1)
    life.network.mend()
    await life.until_led_by(2)
    await life.until_in_sync(2, 3)
    await life.send_until_acked("2 and 3 have it", 2)
    life.cut(1)
    await life.start(1)
    life.arrive(held[0])
    await asyncio.sleep(1)
    life.network.mend()
    await asyncio.sleep(3 * LEASE_SECONDS)


async def controller_has_a_successor_when_its_decision_arrives(life: StoryLife) -> None:
    """It has decided that one of the others is gone; when the store hears of it, that one is back, and it is not."""
    decides = int(life.registry.entries[CONTROLLER].value)
    gone, other = [one for one in (1, 2, 3) if one != decides]
    held = life.hold_next_change(decides)
    life.kill(gone)
    await life.until(lambda: held)
    life.cut(decides)
    life.cut_from_store(decides)
    await life.until(lambda: decides not in life.state.in_sync)
    await life.start(gone)
    await life.until_in_sync(gone, other)
    await life.until(lambda: life.state.leader in (gone, other))
    await life.send_until_acked("those two have it", life.state.leader)
    life.arrive(held[0])
    life.kill(gone, other)
    life.network.mend()
    life.host(decides).machine.store_losses = 0.0
    await asyncio.sleep(4 * LEASE_SECONDS)
    await life.start(gone, other)


# Rules, and how to forget them


def no_epochs_compared(partition: Partition, last_fetched_epoch: int, next_offset: int) -> None:
    return None


def without_waiting_for_anybody(leader: Leader) -> Commands:
    position = leader.flushed if leader._is_durable else leader.end
    if position <= leader.high_watermark:
        return NOTHING
    leader.high_watermark = position
    leader._uncommitted.forget(position)
    return TELL_COMMITTED


def sent_is_received(leader: Leader, follower: Progress) -> int:
    return leader.end.offset if follower.next_offset >= 0 else -1


def flushed_or_not(leader: Leader, follower: Progress) -> int:
    return follower.next_offset


def anybody_leads(state: Any, rules: Any, alive: Any) -> Any:
    return _WITHOUT_IN_SYNC(state, rules._replace(may_lose=True), alive)


_WITHOUT_IN_SYNC = elections._without_in_sync


def crashed_or_not(state: Any, rules: Any, alive: Any, replica: int) -> bool:
    return _HOLDS(state, rules._replace(is_flushed=True), alive, replica)


_HOLDS = elections._holds_everything


async def written_over_whatever_is_there(store: Any, compares: list[Compare], operations: Any, follow: Any) -> bool:
    if any(one.key == CONTROLLER for one in operations):
        return await change(store, compares, operations, follow)
    return (await store.transact([], operations)).succeeded


class Case(NamedTuple):
    rule: str
    target: Any
    name: str
    forgotten: Callable[..., Any]
    story: Story
    how: dict[str, Any] = {}  # noqa: RUF012


CASES = (
    Case("epoch-fencing", in_sync, "change", written_over_whatever_is_there, leader_is_dead_when_its_word_arrives),
    Case(
        "controller-fencing",
        controller,
        "change",
        written_over_whatever_is_there,
        controller_has_a_successor_when_its_decision_arrives,
        ONE_IS_ENOUGH,
    ),
    Case(
        "epoch-truncation",
        Partition,
        "diverging_epoch",
        no_epochs_compared,
        leader_comes_back_with_a_tail_that_was_never_acknowledged,
    ),
    Case("in-sync-quorum", Leader, "_commit", without_waiting_for_anybody, leader_dies_with_what_nobody_else_has),
    Case("watermark-advance", Leader, "_held", sent_is_received, leader_dies_with_what_nobody_else_has),
    Case(
        "flushed-offset",
        Leader,
        "_held",
        flushed_or_not,
        all_lose_power_in_the_moment_of_an_acknowledgement,
        {"thread_seconds": (0.5, 0.5)},
    ),
    Case(
        "unclean-restart",
        elections,
        "_holds_everything",
        crashed_or_not,
        follower_loses_its_page_cache_and_is_alone,
        {"durability": Durability.PAGE_CACHE},
    ),
    Case(
        "eligible-leaders",
        elections,
        "_without_in_sync",
        anybody_leads,
        one_that_was_away_is_alone_for_a_while,
        ONE_IS_ENOUGH,
    ),
    Case(
        "replica-authentication",
        k01_fetch,
        "check_replica",
        lambda *_: None,
        somebody_calls_himself_the_followers,
        {"durability": Durability.PAGE_CACHE},
    ),
    Case(
        "lease-check",
        BrokerMembership,
        "lease_is_valid",
        lambda _: True,
        coordinator_is_cut_off_and_asked_when_it_has_a_successor,
    ),
)

RULES = {
    "epoch-fencing",
    "epoch-truncation",
    "in-sync-quorum",
    "watermark-advance",
    "lease-check",
    "flushed-offset",
    "controller-fencing",
    "eligible-leaders",
    "unclean-restart",
    "replica-authentication",
}


def test_every_rule_has_its_story() -> None:
    assert {case.rule for case in CASES} == RULES


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_with_the_rule_the_story_ends_well(case: Case) -> None:
    report = tell(case.story, **case.how)
    assert report.is_clean, report


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_without_the_rule_a_promise_is_broken(case: Case) -> None:
    with patch.object(case.target, case.name, case.forgotten):
        report = tell(case.story, **case.how)
    assert any(one.startswith(BROKEN) for one in report.violations), report
