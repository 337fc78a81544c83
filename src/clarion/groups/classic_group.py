"""A classic group: members who join, elect a leader that divides the work, and beat.

    Empty ──join──► PreparingRebalance ──all joined, or time is up──► CompletingRebalance ──assignment──► Stable
      ▲                   ▲  │                                               │                              │
      │                   └──┼──────── join, leave, silence ─────────────────┴──────────────────────────────┘
      └──── nobody left ─────┘

The generation grows by one each time the joining ends. What must survive a restart is one record, the snapshot:
written when the leader's assignment arrives, when the group becomes empty and when a static member is replaced.
Between two snapshots the group lives in memory only; after a crash its members are told that they are unknown, or
of another generation, and rejoin.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from clarion.groups.consumer_protocol import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from clarion.groups.memory import GROUP_BYTES, MEMBER_BYTES, PENDING_BYTES, weight_of_protocols
from clarion.groups.outcome import Call
from clarion.groups.records import ClassicMemberSnapshot, ClassicSnapshot
from clarion.model.errors import ErrorCode, KafkaError

Protocols = tuple[tuple[str, bytes], ...]  # (name, metadata), the member's favourite first


class ClassicState(StrEnum):
    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"  # what a group that does not exist is called on the wire


@dataclass(slots=True)
class ClassicMember:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    is_new: bool = False  # has never had an answer to a join
    joining: Call | None = None  # the JoinGroup that waits
    syncing: Call | None = None  # the SyncGroup that waits
    weight: int = 0  # in bytes

    def __post_init__(self) -> None:
        self._weigh()

    def take_protocols(self, protocols: Protocols) -> None:
        self.protocols = protocols
        self._weigh()

    def take_assignment(self, assignment: bytes) -> None:
        self.assignment = assignment
        self._weigh()

    def _weigh(self) -> None:
        self.weight = MEMBER_BYTES + weight_of_protocols(self.protocols) + len(self.assignment)

    @property
    def is_waiting(self) -> bool:
        return self.joining is not None or self.syncing is not None

    def metadata(self, protocol_name: str | None) -> bytes:
        return dict(self.protocols).get(protocol_name or "", b"")


@dataclass(slots=True)
class ClassicGroup:
    group_id: str
    state: ClassicState = ClassicState.EMPTY
    state_timestamp_ms: int = -1
    generation: int = 0
    protocol_type: str | None = None  # None: a "simple" group, that only commits offsets
    protocol_name: str | None = None
    leader: str | None = None
    members: dict[str, ClassicMember] = field(default_factory=dict)
    static_ids: dict[str, str] = field(default_factory=dict)  # instance id → member id
    pending: dict[str, None] = field(default_factory=dict)  # ids given out, whose owners have not come back yet
    unsynced: dict[str, None] = field(default_factory=dict)  # members who have not asked for their work yet
    is_gathering: bool = False  # the first rebalance of an empty group, which waits for more members
    has_newcomer: bool = False  # someone came while gathering
    gathering_left_ms: int = 0
    subscribed: frozenset[str] | None = frozenset()  # None: cannot be known, so any topic
    stored: ClassicSnapshot | None = None  # what the log has

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def weight(self) -> int:
        return GROUP_BYTES + len(self.pending) * PENDING_BYTES + sum(one.weight for one in self.members.values())

    @property
    def is_idle(self) -> bool:
        """Nobody is in, nobody is on the way in."""
        return not self.members and not self.pending

    @property
    def needs_rebalance(self) -> bool:
        """It was a KIP-848 group, and nobody has led it yet."""
        return self.state is ClassicState.STABLE and self.leader is None

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def has_everybody_joined(self) -> bool:
        return not self.pending and all(member.joining for member in self.members.values())

    def is_subscribed_to(self, topic: str) -> bool:
        return not self.is_empty and (self.subscribed is None or topic in self.subscribed)

    # Who is who

    def member(self, member_id: str, instance_id: str | None) -> ClassicMember:
        """The member who speaks, or the reason why it may not."""
        if instance_id is not None:
            owner = self.static_ids.get(instance_id)
            if owner is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            if owner != member_id:
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
        if member_id not in self.members:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return self.members[member_id]

    def add(self, member: ClassicMember, protocol_type: str) -> None:
        if self.is_empty:
            self.protocol_type = protocol_type
        self.members[member.member_id] = member
        self.pending.pop(member.member_id, None)
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> ClassicMember:
        member = self.members.pop(member_id)
        self.unsynced.pop(member_id, None)
        if member.instance_id is not None and self.static_ids.get(member.instance_id) == member_id:
            del self.static_ids[member.instance_id]
        if self.leader == member_id:
            self._elect(self.members)
        return member

    def rename(self, old_id: str, new_id: str) -> ClassicMember:
        """A static member came back with a new id: same seat, same place in the row."""
        renamed = {new_id if key == old_id else key: member for key, member in self.members.items()}
        member = renamed[new_id]
        member.member_id = new_id
        assert member.instance_id is not None, "only static members are replaced"
        self.members = renamed
        self.static_ids[member.instance_id] = new_id
        self.unsynced = {new_id if key == old_id else key: None for key in self.unsynced}
        if self.leader == old_id:
            self.leader = new_id
        return member

    def elect_among_joined(self) -> bool:
        """Keep the leader if it has rejoined, otherwise choose one who has."""
        if self.leader in self.members and self.members[self.leader].joining:
            return True
        joined = [member_id for member_id, member in self.members.items() if member.joining]
        if joined:
            self._elect(joined)
        return bool(joined)

    def _elect(self, candidates: Iterable[str]) -> None:
        self.leader = next(iter(candidates), None)

    # Protocols

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a newcomer could agree with those who are here."""
        if self.is_empty:
            return bool(protocol_type) and bool(protocols)
        common = self._common_protocols()
        return protocol_type == self.protocol_type and any(name in common for name, _ in protocols)

    def select_protocol(self) -> str:
        """Everybody votes for the first of its protocols that all know."""
        common = self._common_protocols()
        votes = Counter(
            next(name for name, _ in member.protocols if name in common) for member in self.members.values()
        )
        return max(votes, key=lambda name: votes[name])

    def _common_protocols(self) -> set[str]:
        return set.intersection(*({name for name, _ in member.protocols} for member in self.members.values()))

    # The course of a rebalance

    def enter(self, state: ClassicState, wall_ms: int) -> None:
        self.state = state
        self.state_timestamp_ms = wall_ms

    def begin_generation(self, wall_ms: int) -> None:
        """The joining is over: those who are here are the members."""
        self.generation += 1
        self.is_gathering = self.has_newcomer = False
        self.unsynced = dict.fromkeys(self.members)
        self.protocol_name = self.select_protocol() if self.members else None
        self.leader = self.leader if self.members else None
        self.subscribed = self._subscriptions()
        self.enter(ClassicState.COMPLETING if self.members else ClassicState.EMPTY, wall_ms)

    def _subscriptions(self) -> frozenset[str] | None:
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return frozenset()
        found = [subscribed_topics(member.metadata(self.protocol_name)) for member in self.members.values()]
        if any(topics is None for topics in found):
            return None
        return frozenset().union(*(topics for topics in found if topics is not None))

    # What survives

    def snapshot(self, assignments: dict[str, bytes] | None = None) -> ClassicSnapshot:
        """The group as the log shall know it, with these assignments or with those that it has."""
        return ClassicSnapshot(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol_name=self.protocol_name,
            leader=self.leader,
            state_timestamp_ms=self.state_timestamp_ms,
            members=tuple(
                ClassicMemberSnapshot(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    session_timeout_ms=member.session_timeout_ms,
                    subscription=member.metadata(self.protocol_name),
                    assignment=member.assignment if assignments is None else assignments.get(member.member_id, b""),
                )
                for member in self.members.values()
            ),
        )

    def adopt(self, snapshot: ClassicSnapshot) -> None:
        """Become what the log says. Members keep what only memory knows: their protocols, what they await."""
        known = self.members
        self.members = {one.member_id: _merged(known.get(one.member_id), one, snapshot) for one in snapshot.members}
        self.static_ids = {m.instance_id: m.member_id for m in self.members.values() if m.instance_id is not None}
        self.protocol_type = snapshot.protocol_type or None
        self.generation = snapshot.generation
        self.protocol_name = snapshot.protocol_name
        self.leader = snapshot.leader
        self.state = ClassicState.STABLE if snapshot.members else ClassicState.EMPTY
        self.state_timestamp_ms = snapshot.state_timestamp_ms
        self.subscribed = self._subscriptions()
        # The same bytes in memory twice would count twice.
        self.stored = snapshot._replace(members=tuple(map(self._with_own_bytes, snapshot.members)))

    def _with_own_bytes(self, stored: ClassicMemberSnapshot) -> ClassicMemberSnapshot:
        own = self.members[stored.member_id].metadata(self.protocol_name)
        return stored._replace(subscription=own) if own == stored.subscription else stored


def _merged(known: ClassicMember | None, stored: ClassicMemberSnapshot, group: ClassicSnapshot) -> ClassicMember:
    if known is not None:
        known.take_assignment(stored.assignment)
        return known
    return ClassicMember(
        member_id=stored.member_id,
        instance_id=stored.instance_id,
        client_id=stored.client_id,
        client_host=stored.client_host,
        rebalance_timeout_ms=stored.rebalance_timeout_ms,
        session_timeout_ms=stored.session_timeout_ms,
        protocols=((group.protocol_name or "", stored.subscription),),
        assignment=stored.assignment,
    )
