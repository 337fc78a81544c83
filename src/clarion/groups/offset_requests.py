"""OffsetCommit, OffsetFetch and OffsetDelete: who may, and what becomes of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from clarion.groups.classic_group import ClassicGroup, ClassicState
from clarion.groups.classic_rebalance import keep_alive
from clarion.groups.consumer_group import ConsumerGroup
from clarion.groups.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from clarion.groups.memory import OFFSET_BYTES, weight_of_offset
from clarion.groups.names import check_group_id, check_group_id_of_offsets
from clarion.groups.outcome import Call, Outcome
from clarion.groups.records import OFFSET_TYPES, CommittedOffset, Key, encode_key, encode_offset
from clarion.groups.shard import Group, Shard, Step
from clarion.groups.share_group import ShareGroup
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import NO_TOPIC_ID, TopicPartition
from clarion.model.names import TOPIC_NAME_LENGTH_MAX
from clarion.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)

if TYPE_CHECKING:
    from clarion.groups.coordinator import GroupCoordinator

MANY_GROUPS_FROM = 8  # OffsetFetch
MEMBER_EPOCHS_FROM = 9  # OffsetCommit and OffsetFetch know KIP-848 from this version on
INT64_MAX = 2**63 - 1
NO_OFFSET = CommittedOffset(-1, -1, "", -1)


def commit(step: Step, request: OffsetCommitRequest, call: Call) -> None:
    try:
        _check_commit(step, request, call.version)
    except KafkaError as refusal:
        step.out.reply(call.ticket, refused_commit(request, refusal.code))
        return
    topics = tuple(
        OffsetCommitResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=tuple(_commit_one(step, request, topic, partition) for partition in topic.partitions),
        )
        for topic in request.topics
    )
    step.out.reply(call.ticket, OffsetCommitResponse(topics=topics))


def refused_commit(request: OffsetCommitRequest, code: ErrorCode) -> OffsetCommitResponse:
    """There is no place for an error of the whole request: every partition gets it."""
    return OffsetCommitResponse(
        topics=tuple(
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=tuple(
                    OffsetCommitResponsePartition(partition_index=one.partition_index, error_code=code)
                    for one in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def fetch(shard: Shard, request: OffsetFetchRequestGroup) -> OffsetFetchResponseGroup:
    """The offsets of one group; of all its partitions when no topics are named."""
    if shard.share(request.group_id) is not None:
        return OffsetFetchResponseGroup(group_id=request.group_id, error_code=ErrorCode.GROUP_ID_NOT_FOUND)
    group = shard.consumer(request.group_id)
    if group is not None and (request.member_id is not None or request.member_epoch >= 0):
        try:
            _check_member_epoch(group, request.member_id or "", request.member_epoch)
        except KafkaError as refusal:
            return OffsetFetchResponseGroup(group_id=request.group_id, error_code=refusal.code)
    offsets = shard.offsets.of(request.group_id)
    wanted = request.topics if request.topics is not None else all_topics(list(offsets))
    return OffsetFetchResponseGroup(
        group_id=request.group_id,
        topics=tuple(
            OffsetFetchResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=tuple(
                    _fetched(index, offsets.get(TopicPartition(topic.name, index), NO_OFFSET))
                    for index in topic.partition_indexes
                ),
            )
            for topic in wanted
        ),
    )


class CommittedIn(NamedTuple):
    """What groups have committed in some topics, and which groups have their positions elsewhere: share groups."""

    offsets: dict[TopicPartition, dict[str, int]]
    share_groups: list[str]


def committed_in(coordinator: GroupCoordinator, topics: Mapping[str, UUID], call: Call) -> Outcome:
    """For who deletes what all have read: the answer waits until nothing of it can be undone.

    Only of the topics with these ids: what was committed for another one of such a name is not about them.
    """
    shard = coordinator.shard
    found: dict[TopicPartition, dict[str, int]] = {}
    for group_id, offsets in shard.offsets.groups().items():
        for at, offset in offsets.items():
            if at.topic in topics and offset.topic_id in (topics[at.topic], NO_TOPIC_ID):
                found.setdefault(at, {})[group_id] = offset.offset
    shares = [group_id for group_id, group in shard.groups.items() if isinstance(group, ShareGroup)]
    return Outcome(replies=[(call.ticket, CommittedIn(found, shares))])


def groups_asked(request: OffsetFetchRequest, version: int) -> tuple[OffsetFetchRequestGroup, ...]:
    """The request in the shape of v8, whatever its version: for the driver, that sends each group to its shard."""
    if version >= MANY_GROUPS_FROM:
        return request.groups
    return (OffsetFetchRequestGroup(group_id=request.group_id, topics=request.topics),)


def fetch_response(groups: tuple[OffsetFetchResponseGroup, ...], version: int) -> OffsetFetchResponse:
    """The shards' answers in the shape that the version knows."""
    if version >= MANY_GROUPS_FROM:
        return OffsetFetchResponse(groups=groups)
    return OffsetFetchResponse(error_code=groups[0].error_code, topics=groups[0].topics)


