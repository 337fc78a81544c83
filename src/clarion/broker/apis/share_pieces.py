"""What ShareFetch and ShareAcknowledge have in common: who asks, what is acknowledged, and what is told of leaders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from clarion.broker.authorizer import Operation, Principal
from clarion.broker.broker import Broker, RequestContext
from clarion.broker.queue_rules import QueueRules, rules_of
from clarion.broker.share_leader import ShareLeader
from clarion.groups.names import check_names
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import TopicId
from clarion.queues.acknowledgements import check_acknowledgements, said_in
from clarion.queues.sessions import PARTITIONS_MAX, SharedPartition, ShareSession
from clarion.replication import Partition
from clarion.wire.messages.share_groups import (
    ForgottenShareTopic,
    ShareCurrentLeader,
    ShareFetchPartition,
    ShareFetchTopic,
    ShareNodeEndpoint,
)


class Member(NamedTuple):
    """Who asks, on whose behalf, and by which rules."""

    broker: Broker
    who: Principal
    listener: int
    group_id: str
    member_id: str
    rules: QueueRules

    def partition(self, topic_id: TopicId, index: int) -> Partition:
        resolver = self.broker.resolver
        return resolver.partition(resolver.topic_by_id(self.who, Operation.READ, topic_id), index)

    async def leader(self, topic_id: TopicId, index: int) -> ShareLeader:
        return await self.broker.shares.leaders.get(self.group_id, topic_id, self.partition(topic_id, index))


def member_of(broker: Broker, group_id: str | None, member_id: str | None, context: RequestContext) -> Member:
    if not group_id or not member_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the group id or the member id is missing")
    check_names(group_id, member_id)
    broker.resolver.require_group(context.principal, Operation.READ, group_id)
    return Member(broker, context.principal, context.listener, group_id, member_id, rules_of(broker, group_id))


def each_partition(topics: Sequence[ShareFetchTopic]) -> dict[SharedPartition, ShareFetchPartition]:
    """Named twice it is asked once; but two lists of acknowledgements are refused: none is passed over in silence."""
    check_count(topics)
    asked: dict[SharedPartition, ShareFetchPartition] = {}
    for topic in topics:
        for one in topic.partitions:
            before = asked.setdefault((topic.topic_id, one.partition_index), one)
            if before is not one and one.acknowledgement_batches:
                if before.acknowledgement_batches:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "a partition's acknowledgements come twice")
                asked[topic.topic_id, one.partition_index] = one
    return asked


def check_count(topics: Sequence[ShareFetchTopic | ForgottenShareTopic]) -> None:
    if len(topics) > PARTITIONS_MAX or sum(len(topic.partitions) for topic in topics) > PARTITIONS_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"a share session has at most {PARTITIONS_MAX} partitions")


async def acknowledge(
    member: Member, partition: SharedPartition, asked: ShareFetchPartition, *, may_renew: bool
) -> ShareLeader:
    """It has happened, and is durable when the share-partition is saved (`wait_saved`). KafkaError says why not."""
    said = said_in(asked.acknowledgement_batches)
    if may_renew and not member.rules.may_renew:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "renewals are switched off for this group")
    check_acknowledgements(said, may_renew=may_renew)
    leader = await member.leader(*partition)
    leader.acknowledge(member.member_id, member.rules, said)
    return leader


def give_back(broker: Broker, session: ShareSession) -> None:
    """The member goes: others may have what it still holds."""
    for topic_id, index in session.partitions:
        leader = broker.shares.leaders.known(session.group_id, topic_id, index)
        if leader is not None:
            leader.end_session(session.member_id)


def leader_told(member: Member, code: int, partition: SharedPartition) -> ShareCurrentLeader:
    """Where else to ask (KIP-951)."""
    found = member.broker.resolver.leader_instead(code, "", *partition, member.listener)
    return ShareCurrentLeader() if found is None else ShareCurrentLeader(leader_id=found[0], leader_epoch=found[1])


def endpoints(member: Member, leaders: Iterable[ShareCurrentLeader]) -> tuple[ShareNodeEndpoint, ...]:
    brokers = member.broker.image.brokers
    told = {}
    for leader in leaders:
        known = brokers.get(leader.leader_id)
        if known is not None:
            host, port = known.endpoint(member.listener)
            told[known.id] = ShareNodeEndpoint(node_id=known.id, host=host, port=port, rack=known.rack)
    return tuple(told.values())
