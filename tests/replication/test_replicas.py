"""Whatever happens to three replicas: what was acknowledged stays, and logs agree below their watermarks.

Random stories with every rule in force, and for each rule the story that breaks something as soon as it is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.replication.replicas import Cluster, Rule, Violation, settle

ACTS = ("write", "fetch", "fetch_lost", "flush", "learn", "elect", "alter", "wait", "crash", "restart", "round")
STORIES = st.lists(st.tuples(st.sampled_from(ACTS), st.integers(1, 3)), max_size=80)


def play(cluster: Cluster, story: list[tuple[str, int]]) -> None:
    for act, number in story:
        match act:
            case "fetch_lost":
                cluster.fetch(number, is_reply_lost=True)
            case "round":
                one_quiet_round(cluster, number)
            case "wait":
                cluster.wait_too_long(number)
            case _:
                getattr(cluster, act)(number)


def one_quiet_round(cluster: Cluster, number: int) -> None:
    """Somebody writes, and all goes well for a moment, for all but one."""
    cluster.write(cluster.state.leader)
    for act in (cluster.learn, cluster.fetch, cluster.flush, cluster.fetch, cluster.alter):
        for one in (1, 2, 3):
            if one != number:
                act(one)


@pytest.mark.parametrize("durable", [False, True])
@given(story=STORIES)
@settings(max_examples=60, deadline=None)
def test_nothing_acknowledged_is_lost_and_logs_agree(durable: bool, story: list[tuple[str, int]]) -> None:
    async def run() -> None:
        cluster = Cluster(durable=durable)
        play(cluster, story)
        settle(cluster)
        leader = cluster.replicas[cluster.state.leader]
        for one in cluster.replicas.values():
            assert one.messages() == leader.messages(), "once faults stop, all have the same"

    asyncio.run(run())


Story = Callable[[Cluster], None]


def watermark_is_older_than_what_was_acknowledged(cluster: Cluster) -> None:
    """KIP-101: the follower has not heard that its last message is committed, and leads before it hears of it."""
    cluster.write(1)
    cluster.fetch(2)
    cluster.fetch(2, is_reply_lost=True)
    cluster.fetch(3)
    cluster.fetch(3, is_reply_lost=True)
    assert cluster.acknowledged or cluster.off is not None
    cluster.elect(1)
    cluster.learn(2)
    cluster.elect(2)
    cluster.learn(2)


def leader_goes_before_anybody_has_fetched(cluster: Cluster) -> None:
    cluster.write(1)
    cluster.elect(2)
    cluster.learn(2)


def replies_are_lost(cluster: Cluster) -> None:
    cluster.write(1)
    cluster.fetch(2, is_reply_lost=True)
    cluster.fetch(3, is_reply_lost=True)
    cluster.elect(2)
    cluster.learn(2)


def followers_lose_power_before_they_flush(cluster: Cluster) -> None:
    cluster.write(1)
    cluster.flush(1)
    for number in (2, 3, 2, 3):
        cluster.fetch(number)
    for number in (2, 3):
        cluster.crash(number)
        cluster.restart(number)
    cluster.elect(2)
    cluster.learn(2)


def one_joins_with_what_an_old_watermark_says(cluster: Cluster) -> None:
    """2 leads with a watermark from before the last message that 1 has acknowledged; 3 has nothing at all."""
    cluster.write(1)
    cluster.fetch(2)
    cluster.fetch(2, is_reply_lost=True)
    assert cluster.acknowledged
    cluster.elect(2)
    cluster.learn(2)
    cluster.learn(3)
    cluster.fetch(3, is_reply_lost=True)
    cluster.alter(2)
    cluster.elect(3)
    cluster.learn(3)


def one_is_put_out_without_the_cluster(cluster: Cluster) -> None:
    cluster.write(1)
    cluster.wait_too_long(1)
    cluster.elect(2)
    cluster.learn(2)


STORIES_OF_RULES: list[tuple[Rule, Story, dict[str, object]]] = [
    (Rule.TRUNCATION_BY_EPOCH, watermark_is_older_than_what_was_acknowledged, {}),
    (Rule.IN_SYNC_QUORUM, leader_goes_before_anybody_has_fetched, {}),
    (Rule.WATERMARK_OF_WHAT_THEY_HAVE, replies_are_lost, {}),
    (Rule.FLUSHED_OFFSET, followers_lose_power_before_they_flush, {"durable": True}),
    (Rule.EPOCH_START, one_joins_with_what_an_old_watermark_says, {"in_sync": (1, 2)}),
    (Rule.AGREED_IN_SYNC, one_is_put_out_without_the_cluster, {}),
]


@pytest.mark.parametrize(("rule", "story", "how"), STORIES_OF_RULES, ids=lambda one: getattr(one, "name", None))
async def test_each_rule_is_needed(rule: Rule, story: Story, how: dict[str, object]) -> None:
    story(Cluster(**how))  # type: ignore[arg-type]
    with pytest.raises(Violation):
        story(Cluster(**how, off=rule))  # type: ignore[arg-type]


def test_every_rule_has_its_story() -> None:
    assert {rule for rule, _, _ in STORIES_OF_RULES} == set(Rule)
