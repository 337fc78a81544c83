"""What the simulated members of groups take for a broken promise: nothing that a slow network alone can explain."""

from __future__ import annotations

import asyncio

import pytest

from clarion.model.errors import ErrorCode
from tests.history import Committed
from tests.sim.group_members import Offsets
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


def test_an_answer_that_is_late_breaks_no_promise():
    report = tell(a_question_is_under_way_while_another_member_asks_and_commits)
    assert report.is_clean, report
