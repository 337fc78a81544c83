"""ConsumerGroupHeartbeat (68, KIP-848), versions 0–1. v1 adds regular expressions and member ids made by the client."""

from __future__ import annotations

from uuid import UUID

from clarion.model.ids import NO_TOPIC_ID
from clarion.wire.messages import message


@message
class TopicPartitions:
    topic_id: UUID = NO_TOPIC_ID
    partitions: tuple[int, ...] = ()


@message
class ConsumerGroupHeartbeatRequest:
    """Null (or -1) means "as I said before"; a request at epoch 0 says everything."""

    group_id: str
    member_id: str = ""
    member_epoch: int = 0
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout: int = -1
    subscribed_topic_names: tuple[str, ...] | None = None
    subscribed_topic_regex: str | None = None
    server_assignor: str | None = None
    topic_partitions: tuple[TopicPartitions, ...] | None = None


@message
class Assignment:
    topic_partitions: tuple[TopicPartitions, ...] = ()


@message
class ConsumerGroupHeartbeatResponse:
    throttle_time: int = 0
    error_code: int = 0
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval: int = 0
    assignment: Assignment | None = None
