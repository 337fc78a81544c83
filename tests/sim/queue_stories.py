"""Stories of queues: a share group of the stories' topic, whose state another broker keeps than the one that leads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from clarion.broker.share_states import ShareStates
from clarion.model.errors import ErrorCode, KafkaError
from clarion.queues.state_coordinator import StateRequest, WriteState
from clarion.queues.state_records import ShareKey
from clarion.wire.messages.share_groups import ShareGroupHeartbeatRequest
from tests.sim.clients import Violation
from tests.sim.link import LOST
from tests.sim.queue_members import LOCK_MS, Queue, QueueMember, Session
from tests.sim.scenario import QUEUE_LEFT, Report
from tests.sim.stories import StoryLife, tell

MESSAGES = 5
LEADER = 1
MEMBER = "first"
END_SECONDS = 30.0  # virtual: many times as long as locks last

QueueStory = Callable[["QueueLife"], Awaitable[None]]


def tell_of_queue(story: QueueStory, **how: Any) -> Report:
    async def told(life: StoryLife) -> None:
        queue = QueueLife(life)
        await queue.begin()
        await story(queue)
        await queue.end()

    return tell(told, **how)


class QueueLife:
    def __init__(self, life: StoryLife) -> None:
        self.life = life
        self.queue = Queue(life.world, "", 5, leader=life.routes.leader, anybody=life.routes.anybody)
        self._epochs: dict[str, int] = {}

    async def begin(self) -> None:
        """Some messages, and a member that has the partition."""
        self.queue.topic_id = self.life.topic_id
        self.life.world.has_topic.set()
        for number in range(MESSAGES):
            await self.life.send_until_acked(f"message {number}", LEADER)
        await self.states(LEADER).runtime.ensure_topic()
        await self.life.until(lambda: self.states(LEADER).runtime.leader_of("any") > 0, "state has a leader")
        self.queue.group = next(
            name for number in range(1000) if self._keeper(name := f"q{number}") not in (-1, LEADER)
        )
        self.queue.alone = partial(self.life.routes.coordinator_alone, self.queue.group)
        await self.join(MEMBER)

    async def end(self) -> None:
        """Somebody works off what is left, when all is well again."""
        life = self.life
        await life._calm_down()
        worker = life._task(QueueMember(self.queue, "last").run())
        try:
            working_off = life._task(self.queue.worked_off())
            await asyncio.wait([working_off, worker], timeout=END_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if worker.done():
                await worker
            await life._or_violation(working_off, 0.1, QUEUE_LEFT)
        finally:
            worker.cancel()

    # What there is

    def states(self, number: int) -> ShareStates:
        server = self.life.host(number).machine.server
        assert server is not None
        return server.broker.shares.states

    @property
    def key(self) -> ShareKey:
        return ShareKey(self.queue.group, self.life.topic_id, 0)

    @property
    def keeper(self) -> int:
        """The broker that keeps the group's state of the partition."""
        return self._keeper(self.queue.group)

    def _keeper(self, group: str) -> int:
        return self.states(LEADER).runtime.leader_of(str(ShareKey(group, self.life.topic_id, 0)))

    # Members

    async def join(self, member: str) -> None:
        for _ in range(300):
            try:
                async with self.queue.alone() as link:
                    answer = await link.ask(
                        ShareGroupHeartbeatRequest(
                            group_id=self.queue.group,
                            member_id=member,
                            member_epoch=self._epochs.get(member, 0),
                            subscribed_topic_names=(self.life.world.topic,),
                        ),
                        1,
                    )
            except LOST:
                continue
            if answer.error_code == 0:
                self._epochs[member] = answer.member_epoch
                if answer.assignment is not None and answer.assignment.topic_partitions:
                    return
            await asyncio.sleep(0.1)
        raise Violation(f"{member} is given nothing")

    async def leave(self, member: str) -> None:
        async with self.queue.alone() as link:
            await link.ask(ShareGroupHeartbeatRequest(group_id=self.queue.group, member_id=member, member_epoch=-1), 1)

    async def session(self, member: str, at: int = LEADER) -> Session:
        return Session(self.queue, member, 0, await self.life.link(at))

    async def fetched(self, member: str, at: int = LEADER) -> Session:
        """A session of this member, as soon as it has got something."""
        for _ in range(100):
            try:
                session = await self.session(member, at)
                await session.fetch(MESSAGES, max_wait_ms=300)
                if session.held:
                    return session
            except LOST:
                pass
            await asyncio.sleep(0.1)
        raise Violation(f"{member} gets nothing")

    async def say(self, session: Session, words: dict[int, int]) -> None:
        """Whether it is heard or not."""
        try:
            await session.acknowledge(words)
        except LOST:
            pass

    async def lock_ends(self) -> None:
        await asyncio.sleep(1.2 * LOCK_MS / 1000)

    # What happens

    def lose_next_write(self, number: int) -> list[WriteState]:
        """The next write of this broker's share-partitions is under way until it arrives; who sent it gives up."""
        calls, held = self.states(number)._calls, list[WriteState]()
        ask = calls.ask

        async def lose(coordinator: Any, request: StateRequest, seconds: float) -> Any:
            if not isinstance(request, WriteState) or (held and request != held[0]):
                return await ask(coordinator, request, seconds)
            if not held:
                held.append(request)
            await asyncio.sleep(0.1)
            raise KafkaError(ErrorCode.FENCED_STATE_EPOCH, "the answer was lost")  # as after the last try

        calls.ask = lose  # type: ignore[method-assign]
        return held

    async def arrive(self, late: WriteState) -> None:
        """What was held reaches whoever keeps the state by now."""
        machine = self.life.host(self.keeper).machine
        assert machine.process is not None

        async def ask() -> None:
            try:
                await self.states(self.keeper).ask_here(late)
                self.life.loop.trace.note("late", "taken")
            except KafkaError as error:
                self.life.loop.trace.note("late", error.code)

        await self.life.loop.create_task(ask(), context=machine.process.context)
