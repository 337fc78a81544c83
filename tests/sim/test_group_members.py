"""What the simulated members of groups take for a broken promise: nothing that a slow network alone can explain."""

from __future__ import annotations

import asyncio

import pytest

from clarion.model.errors import ErrorCode
from tests.history import Committed
from tests.sim.clients import Violation
from tests.sim.group_members import ClassicMember, Fenced, Generations, Offsets
from tests.sim.link import Link
from tests.sim.stories import GROUP, StoryLife, tell

# What a dead process was doing is collected after its life, and may complain about it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

HELD_SECONDS = 2.6  # longer than a rebalance waits for somebody, shorter than he waits for his answer


async def a_question_is_under_way_while_another_member_asks_and_commits(life: StoryLife) -> None:
    """Cluster seed 8974382: the first to ask was the last to be answered, and heard of the newest commit."""
    at = await life.coordinator(1)
    await life.commit_until_acked(1, at)
    offsets = Offsets(life.world, GROUP, next_offset={0: 1})
    slow, quick = await life.link(at), await life.link(at)
    slow._transport.hold(HELD_SECONDS)
    asking = asyncio.ensure_future(offsets.compare(slow, 0))
    await asyncio.sleep(0)
    await offsets.compare(quick, 0)
    assert await offsets.commit(quick, 0, -1, "") == ErrorCode.NONE
    await asking
    assert {one.offset for one in life.world.history if isinstance(one, Committed)} == {1, 2}


async def a_member_hears_of_its_work_when_the_group_has_gone_on_without_it(life: StoryLife) -> None:
    at = await life.coordinator(1)
    await life.commit_until_acked(1, at)
    offsets, generations = Offsets(life.world, GROUP), Generations()
    leader, other = (ClassicMember(life.world, name, offsets, generations) for name in ("leader", "other"))
    links = {leader: await life.link(at), other: await life.link(at)}
    for one in (leader, other):
        with pytest.raises(Fenced):  # with the member id that it is to come with
            await one._join(links[one])
    assert await leader._join_and_sync(links[leader]) is not None
    coming = asyncio.ensure_future(other._join(links[other]))
    await asyncio.sleep(0.1)
    joined, coming_too = await leader._join(links[leader]), await coming
    assert joined.generation_id == coming_too.generation_id == 2
    links[other]._transport.peer.hold(HELD_SECONDS)
    waiting = asyncio.ensure_future(other._sync(links[other], coming_too))
    assert await leader._sync(links[leader], joined) is not None
    assert (await leader._join_and_sync(links[leader]))[0] == 3  # type: ignore[index]
    assert not waiting.done()
    assert await waiting is not None


@pytest.mark.parametrize(
    "story",
    [
        a_question_is_under_way_while_another_member_asks_and_commits,
        a_member_hears_of_its_work_when_the_group_has_gone_on_without_it,
    ],
)
def test_an_answer_that_is_late_breaks_no_promise(story):
    report = tell(story)
    assert report.is_clean, report


def test_who_asks_for_work_of_a_generation_that_has_gone_and_gets_it_says_so():
    async def an_old_coordinator_gives_work(life: StoryLife) -> None:
        at = await life.coordinator(1)
        await life.commit_until_acked(1, at)
        generations = Generations()
        member = ClassicMember(life.world, "member", Offsets(life.world, GROUP), generations)
        link: Link = await life.link(at)
        with pytest.raises(Fenced):
            await member._join(link)
        joined = await member._join(link)
        generations.newest = joined.generation_id + 1  # somebody heard of it
        with pytest.raises(Violation, match="when 2 had begun"):
            await member._sync(link, joined)

    report = tell(an_old_coordinator_gives_work)
    assert report.is_clean, report
