"""The smallest driver: a list for a log, a dictionary for answers, and a clock that the test moves.

`close` rebuilds the coordinator twice, from the whole log and from what compaction would leave of it, and compares.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from uuid import UUID

from clarion.groups.classic_group import ClassicGroup
from clarion.groups.config import GroupConfig
from clarion.groups.coordinator import GroupCoordinator
from clarion.groups.outcome import Call, Outcome
from clarion.groups.topics import TopicInfo, TopicsView
from clarion.model.errors import ErrorCode
from clarion.wire.bridge import encode
from clarion.wire.messages import offsets as wire_offsets
from clarion.wire.messages.groups import (
    ConsumerAssignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    TopicPartitions,
)

API_KEYS = {
    "offset_commit": 8,
    "offset_fetch": 9,
    "join_group": 11,
    "heartbeat": 12,
    "leave_group": 13,
    "sync_group": 14,
    "describe_groups": 15,
    "list_groups": 16,
    "delete_groups": 42,
    "offset_delete": 47,
    "consumer_group_heartbeat": 68,
    "consumer_group_describe": 69,
}
LOST = "the driver answered: COORDINATOR_NOT_AVAILABLE"
WALL_MS = 1_700_000_000_000


class Driver:
    def __init__(self, config: GroupConfig | None = None, *, seed: int = 1) -> None:
        self.config = config or GroupConfig(initial_rebalance_delay_ms=0)
        self.overrides: dict[str, GroupConfig] = {}
        self.random = Random(seed)
        self.log: list[tuple[bytes, bytes | None]] = []
        self.now = 1_000
        self.wall = WALL_MS
        self.asked: list[int] = []
        self.answers: dict[int, object] = {}
        self.dialects: dict[int, tuple[int, int]] = {}  # API key and version of each ticket
        self.topics: dict[str, TopicInfo] = {}
        self.loses_appends = False
        self.restart()

    # Requests

    def ask(self, api: str, request, *, version: int, client: str = "app", host: str = "/10.0.0.1") -> int:
        """Hand in a request; the ticket's answer may be there at once, or come later."""
        ticket = len(self.asked)
        self.asked.append(ticket)
        self.dialects[ticket] = (API_KEYS[api], version)
        call = Call(ticket, version, self.now, self.wall, client, host)
        self.perform(getattr(self.coordinator, api)(request, call))
        return ticket

    def tell(self, api: str, request, *, version: int, **more):
        """A request whose answer must be there at once."""
        ticket = self.ask(api, request, version=version, **more)
        assert ticket in self.answers, f"{api} waits"
        return self.answers[ticket]

    def is_waiting(self, ticket: int) -> bool:
        return ticket not in self.answers

    def perform(self, outcome: Outcome) -> Outcome:
        if outcome.records and self.loses_appends:
            outcome.replies = [(ticket, LOST) for ticket, _ in outcome.replies]
        else:
            for key, value in outcome.records:
                self.log.append((key, value))
                self.coordinator.replay(key, value)
        for ticket, response in outcome.replies:
            assert ticket not in self.answers, f"ticket {ticket} is answered twice"
            self.answers[ticket] = response
        return outcome

    # Time and the world

    def advance(self, ms: int) -> None:
        """Let time pass, stopping at every deadline on the way."""
        end = self.now + ms
        while (deadline := self.coordinator.next_deadline_ms()) is not None and deadline <= end:
            self._move_to(max(deadline, self.now))
            self.perform(self.coordinator.on_tick(self.now, self.wall))
        self._move_to(end)

    def _move_to(self, now: int) -> None:
        self.wall += now - self.now
        self.now = now

    def set_topics(self, **counts: int) -> None:
        """Topics by name and partition count; one that had an id keeps it."""
        ids = {name: info.topic_id for name, info in self.topics.items()}
        self.topics = {
            name: TopicInfo(ids.get(name) or UUID(int=self.random.getrandbits(128)), count)
            for name, count in counts.items()
        }
        self.coordinator.on_topics_changed(TopicsView(dict(self.topics)))

    def restart(self) -> None:
        """The process starts, or dies and starts again: who waits hears nothing, and the log is all that is left."""
        for ticket in self.asked:
            self.answers.setdefault(ticket, LOST)
        self.coordinator = self._built_from(self.log)
        self.coordinator.on_topics_changed(TopicsView(dict(self.topics)))
        self.coordinator.after_load(self.now, self.wall)

    def close(self) -> None:
        self.check_durable_state()
        self.perform(self.coordinator.resign())
        assert all(ticket in self.answers for ticket in self.asked), "somebody was never answered"
        assert self.coordinator.shard.ledger.used == 0, "memory is not given back"
        for ticket, answer in self.answers.items():
            if answer is not LOST:
                encode(answer, *self.dialects[ticket], "response")  # what cannot be written is no answer

    def check_durable_state(self) -> None:
        live = durable(self.coordinator)
        assert durable(self._built_from(self.log)) == live
        assert durable(self._built_from(self.compacted())) == live
        assert durable(self._built_from(self.compacted(keep_tombstones=False))) == live
        shard = self.coordinator.shard
        names = {*shard.groups, *shard.offsets.groups()}
        weights = [
            shard.offsets.weight_of(one) + (shard.groups[one].weight if one in shard.groups else 0) for one in names
        ]
        assert shard.ledger.used == sum(weights), "the ledger does not know what the groups hold"

    def compacted(self, *, keep_tombstones: bool = True) -> list[tuple[bytes, bytes | None]]:
        last = {key: at for at, (key, _) in enumerate(self.log)}
        kept = [record for at, record in enumerate(self.log) if last[record[0]] == at]
        return [record for record in kept if keep_tombstones or record[1] is not None]

    def _built_from(self, log) -> GroupCoordinator:
        coordinator = GroupCoordinator(
            self.config, lambda: UUID(int=self.random.getrandbits(128)), overrides=self.overrides
        )
        for key, value in log:
            coordinator.replay(key, value)
        return coordinator

    # Offsets

    def commit(self, group: str, offsets: dict[tuple[str, int], int], *, epoch=-1, member="", version=8, **more):
        topics = tuple(
            wire_offsets.OffsetCommitRequestTopic(
                name=topic,
                partitions=(
                    wire_offsets.OffsetCommitRequestPartition(
                        partition_index=partition, committed_offset=offset, committed_metadata=more.get("metadata")
                    ),
                ),
            )
            for (topic, partition), offset in offsets.items()
        )
        request = wire_offsets.OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=epoch,
            member_id=member,
            group_instance_id=more.get("instance"),
            retention_time=more.get("retention", -1),
            topics=topics,
        )
        response = self.tell("offset_commit", request, version=version)
        codes = [ErrorCode(one.error_code) for topic in response.topics for one in topic.partitions]
        return codes[0] if len(codes) == 1 else codes

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        request = wire_offsets.OffsetFetchRequest(group_id=group, topics=None)
        response = self.tell("offset_fetch", request, version=7)
        return {(t.name, p.partition_index): p.committed_offset for t in response.topics for p in t.partitions}


