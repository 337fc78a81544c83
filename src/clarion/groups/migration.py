"""A group changes its protocol while its members work (Kafka's policy "bidirectional").

Upgrade: a KIP-848 member joins a classic group of consumers, which becomes a KIP-848 group with the classic members in
it (`mixed_members` serves them). Downgrade: the last KIP-848 member goes, and those who are left become a classic group
again, which rebalances. Either way the old records are buried and the new ones written in one batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from clarion.groups import records as r
from clarion.groups.classic_group import ClassicGroup, ClassicMember
from clarion.groups.classic_rebalance import dismiss_sync
from clarion.groups.consumer_draft import Draft
from clarion.groups.consumer_group import JOIN_EPOCH, ConsumerGroup, MemberState
from clarion.groups.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    MemberSubscription,
    NamedPartitions,
    read_assignment,
    read_subscription,
    spoken_version,
    write_assignment,
)
from clarion.groups.group_admin import erase_membership
from clarion.groups.outcome import Call
from clarion.groups.partitions import NOTHING, Partitions, collect
from clarion.groups.shard import Step
from clarion.groups.share_group import ShareGroup
from clarion.groups.timers import TimerKey, TimerKind
from clarion.groups.topics import TopicsView
from clarion.model.errors import ErrorCode, KafkaError, MalformedError
from clarion.wire.messages.groups import ConsumerGroupHeartbeatRequest, JoinGroupRequest, JoinGroupRequestProtocol

# Their data only says what everybody held before. librdkafka's cooperative-sticky hands out such; Kafka, whose own
# assignors never do, refuses to convert any group with data in its assignments.
KNOWN_ASSIGNORS = ("range", "roundrobin", "sticky", "cooperative-sticky")


def modern_group(step: Step, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroup:
    """The group of a KIP-848 member: as it is, made for the first of them, or of what was a classic group."""
    group = step.shard.groups.get(request.group_id)
    if isinstance(group, ConsumerGroup):
        return group
    if request.member_epoch != JOIN_EPOCH or isinstance(group, ShareGroup):
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no consumer group {request.group_id}")
    if group is None:
        return ConsumerGroup(request.group_id)
    if not group.is_empty:
        return upgrade(step, group)
    # Ids that were given out and never came back are nobody: their owners may join as newcomers.
    if group.stored is not None:
        erase_membership(step, group)
    return ConsumerGroup(request.group_id)


def upgrade(step: Step, group: ClassicGroup) -> ConsumerGroup:
    """The group as KIP-848 sees it, in the epoch that was its generation; its records are written."""
    members = _convertible(step, group)
    holdings = _holdings(step.shard.topics, group, members)
    modern = ConsumerGroup(group.group_id)
    step.out.write(_key(group.group_id, r.CLASSIC_GROUP_TYPE), None)
    for member_id, metadata in members.items():
        modern.replay_member(member_id, metadata)
        modern.replay_target(member_id, holdings[member_id])
        modern.replay_current(
            member_id,
            r.CurrentAssignment(
                group.generation, group.generation, MemberState.STABLE, holdings[member_id], pending_revocation=NOTHING
            ),
        )
    modern.replay_epoch(r.GroupEpoch(group.generation, 0))
    modern.replay_target_epoch(r.TargetEpoch(group.generation, step.wall_ms))
    _write_whole(step, modern)
    for member in group.members.values():
        # For the old group too, should the append get lost: nobody of it waits for an answer any more.
        key = TimerKey(TimerKind.SESSION, group.group_id, member.member_id)
        step.shard.timers.start(key, step.now_ms + member.session_timeout_ms)
    return modern


def let_go(step: Step, group: ClassicGroup) -> None:
    """Whoever waits in the group that was goes on in the new one."""
    for member in group.members.values():
        dismiss_sync(step, member, ErrorCode.REBALANCE_IN_PROGRESS)
        if member.joining is not None:
            # librdkafka shows its application an error when a JoinGroup is refused for a rebalance.
            call, member.joining = member.joining, None
            defer(step, _repeated(group, member), call)


def defer(step: Step, request: JoinGroupRequest, call: Call) -> None:
    """Look at a JoinGroup again when the present step's records are replayed."""
    step.shard.deferred.setdefault(request.group_id, []).append((request, call))
    step.shard.timers.start(TimerKey(TimerKind.RESUME, request.group_id), step.now_ms)


def remove(draft: Draft, member_ids: Iterable[str]) -> None:
    """Take members out of a KIP-848 group: it gets a new epoch, or becomes a classic group."""
    draft.remove_members(member_ids)
    if _is_downgrade_due(draft.step, draft.members):
        _downgrade(draft.step, draft)
    else:
        draft.bump()


def _is_downgrade_due(step: Step, members: Mapping[str, r.MemberMetadata]) -> bool:
    """Only classic members are left, and they can be a classic group."""
    return (
        bool(members)
        and all(member.classic for member in members.values())
        and len(members) <= step.shard.config.members_max
        and bool(_common_protocols(members.values()))
    )


def _downgrade(step: Step, draft: Draft) -> None:
    """Bury the KIP-848 group and write the classic one. Without a leader: that calls for a rebalance, also after a
    restart (`classic_rebalance`)."""
    group_id = draft.group.group_id
    draft.erase_group()
    protocol = _common_protocols(draft.members.values())[0]
    snapshot = r.ClassicSnapshot(
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        generation=draft.group.epoch,
        protocol_name=protocol,
        leader=None,
        state_timestamp_ms=step.wall_ms,
        members=tuple(
            _classic_member(step.shard.topics, draft, member_id, member, protocol)
            for member_id, member in draft.members.items()
        ),
    )
    step.out.write(_key(group_id, r.CLASSIC_GROUP_TYPE), r.encode_classic(snapshot))
    step.shard.timers.start(TimerKey(TimerKind.RESUME, group_id), step.now_ms)


