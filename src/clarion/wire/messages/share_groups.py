"""Share groups (KIP-932): their members' requests, and what administrators ask."""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

from clarion.model.ids import NO_TOPIC_ID
from clarion.wire.messages import message
from clarion.wire.messages.groups import NO_OPERATIONS, DescribedAssignment, TopicPartitions

# ShareGroupHeartbeat (76), version 1.


@message
class ShareGroupHeartbeatRequest:
    """Null means "as I said before"; a request at epoch 0 says everything."""

    group_id: str
    member_id: str = ""
    member_epoch: int = 0
    rack_id: str | None = None
    subscribed_topic_names: tuple[str, ...] | None = None
    knows_filters: bool = False  # Clarion's own (`wire.own_fields`)


@message
class ShareAssignment:
    topic_partitions: tuple[TopicPartitions, ...] = ()


@message
class ShareGroupHeartbeatResponse:
    throttle_time: int = 0
    error_code: int = 0
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval: int = 0
    assignment: ShareAssignment | None = None


# ShareGroupDescribe (77), version 1.


@message
class ShareGroupDescribeRequest:
    group_ids: tuple[str, ...] = ()
    include_authorized_operations: bool = False


@message
class DescribedShareMember:
    member_id: str
    rack_id: str | None = None
    member_epoch: int = 0
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: tuple[str, ...] = ()
    assignment: DescribedAssignment = DescribedAssignment()


@message
class DescribedShareGroup:
    error_code: int = 0
    error_message: str | None = None
    group_id: str
    group_state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor_name: str = ""
    members: tuple[DescribedShareMember, ...] = ()
    authorized_operations: int = NO_OPERATIONS


@message
class ShareGroupDescribeResponse:
    throttle_time: int = 0
    groups: tuple[DescribedShareGroup, ...] = ()


# ShareFetch (78), versions 1–2. v2 adds the acquire mode and renewals.


_ONE_TYPE: Final = Struct(">qqBbB")  # both offsets, the length of an array of one plus one, it, and no tagged fields
_TYPES: Final = tuple((kind,) for kind in range(128))


class AcknowledgementBatch(NamedTuple):
    """The last three are Clarion's own (`wire.own_fields`). A tuple, because requests bring thousands of them."""

    first_offset: int
    last_offset: int
    acknowledge_types: tuple[int, ...] = ()
    delay_ms: int = -1
    reason: str = ""
    extend_ms: int = 0

    @classmethod
    def read_alike(cls, data: bytes, at: int, count: int) -> tuple[list[AcknowledgementBatch], int] | None:
        """So many in one go, and where they end, if each has one type and nothing else; None if one is different."""
        end = at + count * _ONE_TYPE.size
        if end > len(data):
            return None
        rows, new = _ONE_TYPE.iter_unpack(data[at:end]), tuple.__new__
        read = [
            new(cls, (first, last, _TYPES[kind], -1, "", 0))
            for first, last, size, kind, tags in rows
            if size == 2 and tags == 0 and kind >= 0
        ]
        return (read, end) if len(read) == count else None


@message
class ShareFetchPartition:
    partition_index: int
    acknowledgement_batches: tuple[AcknowledgementBatch, ...] = ()


@message
class ShareFetchTopic:
    topic_id: UUID = NO_TOPIC_ID
    partitions: tuple[ShareFetchPartition, ...] = ()


@message
class ForgottenShareTopic:
    topic_id: UUID = NO_TOPIC_ID
    partitions: tuple[int, ...] = ()


@message
class ShareFetchRequest:
    group_id: str | None = None
    member_id: str | None = None
    share_session_epoch: int = 0
    max_wait: int = 0
    min_bytes: int = 0
    max_bytes: int = 2**31 - 1
    max_records: int = 0
    batch_size: int = 0
    share_acquire_mode: int = 0
    is_renew_ack: bool = False
    topics: tuple[ShareFetchTopic, ...] = ()
    forgotten_topics_data: tuple[ForgottenShareTopic, ...] = ()
    knows_filters: bool = False  # Clarion's own (`wire.own_fields`)


@message
class ShareCurrentLeader:
    leader_id: int = -1
    leader_epoch: int = -1


@message
class AcquiredRecords:
    first_offset: int
    last_offset: int
    delivery_count: int


@message
class ShareFetchPartitionData:
    partition_index: int
    error_code: int = 0
    error_message: str | None = None
    acknowledge_error_code: int = 0
    acknowledge_error_message: str | None = None
    current_leader: ShareCurrentLeader = ShareCurrentLeader()
    records: bytes | None = None  # or `LeftOut`, of a response that is sent
    acquired_records: tuple[AcquiredRecords, ...] = ()