def durable(coordinator: GroupCoordinator) -> dict:
    """What must survive a restart, comparable."""
    shard = coordinator.shard
    groups = {}
    for group_id, group in shard.groups.items():
        if not isinstance(group, ClassicGroup):
            groups[group_id] = replace(group, topics_version_seen=0)
        elif group.stored is not None or shard.offsets.of(group_id):
            groups[group_id] = group.stored
    return {"groups": groups, "offsets": {name: dict(all_) for name, all_ in shard.offsets.groups().items()}}


class ClassicClient:
    """One classic consumer: it remembers its member id and generation as a real client would."""

    def __init__(self, driver: Driver, group: str = "g", *, instance: str | None = None, **wishes) -> None:
        self.driver, self.group, self.instance = driver, group, instance
        self.version = wishes.get("version", 9)
        self.session = wishes.get("session", 10_000)
        self.rebalance = wishes.get("rebalance", 60_000)
        self.protocol_type = wishes.get("protocol_type", "consumer")
        self.protocols = wishes.get("protocols", (("range", subscription("t")),))
        self.member_id = ""
        self.generation = -1
        self.protocol_name = "?"
        self.ticket: int | None = None  # of the last JoinGroup
        self.sync_ticket: int | None = None

    def join(self) -> ClassicClient:
        """Send JoinGroup, with the second step if asked for it; the last one may wait."""
        self.ticket = self._join()
        answer = self.driver.answers.get(self.ticket)
        if answer not in (None, LOST) and answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            self.ticket = self._join()
        return self

    def _join(self) -> int:
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout=self.session,
            rebalance_timeout=self.rebalance if self.version >= 1 else -1,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type=self.protocol_type,
            protocols=tuple(JoinGroupRequestProtocol(name=name, metadata=data) for name, data in self.protocols),
        )
        return self.driver.ask("join_group", request, version=self.version)

    def joined(self):
        """The answer to the join, taken in."""
        answer = self.driver.answers[self.ticket]
        if answer.error_code == ErrorCode.NONE:
            self.member_id, self.generation = answer.member_id, answer.generation_id
            self.protocol_name = answer.protocol_name
        return answer

    @property
    def is_leader(self) -> bool:
        return self.joined().leader == self.member_id

    def sync(self, assignments: dict[str, bytes] | None = None, **more) -> int:
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
            assignments=tuple(
                SyncGroupRequestAssignment(member_id=member_id, assignment=work)
                for member_id, work in (assignments or {}).items()
            ),
            **{"protocol_type": self.protocol_type, "protocol_name": self.protocol_name, **more},
        )
        self.sync_ticket = self.driver.ask("sync_group", request, version=5)
        return self.sync_ticket

    def beat(self) -> ErrorCode:
        request = HeartbeatRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
        )
        return ErrorCode(self.driver.tell("heartbeat", request, version=4).error_code)

    def leave(self) -> ErrorCode:
        identity = MemberIdentity(member_id=self.member_id, group_instance_id=self.instance)
        request = LeaveGroupRequest(group_id=self.group, members=(identity,))
        return ErrorCode(self.driver.tell("leave_group", request, version=5).members[0].error_code)

    def commit(self, offset: int, topic: str = "t") -> ErrorCode:
        return self.driver.commit(
            self.group,
            {(topic, 0): offset},
            epoch=self.generation,
            member=self.member_id,
            instance=self.instance,
        )