def to_ids(partitions: NamedPartitions, topics: TopicsView) -> Partitions:
    known = ((name, numbers) for name, numbers in partitions.items() if name in topics.topics)
    return collect((topics.topics[name].topic_id, numbers) for name, numbers in known)


def to_assignment(partitions: Partitions, topics: TopicsView, subscription: bytes) -> bytes:
    """In the version of the consumer protocol that the member itself speaks."""
    named = {topics.names[topic]: numbers for topic, numbers in partitions.items() if topic in topics.names}
    return write_assignment(named, spoken_version(subscription))


# Upgrade


def _convertible(step: Step, group: ClassicGroup) -> dict[str, r.MemberMetadata]:
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"{group.group_id} is a group of {group.protocol_type}")
    if len(group.members) > step.shard.config_of(group.group_id).consumer_members_max:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"{group.group_id} is too large for a consumer group")
    try:
        return {member.member_id: _modern_member(group, member) for member in group.members.values()}
    except MalformedError as error:
        message = f"{group.group_id} cannot become a consumer group: {error}"
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, message) from error


def _modern_member(group: ClassicGroup, member: ClassicMember) -> r.MemberMetadata:
    subscription = _subscription(group, member)
    if read_assignment(member.assignment).user_data and group.protocol_name not in KNOWN_ASSIGNORS:
        raise MalformedError(f"the assignor {group.protocol_name} hands out data of its own, which would be lost")
    return r.MemberMetadata(
        instance_id=member.instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=tuple(sorted(subscription.topics)),
        subscribed_topic_regex=None,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=None,
        classic=r.ClassicTerms(member.session_timeout_ms, member.protocols),
    )


def _subscription(group: ClassicGroup, member: ClassicMember) -> MemberSubscription:
    # While the first members gather the group has no protocol yet; all of a member's protocols subscribe alike.
    return read_subscription(member.metadata(group.protocol_name) or member.protocols[0][1])


def _repeated(group: ClassicGroup, member: ClassicMember) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group.group_id,
        session_timeout=member.session_timeout_ms,
        rebalance_timeout=member.rebalance_timeout_ms,
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocols=tuple(JoinGroupRequestProtocol(name=name, metadata=data) for name, data in member.protocols),
    )


def _holdings(topics: TopicsView, group: ClassicGroup, members: Iterable[str]) -> dict[str, Partitions]:
    """What everybody may be working on: what it was assigned, and what a cooperative member held when it last joined,
    for it may not have heard yet that this was taken away."""
    taken: dict[tuple[UUID, int], str] = {}
    for claims in (_assigned, _owned):
        for member_id in members:
            for topic, numbers in to_ids(claims(group, group.members[member_id]), topics).items():
                for number in numbers:
                    taken.setdefault((topic, number), member_id)
    held: dict[str, dict[UUID, set[int]]] = {member_id: {} for member_id in members}
    for (topic, number), member_id in taken.items():
        held[member_id].setdefault(topic, set()).add(number)
    return {member_id: collect(topics_held.items()) for member_id, topics_held in held.items()}


def _assigned(_group: ClassicGroup, member: ClassicMember) -> NamedPartitions:
    return read_assignment(member.assignment).partitions


def _owned(group: ClassicGroup, member: ClassicMember) -> NamedPartitions:
    return _subscription(group, member).owned


def _write_whole(step: Step, group: ConsumerGroup) -> None:
    def write(kind: int, value: bytes, name: str = "") -> None:
        step.out.write(_key(group.group_id, kind, name), value)

    for member_id, member in group.members.items():
        write(r.MEMBER_TYPE, r.encode_member(member), member_id)
    write(r.CONSUMER_GROUP_TYPE, r.encode_group_epoch(r.GroupEpoch(group.epoch, group.metadata_hash)))
    for member_id, partitions in group.targets.items():
        write(r.TARGET_MEMBER_TYPE, r.encode_target(partitions), member_id)
    target = r.TargetEpoch(group.target_epoch, group.target_timestamp_ms)
    write(r.TARGET_EPOCH_TYPE, r.encode_target_epoch(target))
    for member_id, current in group.currents.items():
        write(r.CURRENT_TYPE, r.encode_current(current), member_id)


# Downgrade


def _classic_member(
    topics: TopicsView, draft: Draft, member_id: str, member: r.MemberMetadata, protocol: str
) -> r.ClassicMemberSnapshot:
    assert member.classic is not None, "only classic members are left"
    subscription = dict(member.classic.protocols)[protocol]
    return r.ClassicMemberSnapshot(
        member_id=member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=member.classic.session_timeout_ms,
        subscription=subscription,
        # Not the target: should the group go up again before it has rebalanced, this is what everybody works on.
        assignment=to_assignment(draft.held(member_id), topics, subscription),
    )


def _common_protocols(members: Iterable[r.MemberMetadata]) -> list[str]:
    """What all classic members know, the favourites of the first one first."""
    known = [[name for name, _ in member.classic.protocols] for member in members if member.classic]
    return [name for name in known[0] if all(name in others for others in known)] if known else []


def _key(group_id: str, kind: int, name: str = "") -> bytes:
    return r.encode_key(r.Key(kind, group_id, name))
