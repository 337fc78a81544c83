"""Simulated members of groups, of both protocols, and what must hold between them.

Classic: all members of a generation hear the same assignment; a generation that somebody has heard of is never given
out again; a commit of an older generation is refused. KIP-848: no partition belongs to two members at a time, and a
member's epoch never falls. Both: a committed offset is never lost, and once there is calm everybody has work.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from clarion.model.errors import ErrorCode
from clarion.wire.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    TopicPartitions,
)
from clarion.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from clarion.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.history import Commit, Outcome
from tests.sim.clients import BACKOFF_SECONDS, ConnectAlone, Violation, World, ask_for_committed
from tests.sim.link import LOST, Link

REBALANCE_MS = 2_000  # below a link's patience: a join that waits for a silent member is still heard
SESSION_MS = 6_000
# KIP-848: whoever is asked to give a partition up and is not heard for so long loses it. Longer than any fault here, so
# that a partition with two members is always a mistake.
REVOCATION_MS = 60_000
HEARTBEAT_SECONDS = (0.1, 0.4)
LEAVES = 0.03  # of all heartbeats
BLIND = 0.3  # of all commits in a classic group


class Fenced(Exception):
    """The group knows us no more, or not like this: begin anew."""


@dataclass
class Offsets:
    """What the members of one group commit, one rising number for each partition."""

    world: World
    group: str
    alone: ConnectAlone = Link.alone  # to the group's coordinator
    next_offset: dict[int, int] = field(default_factory=dict)

    async def commit(self, link: Link, index: int, generation: int, member_id: str) -> int:
        """The error code."""
        where = f"{self.world.topic}-{index}"
        offset = self.next_offset[index] = self.next_offset.get(index, 0) + 1
        self.world.history.append(Commit(self.group, where, offset))
        place = OffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="")
        request = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            topics=(OffsetCommitRequestTopic(name=self.world.topic, partitions=(place,)),),
        )
        code = (await link.ask(request, 9)).topics[0].partitions[0].error_code
        self.world.loop.trace.note(self.group, "commit", index, offset, code)
        if code == 0:
            self.world.history.append(Commit(self.group, where, offset, Outcome.ACKED))
        return code

    async def compare(self, link: Link, index: int) -> None:
        await ask_for_committed(self.world, link, self.group, index)


class Member:
    """What members of both protocols do alike: ask, and begin anew where the link is lost or the group has moved."""

    def __init__(self, world: World, name: str, offsets: Offsets) -> None:
        self._world = world
        self._chance = world.loop.random
        self.name = name
        self._offsets = offsets
        self._group = offsets.group
        self.member_id = ""
        self.has_work = False  # as it was last told, and with nothing to do about it

    async def run(self) -> None:
        await self._world.has_topic.wait()
        while not (self._world.is_calm and self.has_work):
            try:
                async with self._offsets.alone() as link:
                    await self._take_part(link)
                return
            except (*LOST, Fenced):
                self.has_work = False
                await self._world.pause(*BACKOFF_SECONDS)

    async def _take_part(self, link: Link) -> None:
        raise NotImplementedError

    def _note(self, *words: Any) -> None:
        self._world.loop.trace.note(self.name, *words)


@dataclass
class Generations:
    """What the members of one classic group were told."""

    assignments: dict[int, bytes] = field(default_factory=dict)  # by generation, the leader's words
    newest: int = 0  # that anybody has heard of in an answer to SyncGroup

    def heard(self, generation: int, words: bytes) -> None:
        told = self.assignments.setdefault(generation, words)
        if told != words:
            raise Violation(f"generation {generation} was assigned twice: {told!r} and {words!r}")
        self.newest = max(self.newest, generation)


class ClassicMember(Member):
    def __init__(self, world: World, name: str, offsets: Offsets, generations: Generations) -> None:
        super().__init__(world, name, offsets)
        self._generations = generations
        self._assigned = 0  # assignments that it made as a leader
        self._part: tuple[int, list[bytes]] | None = None  # the generation, and who owns what in it

    async def _take_part(self, link: Link) -> None:
        while True:
            if self._part is None:
                self._part = await self._join_and_sync(link)
                continue
            generation, owners = self._part
            self.has_work = True
            # Some commit without having asked first, also over a new connection: they may have missed a rebalance.
            while self._chance.random() < BLIND or await self._heartbeat(link, generation):
                for index in (index for index, one in enumerate(owners) if one == self.member_id.encode()):
                    await self._commit(link, index, generation)
                if self._world.is_calm:
                    return
                await self._world.pause(*HEARTBEAT_SECONDS)
            self._part = None
            self.has_work = False

    async def _join_and_sync(self, link: Link) -> tuple[int, list[bytes]] | None:
        """The generation, and each partition's owner in it. None: the group has moved on meanwhile."""
        joined = await self._join(link)
        words = await self._sync(link, joined)
        if words is None:
            return None
        self._generations.heard(joined.generation_id, words)
        return joined.generation_id, words.split()[1:]

    async def _join(self, link: Link) -> JoinGroupResponse:
        request = JoinGroupRequest(
            group_id=self._group,
            session_timeout=SESSION_MS,
            rebalance_timeout=REBALANCE_MS,
            member_id=self.member_id,
            protocol_type="sim",
            protocols=(JoinGroupRequestProtocol(name="words", metadata=b""),),
        )
        answer = await link.ask(request, 5)
        self._note("join", answer.error_code, answer.generation_id, answer.member_id)
        if answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        elif answer.member_id:
            self.member_id = answer.member_id
        if answer.error_code:
            raise Fenced
        return answer

    async def _sync(self, link: Link, joined: JoinGroupResponse) -> bytes | None:
        """The leader's words: who they are, then each partition's owner. None: the group has moved on."""
        assignments = self._assign(joined) if joined.leader == self.member_id else ()
        newest = self._generations.newest  # while the answer is under way, the group may go on without us
        request = SyncGroupRequest(
            group_id=self._group,
            generation_id=joined.generation_id,
            member_id=self.member_id,
            assignments=assignments,
        )
        answer = await link.ask(request, 3)
        self._note("sync", answer.error_code, joined.generation_id, answer.assignment)
        if answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            return None
        if answer.error_code:
            self._forget_if(answer.error_code)
        if joined.generation_id < newest:
            raise Violation(f"{self.name} got work in generation {joined.generation_id}, when {newest} had begun")
        return answer.assignment

    def _assign(self, joined: JoinGroupResponse) -> tuple[SyncGroupRequestAssignment, ...]:
        members = sorted(one.member_id for one in joined.members)
        self._assigned += 1
        owners = [members[index % len(members)].encode() for index in range(self._world.partitions)]
        words = b" ".join([b"%s/%d" % (self.name.encode(), self._assigned), *owners])
        return tuple(SyncGroupRequestAssignment(member_id=one, assignment=words) for one in members)

    async def _heartbeat(self, link: Link, generation: int) -> bool:
        """False: a rebalance has begun."""
        if self._chance.random() < LEAVES and not self._world.is_calm:
            identity = MemberIdentity(member_id=self.member_id)
            await link.ask(LeaveGroupRequest(group_id=self._group, members=(identity,)), 3)
            self._note("left")
            self._forget_if(ErrorCode.UNKNOWN_MEMBER_ID)
        answer = await link.ask(
            HeartbeatRequest(group_id=self._group, generation_id=generation, member_id=self.member_id), 3
        )
        if answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            return False
        if answer.error_code:
            self._forget_if(answer.error_code)
        return True

    async def _commit(self, link: Link, index: int, generation: int) -> None:
        await self._offsets.compare(link, index)
        newest = self._generations.newest
        code = await self._offsets.commit(link, index, generation, self.member_id)
        if code == 0 and generation < newest:
            raise Violation(f"{self.name} committed in generation {generation}, when {newest} had begun")
        if code not in (0, ErrorCode.REBALANCE_IN_PROGRESS):
            self._forget_if(code)

    def _forget_if(self, code: int) -> None:
        self._part = None
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        raise Fenced


