"""ConsumerGroupDescribe (69, KIP-848), versions 0–1. v1 adds the member type."""

from __future__ import annotations

from uuid import UUID

from clarion.model.ids import NO_TOPIC_ID
from clarion.wire.messages import message

NO_OPERATIONS = -(2**31)


@message
class ConsumerGroupDescribeRequest:
    group_ids: tuple[str, ...] = ()
    include_authorized_operations: bool = False


@message
class TopicPartitions:
    topic_id: UUID = NO_TOPIC_ID
    topic_name: str = ""
    partitions: tuple[int, ...] = ()


@message
class Assignment:
    topic_partitions: tuple[TopicPartitions, ...] = ()


@message
class Member:
    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    member_epoch: int = 0
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: tuple[str, ...] = ()
    subscribed_topic_regex: str | None = None
    assignment: Assignment = Assignment()
    target_assignment: Assignment = Assignment()
    member_type: int = -1


@message
class DescribedGroup:
    error_code: int = 0
    error_message: str | None = None
    group_id: str
    group_state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor_name: str = ""
    members: tuple[Member, ...] = ()
    authorized_operations: int = NO_OPERATIONS


@message
class ConsumerGroupDescribeResponse:
    throttle_time: int = 0
    groups: tuple[DescribedGroup, ...] = ()