def delete(step: Step, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    check_group_id(request.group_id)
    group = step.shard.groups.get(request.group_id)
    if group is None or isinstance(group, ShareGroup):
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
    if isinstance(group, ClassicGroup) and not group.is_empty and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
    topics = []
    for topic in request.topics:
        is_subscribed = group.is_subscribed_to(topic.name)
        code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_subscribed else ErrorCode.NONE
        if not is_subscribed:
            for one in topic.partitions:
                drop(step, request.group_id, TopicPartition(topic.name, one.partition_index))
        partitions = tuple(
            OffsetDeleteResponsePartition(partition_index=one.partition_index, error_code=code)
            for one in topic.partitions
        )
        topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=partitions))
    return OffsetDeleteResponse(topics=tuple(topics))


def drop(step: Step, group_id: str, partition: TopicPartition) -> None:
    """Write the tombstone of an offset, if there is one."""
    if partition in step.shard.offsets.of(group_id):
        step.out.write(encode_key(Key(OFFSET_TYPES[1], group_id, *partition)), None)


def _check_commit(step: Step, request: OffsetCommitRequest, version: int) -> None:
    check_group_id_of_offsets(request.group_id)
    step.shard.check_room(request.group_id, _more_bytes(step.shard, request))
    group: Group | None = step.shard.groups.get(request.group_id)
    if isinstance(group, ShareGroup):
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"{request.group_id} is a share group")
    epoch = request.generation_id_or_member_epoch
    if epoch < 0 and (group is None or group.is_empty):
        return  # an admin, or a consumer that assigns its partitions itself; a commit is all that makes such a group
    if group is None:
        is_new = version >= MEMBER_EPOCHS_FROM
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND if is_new else ErrorCode.ILLEGAL_GENERATION)
    if isinstance(group, ConsumerGroup):
        _check_modern_commit(group, request, version)
    else:
        _check_classic_commit(step, group, request)


def _more_bytes(shard: Shard, request: OffsetCommitRequest) -> int:
    """What the group would hold beyond what it holds: a consumer that commits on and on takes nothing more."""
    offsets = shard.offsets.of(request.group_id)
    more = 0
    for topic in request.topics:
        for one in topic.partitions:
            before = offsets.get(TopicPartition(topic.name, one.partition_index))
            told = OFFSET_BYTES + len(one.committed_metadata or "")
            more += max(0, told - (weight_of_offset(before) if before else 0))
    return more


def _check_classic_commit(step: Step, group: ClassicGroup, request: OffsetCommitRequest) -> None:
    member = group.member(request.member_id, request.group_instance_id)
    if request.generation_id_or_member_epoch != group.generation:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    if group.state is ClassicState.COMPLETING:
        # The generation has changed and the member does not know its part in it yet.
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
    keep_alive(step, group, member)


def _check_modern_commit(group: ConsumerGroup, request: OffsetCommitRequest, version: int) -> None:
    if request.group_instance_id is not None:
        group.check_static(request.member_id, request.group_instance_id)
    member = group.members.get(request.member_id)
    if member is not None and member.classic is None and version < MEMBER_EPOCHS_FROM:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)  # what it takes for a generation is an epoch
    _check_member_epoch(group, request.member_id, request.generation_id_or_member_epoch)


def _check_member_epoch(group: ConsumerGroup, member_id: str, epoch: int) -> None:
    member = group.members.get(member_id)
    if member is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    if epoch != group.current(member_id).member_epoch:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION if member.classic else ErrorCode.STALE_MEMBER_EPOCH)


def _commit_one(
    step: Step,
    request: OffsetCommitRequest,
    topic: OffsetCommitRequestTopic,
    wanted: OffsetCommitRequestPartition,
) -> OffsetCommitResponsePartition:
    index = wanted.partition_index
    metadata = wanted.committed_metadata or ""
    code = ErrorCode.NONE
    if len(metadata.encode()) > step.shard.config.offset_metadata_bytes_max:
        code = ErrorCode.OFFSET_METADATA_TOO_LARGE
    elif len(topic.name) > TOPIC_NAME_LENGTH_MAX:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if code:
        return OffsetCommitResponsePartition(partition_index=index, error_code=code)
    expires_ms = -1 if request.retention_time < 0 else min(step.wall_ms + request.retention_time, INT64_MAX)
    offset = CommittedOffset(
        offset=wanted.committed_offset,
        leader_epoch=wanted.committed_leader_epoch,
        metadata=metadata,
        commit_timestamp_ms=step.wall_ms,
        expire_timestamp_ms=expires_ms,
        topic_id=topic.topic_id,
    )
    step.out.write(encode_key(Key(OFFSET_TYPES[1], request.group_id, topic.name, index)), encode_offset(offset))
    return OffsetCommitResponsePartition(partition_index=index)


def _fetched(index: int, offset: CommittedOffset) -> OffsetFetchResponsePartition:
    return OffsetFetchResponsePartition(
        partition_index=index,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
    )


def all_topics(partitions: list[TopicPartition]) -> tuple[OffsetFetchRequestTopic, ...]:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return tuple(OffsetFetchRequestTopic(name=name, partition_indexes=tuple(all_)) for name, all_ in topics.items())