@dataclass
class Owners:
    """Which member of one KIP-848 group holds which partition, by what the members were told."""

    by_partition: dict[int, str] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)  # of all members; 0: it is not in the group, or not yet again

    def are_settled(self, partitions: int) -> bool:
        """Nobody waits for what another has to give up. Who is silent before that is given up for dead."""
        epochs = set(self.epochs.values())
        return len(epochs) == 1 and epochs != {0} and len(self.by_partition) == partitions

    def take(self, name: str, index: int) -> None:
        holder = self.by_partition.setdefault(index, name)
        if holder != name:
            raise Violation(f"partition {index} was given to {name}, and {holder} holds it")

    def give_up(self, name: str, kept: frozenset[int] = frozenset()) -> None:
        for index in [index for index, holder in self.by_partition.items() if holder == name and index not in kept]:
            del self.by_partition[index]

    def of(self, name: str) -> tuple[int, ...]:
        return tuple(sorted(index for index, holder in self.by_partition.items() if holder == name))


class ConsumerMember(Member):
    def __init__(self, world: World, name: str, offsets: Offsets, owners: Owners) -> None:
        super().__init__(world, name, offsets)
        self._owners = owners
        owners.epochs[name] = 0
        self._topic_id: UUID | None = None
        self.member_id = name

    @property
    def _epoch(self) -> int:
        return self._owners.epochs[self.name]

    @_epoch.setter
    def _epoch(self, epoch: int) -> None:
        self._owners.epochs[self.name] = epoch

    async def _take_part(self, link: Link) -> None:
        if self._topic_id is None:
            self._topic_id = await self._find_topic(link)
        while True:
            if self._epoch == 0:
                self._owners.give_up(self.name)
            await self._heartbeat(link)
            for index in self._owners.of(self.name):
                await self._commit(link, index)
            self.has_work = self._owners.are_settled(self._world.partitions)
            if self._world.is_calm and self.has_work:
                return
            await self._world.pause(*HEARTBEAT_SECONDS)

    async def _find_topic(self, link: Link) -> UUID:
        wanted = MetadataRequestTopic(name=self._world.topic)
        answer = await link.ask(MetadataRequest(topics=(wanted,), allow_auto_topic_creation=False), 12)
        return answer.topics[0].topic_id

    async def _heartbeat(self, link: Link) -> None:
        leaves = self._chance.random() < LEAVES and not self._world.is_calm and self._epoch > 0
        epoch = -1 if leaves else self._epoch
        if leaves:  # from now on, whenever that is heard: the others may not settle meanwhile
            self._owners.give_up(self.name)
            self._epoch = 0
        owned = TopicPartitions(topic_id=self._topic_id, partitions=self._owners.of(self.name))
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._group,
            member_id=self.member_id,
            member_epoch=epoch,
            rebalance_timeout=REVOCATION_MS,
            subscribed_topic_names=(self._world.topic,),
            topic_partitions=(owned,) if owned.partitions else (),
        )
        answer = await link.ask(request, 1)
        self._note("heartbeat", epoch, answer.error_code, answer.member_epoch, answer.assignment)
        if leaves or answer.error_code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self._epoch = 0
            self._owners.give_up(self.name)
            raise Fenced
        if answer.error_code:
            raise Fenced  # it is loading, or the disk is full: the same again
        if answer.member_epoch < self._epoch:
            raise Violation(f"the epoch of {self.name} fell from {self._epoch} to {answer.member_epoch}")
        self._epoch = answer.member_epoch
        if answer.assignment is not None:
            told = frozenset(index for one in answer.assignment.topic_partitions for index in one.partitions)
            self._owners.give_up(self.name, kept=told)
            for index in sorted(told):
                self._owners.take(self.name, index)

    async def _commit(self, link: Link, index: int) -> None:
        await self._offsets.compare(link, index)
        code = await self._offsets.commit(link, index, self._epoch, self.member_id)
        if code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self._epoch = 0
            raise Fenced


def classic_group(world: World, group: str, size: int, alone: ConnectAlone = Link.alone) -> list[Member]:
    offsets, generations = Offsets(world, group, alone), Generations()
    return [ClassicMember(world, f"{group}/{number}", offsets, generations) for number in range(size)]


def consumer_group(world: World, group: str, size: int, alone: ConnectAlone = Link.alone) -> list[Member]:
    offsets, owners = Offsets(world, group, alone), Owners()
    return [ConsumerMember(world, f"{group}/{number}", offsets, owners) for number in range(size)]
