"""Every rule that keeps a queue's promises is needed: without it a story ends with a promise broken, with it well.

A rule is switched off by a patch, as if somebody had forgotten it; the broker has no such switch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

from clarion.broker.apis import share_state_pieces
from clarion.broker.share_leader import ShareLeader
from clarion.model.errors import KafkaError
from clarion.queues import share_window, state_coordinator
from clarion.queues.acknowledgements import Acknowledgement
from clarion.queues.share_partition import SharePartition
from clarion.wire.messages.share_groups import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from clarion.wire.messages.share_state import (
    InitializeShareGroupStateRequest,
    InitializeStatePartition,
    InitializeStateTopic,
)
from tests.sim.queue_members import ACCEPT, NOBODYS, RELEASE
from tests.sim.queue_stories import LEADER, MEMBER, MESSAGES, QueueLife, QueueStory, tell_of_queue
from tests.sim.scenario import QUEUE_LEFT

# What a dead process was doing is collected after its life, and may complain about it.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited"),
]

ALL = range(MESSAGES)
DONE_AGAIN = "was done and is delivered again"
COUNTED_AGAIN = "is delivered to"
TWICE = "was acknowledged twice as done"
LOST = "is done, and nobody has done it"


# Stories


async def leader_dies_before_a_delivery_is_kept(told: QueueLife) -> None:
    session = await told.session(MEMBER)
    await session.fetch(1, max_wait_ms=300)
    told.life.cut(LEADER)
    await _or_silence(session.fetch(MESSAGES, max_wait_ms=300))
    told.life.kill(LEADER)
    told.life.network.mend()
    await told.life.until(lambda: told.life.state.leader not in (-1, LEADER))
    await told.fetched("second", told.life.state.leader)


async def leader_dies_before_an_acknowledgement_is_kept(told: QueueLife) -> None:
    session = await told.fetched(MEMBER)
    told.life.cut(LEADER)
    await told.say(session, dict.fromkeys(ALL, ACCEPT))
    told.life.kill(LEADER)
    told.life.network.mend()
    await told.life.until(lambda: told.life.state.leader not in (-1, LEADER))


async def write_arrives_when_its_leader_has_loaded_the_state_again(told: QueueLife) -> None:
    session = await told.fetched(MEMBER)
    late = told.lose_next_write(LEADER)
    await told.say(session, dict.fromkeys(ALL, RELEASE))
    other = await told.fetched("second")
    await told.say(other, dict.fromkeys(ALL, ACCEPT))
    await told.arrive(late[0])
    told.life.kill(LEADER)
    await told.life.until(lambda: told.life.state.leader not in (-1, LEADER))


async def write_arrives_when_another_leads(told: QueueLife) -> None:
    session = await told.fetched(MEMBER)
    late = told.lose_next_write(LEADER)
    await told.say(session, dict.fromkeys(ALL, RELEASE))
    told.life.kill(LEADER)
    await told.life.until(lambda: told.life.state.leader not in (-1, LEADER))
    leads = told.life.state.leader
    other = await told.fetched("second", leads)
    await told.say(other, dict.fromkeys(ALL, ACCEPT))
    await told.arrive(late[0])
    told.life.kill(leads)
    await told.life.start(LEADER)
    await told.life.until(lambda: told.life.state.leader not in (-1, leads))


async def write_arrives_when_the_group_was_put_back(told: QueueLife) -> None:
    session = await told.fetched(MEMBER)
    late = told.lose_next_write(LEADER)
    await told.say(session, dict.fromkeys(ALL, ACCEPT))
    await told.leave(MEMBER)
    place = AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=0)
    topics = (AlterShareGroupOffsetsRequestTopic(topic_name="t", partitions=(place,)),)
    async with told.queue.alone() as link:
        answer = await link.ask(AlterShareGroupOffsetsRequest(group_id=told.queue.group, topics=topics), 0)
    assert [one.error_code for one in answer.responses[0].partitions] == [0]
    told.queue.records.clear()  # from the beginning: all of it is to be done once more
    await told.arrive(late[0])


async def holder_vanishes(told: QueueLife) -> None:
    await told.fetched(MEMBER)


async def leader_dies_after_a_delivery(told: QueueLife) -> None:
    await told.fetched(MEMBER)
    told.life.kill(LEADER)
    await told.life.until(lambda: told.life.state.leader not in (-1, LEADER))
    await told.fetched("second", told.life.state.leader)


async def one_of_several_acknowledgements_is_of_nobodys_record(told: QueueLife) -> None:
    session = await told.fetched(MEMBER)
    await told.say(session, {0: ACCEPT, NOBODYS: ACCEPT})


async def former_holder_accepts_what_another_has_done(told: QueueLife) -> None:
    session = await told.fetched(MEMBER)
    await told.lock_ends()
    other = await told.fetched("second")
    await told.say(other, dict.fromkeys((1, 2), ACCEPT))
    await told.say(session, dict.fromkeys((1, 2), ACCEPT))


async def stranger_puts_the_group_back(told: QueueLife) -> None:
    session = await told.fetched(MEMBER)
    await told.say(session, dict.fromkeys(ALL, ACCEPT))
    again = InitializeStatePartition(partition=0, state_epoch=1000, start_offset=0)
    topic = InitializeStateTopic(topic_id=told.life.topic_id, partitions=(again,))
    link = await told.life.link(told.keeper)
    request = InitializeShareGroupStateRequest(
        group_id=told.queue.group, topics=(topic,), broker_id=LEADER, broker_epoch=1, secret="guessed"
    )
    await link.ask(request, 0)
    link.close()
    told.life.kill(LEADER)
    await told.life.until(lambda: told.life.state.leader not in (-1, LEADER))


async def _or_silence(work: Any) -> None:
    try:
        await work
    except (ConnectionError, TimeoutError):
        pass


# Rules, and how to forget them


def as_if_kept(leader: ShareLeader) -> None:
    return None


def never(share: SharePartition, now_ms: int) -> bool:
    share._deadline_ms = None
    return False


def without_counts(run: Any, first: int, last: int, wall_ahead_ms: int) -> Any:
    return _TO_BATCH(run, first, last, wall_ahead_ms)._replace(deliveries=0)


_TO_BATCH = share_window.to_batch


def as_far_as_it_goes(share: SharePartition, member: str, said: Sequence[Acknowledgement], now_ms: int) -> None:
    refused = None
    for one in said:
        try:
            _ACKNOWLEDGE(share, member, [one], now_ms)
        except KafkaError as error:
            refused = error
    if refused is not None:
        raise refused


_ACKNOWLEDGE = SharePartition.acknowledge


def whoever_holds_it(*_: Any) -> None:
    return None


def unchecked(*_: Any) -> None:
    return None


class Off(NamedTuple):
    target: Any
    name: str
    forgotten: Callable[..., Any]


class Case(NamedTuple):
    rule: str
    off: tuple[Off, ...]
    story: QueueStory
    broken: str


VERSION_OFF = Off(state_coordinator, "_check_version", unchecked)
LEADER_OFF = Off(state_coordinator, "_check_leader", unchecked)
STATE_OFF = Off(state_coordinator, "_check_state", unchecked)
NOT_KEPT = Off(ShareLeader, "saved", as_if_kept)

CASES = (
    Case("delivery-kept-before-reply", (NOT_KEPT,), leader_dies_before_a_delivery_is_kept, COUNTED_AGAIN),
    Case("acknowledgement-kept-before-reply", (NOT_KEPT,), leader_dies_before_an_acknowledgement_is_kept, DONE_AGAIN),
    Case("version", (VERSION_OFF,), write_arrives_when_its_leader_has_loaded_the_state_again, DONE_AGAIN),
    # What these two fence is fenced by the version as well: each alone is enough, and none is not.
    Case("leader-epoch", (LEADER_OFF, VERSION_OFF), write_arrives_when_another_leads, DONE_AGAIN),
    Case("state-epoch", (STATE_OFF, VERSION_OFF), write_arrives_when_the_group_was_put_back, LOST),
    Case("lock-timeout", (Off(SharePartition, "expire", never),), holder_vanishes, QUEUE_LEFT),
    Case(
        "delivery-count",
        (Off(share_window, "to_batch", without_counts),),
        leader_dies_after_a_delivery,
        COUNTED_AGAIN,
    ),
    Case(
        "all-or-none",
        (Off(SharePartition, "acknowledge", as_far_as_it_goes),),
        one_of_several_acknowledgements_is_of_nobodys_record,
        LOST,
    ),
    Case(
        "holder",
        (Off(SharePartition, "_check_held", whoever_holds_it),),
        former_holder_accepts_what_another_has_done,
        TWICE,
    ),
    Case(
        "broker-authentication",
        (Off(share_state_pieces, "check_sender", unchecked),),
        stranger_puts_the_group_back,
        DONE_AGAIN,
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_with_the_rule_the_story_ends_well(case: Case) -> None:
    report = tell_of_queue(case.story)
    assert report.is_clean, report


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_without_the_rule_a_promise_is_broken(case: Case) -> None:
    with ExitStack() as stack:
        for one in case.off:
            stack.enter_context(patch.object(one.target, one.name, one.forgotten))
        report = tell_of_queue(case.story)
    assert any(case.broken in one for one in report.violations), report


@pytest.mark.parametrize("one", [LEADER_OFF, STATE_OFF], ids=["leader-epoch", "state-epoch"])
def test_the_version_fences_what_epochs_fence(one: Off) -> None:
    story = write_arrives_when_another_leads if one is LEADER_OFF else write_arrives_when_the_group_was_put_back
    with patch.object(one.target, one.name, one.forgotten):
        report = tell_of_queue(story)
    assert report.is_clean, report