def settle(*clients: ClassicClient) -> None:
    """Everybody has joined: take the answers, let the leader assign `work-of-<id>`, let everybody sync."""
    for client in clients:
        assert client.joined().error_code == ErrorCode.NONE
    work = {client.member_id: f"work-of-{client.member_id}".encode() for client in clients}
    for client in sorted(clients, key=lambda one: one.is_leader):
        client.sync(work if client.is_leader else None)
    for client in clients:
        assert client.driver.answers[client.sync_ticket].assignment == work[client.member_id]


def subscription(*topics: str, user_data: bytes = b"") -> bytes:
    """A ConsumerProtocolSubscription of version 1."""
    body = b"".join(len(one).to_bytes(2, "big") + one.encode() for one in topics)
    owned = (0).to_bytes(4, "big")
    return b"\0\1" + len(topics).to_bytes(4, "big") + body + len(user_data).to_bytes(4, "big") + user_data + owned


class ConsumerClient:
    """One KIP-848 consumer. By default it takes and gives up partitions as soon as it is told."""

    def __init__(self, driver: Driver, name: str, *topics: str, group: str = "g", **wishes) -> None:
        self.driver, self.member_id, self.group = driver, name, group
        self.topics: tuple[str, ...] | None = topics
        self.regex = wishes.get("regex")
        self.instance = wishes.get("instance")
        self.assignor = wishes.get("assignor")
        self.rebalance = wishes.get("rebalance", 60_000)
        self.epoch = 0
        self.owned: frozenset[tuple[UUID, int]] = frozenset()
        self.assigned: frozenset[tuple[UUID, int]] = frozenset()

    def join(self) -> ConsumerGroupHeartbeatResponse:
        self.epoch, self.owned, self.assigned = 0, frozenset(), frozenset()
        return self.beat()

    def beat(self, *, reports: bool = True) -> ConsumerGroupHeartbeatResponse:
        """One heartbeat; when we are told a new assignment, we give up and take what it says."""
        answer = self.driver.tell("consumer_group_heartbeat", self.request(reports=reports), version=1)
        self.hear(answer)
        return answer

    def request(self, *, reports: bool = True) -> ConsumerGroupHeartbeatRequest:
        is_first = self.epoch == 0
        return ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance,
            rebalance_timeout=self.rebalance if is_first else -1,
            subscribed_topic_names=self.topics if is_first else None,
            subscribed_topic_regex=self.regex if is_first else None,
            server_assignor=self.assignor if is_first else None,
            topic_partitions=_wire(self.owned) if reports or is_first else None,
        )

    def hear(self, answer) -> None:
        if answer is LOST or answer.error_code != ErrorCode.NONE:
            return
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.assigned = _pairs(answer.assignment)
            self.owned = self.assigned

    def leave(self, epoch: int = -1) -> ConsumerGroupHeartbeatResponse:
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member_id, member_epoch=epoch, instance_id=self.instance
        )
        return self.driver.tell("consumer_group_heartbeat", request, version=1)

    def numbers(self, topic: str) -> list[int]:
        wanted = self.driver.topics[topic].topic_id
        return sorted(number for topic_id, number in self.owned if topic_id == wanted)


def rounds(*clients: ConsumerClient, times: int = 4) -> None:
    """Let everybody beat a few times: enough to revoke, release and take."""
    for _ in range(times):
        for client in clients:
            assert client.beat().error_code == ErrorCode.NONE


def _wire(owned: frozenset[tuple[UUID, int]]) -> tuple[TopicPartitions, ...]:
    topics: dict[UUID, list[int]] = {}
    for topic_id, number in sorted(owned):
        topics.setdefault(topic_id, []).append(number)
    return tuple(TopicPartitions(topic_id=one, partitions=tuple(numbers)) for one, numbers in topics.items())


def _pairs(assignment: ConsumerAssignment) -> frozenset[tuple[UUID, int]]:
    return frozenset((one.topic_id, number) for one in assignment.topic_partitions for number in one.partitions)
