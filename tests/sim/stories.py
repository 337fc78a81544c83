"""Whole clusters without chance: what happens to them, and when, is written down as a story.

Three brokers and one partition, which the first of them leads. A story breaks links, kills and damages, and lets
clients do what they do; then all is put right, and the same checker judges as after a life of chance. So a rule that is
switched off is found out by what it should have prevented, however seldom chance would have come to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from clarion.broker.config import Durability
from clarion.cluster.coordination import Compare, Operation, TransactionResult
from clarion.cluster.schema import PartitionState, partition_key, read_partition, read_topic, topic_key
from clarion.model.errors import ErrorCode
from clarion.model.ids import TopicId
from clarion.replication import Partition
from clarion.wire.messages.logs import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from clarion.wire.messages.metadata import FindCoordinatorRequest
from clarion.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from clarion.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from clarion.wire.records import encode_batch
from tests.history import Commit, Outcome, Send
from tests.sim.clients import RECORD_MS, Violation, ask_for_committed
from tests.sim.cluster import ClusterLife, ClusterSwarm, Host
from tests.sim.link import LOST, Link
from tests.sim.scenario import Report, live

BROKERS = (1, 2, 3)
LATEST = -1
GROUP = "g"
WAIT_SECONDS = 60.0  # virtual: far more than anything takes that happens at all

Story = Callable[["StoryLife"], Awaitable[None]]


class Held(NamedTuple):
    """A change on its way to the store."""

    compares: Sequence[Compare]
    operations: Sequence[Operation]


def tell(story: Story, **how: Any) -> Report:
    """Let it happen. `how`: see `StoryLife`."""
    return live(lambda: StoryLife(story, **how))


class StoryLife(ClusterLife):
    def __init__(
        self,
        story: Story,
        *,
        durability: Durability = Durability.FSYNC,
        thread_seconds: tuple[float, float] = (0.0005, 0.001),
        keep_lines: bool = False,
        before: Callable[[StoryLife], None] | None = None,
        **settings: str,
    ) -> None:
        """`settings`: of the topic. `before`: what happens before it is made."""
        swarm = ClusterSwarm(
            faults=(),
            gap_seconds=(1.0, 1.0),
            down_seconds=(0.0, 0.01),
            latency_seconds=(0.001, 0.002),
            thread_seconds=thread_seconds,
            durability=durability,
            segment_bytes=1 << 20,
            producers=1,
            window=1,
            send_seconds=(0.0, 0.0),
            checkpoint_seconds=0.5,
            partitions=1,
        )
        super().__init__(0, swarm, keep_lines)
        self._story = story
        self._settings = settings
        self._before = before

    async def _live(self) -> None:
        await self._boot()
        if self._before is not None:
            self._before(self)
        await self._make_topic()
        if self._before is None:
            await self.until_led_by(1)
        await self._story(self)
        await self._calm_down()
        await self._judge()

    async def _make_topic(self) -> None:
        assigned = CreatableReplicaAssignment(partition_index=0, broker_ids=BROKERS)
        configs = tuple(CreatableTopicConfig(name=name, value=value) for name, value in self._settings.items())
        wanted = CreatableTopic(
            name="t", num_partitions=-1, replication_factor=-1, assignments=(assigned,), configs=configs
        )
        link = await self.link(2)
        answer = await link.ask(CreateTopicsRequest(topics=(wanted,), validate_only=False), 4)
        assert answer.topics[0].error_code == 0
        link.close()

    # What there is

    def host(self, number: int) -> Host:
        return self.hosts[number - 1]

    @property
    def topic_id(self) -> TopicId:
        return read_topic(self.registry.entries[topic_key("t")].value).id

    @property
    def state(self) -> PartitionState:
        """As the cluster has agreed on it."""
        entry = self.registry.entries[partition_key(self.topic_id, 0)]
        return read_partition(entry.value, entry.mod_revision)

    def partition(self, number: int) -> Partition | None:
        """As this broker has it; None while it is not up."""
        machine = self.host(number).machine
        if not machine.is_serving or machine.server is None:
            return None
        return machine.server.broker.partitions.find(self.topic_id, 0)

    async def until(self, condition: Callable[[], object], what: str = "") -> None:
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while not condition():
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise Violation(f"it never happens: {what or 'what the story waits for'}; {self.state}") from None

    async def until_led_by(self, number: int) -> None:
        def leads() -> bool:
            partition = self.partition(number)
            return self.state.leader == number and partition is not None and partition.is_leader

        await self.until(leads, f"broker {number} leads")

    async def until_in_sync(self, *numbers: int) -> None:
        await self.until(lambda: sorted(self.state.in_sync) == sorted(numbers), f"in sync are {numbers}")

    # What happens

    def cut(self, *numbers: int) -> None:
        """These brokers hear nothing of the others, nor the others of them. Clients and the store reach all."""
        for number in numbers:
            for other in BROKERS:
                if other != number:
                    self.network.cut(f"broker-{number}", f"broker-{other}")
                    self.network.cut(f"broker-{other}", f"broker-{number}")

    def cut_from_store(self, number: int) -> None:
        self.host(number).machine.store_losses = 1.0

    def kill(self, *numbers: int) -> None:
        for number in numbers:
            self.host(number).machine.kill()

    def lose_power(self, *numbers: int) -> None:
        for number in numbers:
            self.host(number).machine.cut_power(is_worst=True)

    async def stop(self, number: int) -> None:
        await self.host(number).machine.stop()

    async def start(self, *numbers: int) -> None:
        await asyncio.gather(*(self.host(number).nemesis.restart() for number in numbers))

    def hold_next_change(self, number: int) -> list[Held]:
        """The next change of the partition that this broker asks the store for is under way, until `arrive`."""
        store, held = self.host(number).machine.store, list[Held]()
        key, transact = partition_key(self.topic_id, 0), store.transact

        async def hold(compares: Sequence[Compare], operations: Sequence[Operation]) -> TransactionResult:
            if held or key not in [one.key for one in operations]:
                return await transact(compares, operations)
            held.append(Held(compares, operations))
            await asyncio.Event().wait()
            raise AssertionError("nobody answers")

        store.transact = hold
        return held

    def arrive(self, held: Held) -> None:
        """What was held reaches the store, whatever has happened since."""
        self.loop.trace.note("late", self.registry.transact(*held))

    # Clients

    async def link(self, number: int) -> Link:
        return await Link.open(self.host(number).port)

    async def send(self, value: str, to: int, *, acks: int = -1) -> int:
        """Returns the answer's code; NETWORK_EXCEPTION where there was none."""
        sent = Send(f"client of {to}", "t-0", value)
        self.world.history.append(sent)
        try:
            link = await self.link(to)
            batch = bytes(encode_batch([(None, value.encode(), (), RECORD_MS)]))
            answer = await link.produce("t", 0, batch, acks)
            link.close()
        except LOST:
            return ErrorCode.NETWORK_EXCEPTION
        self.loop.trace.note("sent", value, to, answer.error, answer.base_offset)
        if answer.error == 0 and acks == -1:
            sent.acked(answer.base_offset)
        return answer.error

    async def send_until_acked(self, value: str, to: int) -> None:
        number = 0
        while await self.send(f"{value}.{number}", to) != 0:
            number += 1
            await asyncio.sleep(0.1)
            if number > WAIT_SECONDS:
                raise Violation(f"broker {to} acknowledges nothing")

    async def latest(self, number: int) -> int | None:
        """What a broker says of the log's end; None if it says nothing."""
        link = await self.link(number)
        asked = ListOffsetsPartition(partition_index=0, timestamp=LATEST, current_leader_epoch=-1)
        topics = (ListOffsetsTopic(name="t", partitions=(asked,)),)
        try:
            found = await link.ask(ListOffsetsRequest(replica_id=-1, topics=topics), 5)
        except LOST:
            return None
        finally:
            link.close()
        told = found.topics[0].partitions[0]
        return told.offset if told.error_code == 0 else None

    async def commit(self, offset: int, at: int) -> int:
        tried = Commit(GROUP, "t-0", offset)
        self.world.history.append(tried)
        place = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
        topics = (OffsetCommitRequestTopic(name="t", partitions=(place,)),)
        link = await self.link(at)
        try:
            answer = await link.ask(OffsetCommitRequest(group_id=GROUP, topics=topics), 5)
        except LOST:
            return ErrorCode.NETWORK_EXCEPTION
        finally:
            link.close()
        code = answer.topics[0].partitions[0].error_code
        if code == 0:
            self.world.history.append(Commit(GROUP, "t-0", offset, Outcome.ACKED))
        return code

    async def committed(self, at: int) -> None:
        """Ask a broker what is committed, and note what it says, if it says something."""
        link = await self.link(at)
        try:
            await ask_for_committed(self.world, link, GROUP, 0)
        except LOST:
            pass
        finally:
            link.close()

    async def coordinator(self, as_told_by: int, *, other_than: int = -1) -> int:
        """Who coordinates the group, as soon as this broker knows one."""
        for _ in range(int(10 * WAIT_SECONDS)):
            link = await self.link(as_told_by)
            answer = await link.ask(FindCoordinatorRequest(key=GROUP, key_type=0), 1)
            link.close()
            if answer.error_code == 0 and answer.node_id != other_than:
                return answer.node_id
            await asyncio.sleep(0.1)
        raise Violation("nobody coordinates the group")

    async def commit_until_acked(self, offset: int, at: int) -> None:
        for _ in range(int(10 * WAIT_SECONDS)):
            if await self.commit(offset, at) == 0:
                return
            await asyncio.sleep(0.1)
        raise Violation(f"broker {at} commits nothing")
