"""What clients may ask of a broker of a cluster while it starts: it listens before it has joined."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from clarion.wire.messages.topics import CreatableTopic, CreateTopicsRequest, DeleteTopicsRequest, DeleteTopicState
from tests.sim.link import LOST
from tests.sim.stories import StoryLife, tell

# What a dead process was doing is collected after its life, and may complain about it.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited"),
]


def test_topics_can_be_made_and_deleted_at_a_broker_that_has_yet_to_join() -> None:
    answers: list[tuple[int, int]] = []

    async def make_and_delete(life: StoryLife, name: str) -> None:
        link = await life.link(3)
        wanted = CreatableTopic(name=name, num_partitions=1, replication_factor=2, assignments=(), configs=())
        made = await link.ask(CreateTopicsRequest(topics=(wanted,), validate_only=False), 7)
        state = DeleteTopicState(name=name, topic_id=UUID(int=0))
        deleted = await link.ask(DeleteTopicsRequest(topics=(state,), timeout=1000), 6)
        answers.append((made.topics[0].error_code, deleted.responses[0].error_code))
        link.close()

    async def story(life: StoryLife) -> None:
        await life.stop(3)
        starting = asyncio.ensure_future(life.start(3))
        while not starting.done():
            try:
                await make_and_delete(life, f"made{len(answers)}")
            except LOST:
                await asyncio.sleep(0.01)
        await starting

    report = tell(story, thread_seconds=(0.05, 0.1))
    assert report.is_clean, report
    assert answers
    assert set(answers) == {(0, 0)}