@message
class ShareFetchTopicResponse:
    topic_id: UUID = NO_TOPIC_ID
    partitions: tuple[ShareFetchPartitionData, ...] = ()


@message
class ShareNodeEndpoint:
    node_id: int
    host: str
    port: int
    rack: str | None = None


@message
class ShareFetchResponse:
    throttle_time: int = 0
    error_code: int = 0
    error_message: str | None = None
    acquisition_lock_timeout: int = 0
    responses: tuple[ShareFetchTopicResponse, ...] = ()
    node_endpoints: tuple[ShareNodeEndpoint, ...] = ()


# ShareAcknowledge (79), versions 1–2. v2 adds renewals.


@message
class ShareAcknowledgeRequest:
    group_id: str | None = None
    member_id: str | None = None
    share_session_epoch: int = 0
    is_renew_ack: bool = False
    topics: tuple[ShareFetchTopic, ...] = ()


@message
class ShareAcknowledgePartitionData:
    partition_index: int
    error_code: int = 0
    error_message: str | None = None
    current_leader: ShareCurrentLeader = ShareCurrentLeader()


@message
class ShareAcknowledgeTopicResponse:
    topic_id: UUID = NO_TOPIC_ID
    partitions: tuple[ShareAcknowledgePartitionData, ...] = ()


@message
class ShareAcknowledgeResponse:
    throttle_time: int = 0
    error_code: int = 0
    error_message: str | None = None
    acquisition_lock_timeout: int = 0
    responses: tuple[ShareAcknowledgeTopicResponse, ...] = ()
    node_endpoints: tuple[ShareNodeEndpoint, ...] = ()


# DescribeShareGroupOffsets (90), versions 0–1. v1 adds the lag.


@message
class DescribeShareGroupOffsetsRequestTopic:
    topic_name: str
    partitions: tuple[int, ...] = ()


@message
class DescribeShareGroupOffsetsRequestGroup:
    group_id: str
    topics: tuple[DescribeShareGroupOffsetsRequestTopic, ...] | None = None


@message
class DescribeShareGroupOffsetsRequest:
    groups: tuple[DescribeShareGroupOffsetsRequestGroup, ...] = ()


@message
class DescribeShareGroupOffsetsResponsePartition:
    partition_index: int
    start_offset: int = -1
    leader_epoch: int = 0
    lag: int = -1
    error_code: int = 0
    error_message: str | None = None


@message
class DescribeShareGroupOffsetsResponseTopic:
    topic_name: str
    topic_id: UUID = NO_TOPIC_ID
    partitions: tuple[DescribeShareGroupOffsetsResponsePartition, ...] = ()


@message
class DescribeShareGroupOffsetsResponseGroup:
    group_id: str
    topics: tuple[DescribeShareGroupOffsetsResponseTopic, ...] = ()
    error_code: int = 0
    error_message: str | None = None


@message
class DescribeShareGroupOffsetsResponse:
    throttle_time: int = 0
    groups: tuple[DescribeShareGroupOffsetsResponseGroup, ...] = ()


# AlterShareGroupOffsets (91), version 0.


@message
class AlterShareGroupOffsetsRequestPartition:
    partition_index: int
    start_offset: int


@message
class AlterShareGroupOffsetsRequestTopic:
    topic_name: str
    partitions: tuple[AlterShareGroupOffsetsRequestPartition, ...] = ()


@message
class AlterShareGroupOffsetsRequest:
    group_id: str
    topics: tuple[AlterShareGroupOffsetsRequestTopic, ...] = ()


@message
class AlterShareGroupOffsetsResponsePartition:
    partition_index: int
    error_code: int = 0
    error_message: str | None = None


@message
class AlterShareGroupOffsetsResponseTopic:
    topic_name: str
    topic_id: UUID = NO_TOPIC_ID
    partitions: tuple[AlterShareGroupOffsetsResponsePartition, ...] = ()


@message
class AlterShareGroupOffsetsResponse:
    throttle_time: int = 0
    error_code: int = 0
    error_message: str | None = None
    responses: tuple[AlterShareGroupOffsetsResponseTopic, ...] = ()


# DeleteShareGroupOffsets (92), version 0.


@message
class DeleteShareGroupOffsetsRequestTopic:
    topic_name: str


@message
class DeleteShareGroupOffsetsRequest:
    group_id: str
    topics: tuple[DeleteShareGroupOffsetsRequestTopic, ...] = ()


@message
class DeleteShareGroupOffsetsResponseTopic:
    topic_name: str
    topic_id: UUID = NO_TOPIC_ID
    error_code: int = 0
    error_message: str | None = None


@message
class DeleteShareGroupOffsetsResponse:
    throttle_time: int = 0
    error_code: int = 0
    error_message: str | None = None
    responses: tuple[DeleteShareGroupOffsetsResponseTopic, ...] = ()
