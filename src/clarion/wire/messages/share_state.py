"""The state of share groups, between brokers (KIP-932): leaders of partitions tell it to share coordinators, and ask.

Beside Kafka's fields are some of our own (`wire.own_fields`): who asks, as a replica says it that fetches; the
`version` of a state, which every change raises; which subscription it is of; and what is known of records beyond what
Kafka knows.
"""

from __future__ import annotations

from uuid import UUID

from clarion.model.ids import NO_TOPIC_ID
from clarion.wire.messages import message


@message
class PersistedBatch:
    """In reads and writes."""

    first_offset: int
    last_offset: int
    delivery_state: int
    delivery_count: int
    available_at_ms: int = 0
    reason: str = ""


@message
class SharePartitionResult:
    """What initializing, writing and deleting are answered with."""

    partition: int
    error_code: int = 0
    error_message: str | None = None


@message
class ShareStateResult:
    topic_id: UUID = NO_TOPIC_ID
    partitions: tuple[SharePartitionResult, ...] = ()


# InitializeShareGroupState (83), version 0.


@message
class InitializeStatePartition:
    partition: int
    state_epoch: int = 0
    start_offset: int = -1
    subscription_ms: int = 0


@message
class InitializeStateTopic:
    topic_id: UUID = NO_TOPIC_ID
    partitions: tuple[InitializeStatePartition, ...] = ()


@message
class InitializeShareGroupStateRequest:
    group_id: str
    topics: tuple[InitializeStateTopic, ...] = ()
    broker_id: int = -1
    broker_epoch: int = -1
    secret: str = ""


@message
class InitializeShareGroupStateResponse:
    results: tuple[ShareStateResult, ...] = ()


# ReadShareGroupState (84), version 0.


@message
class ReadStatePartition:
    """In summaries too."""

    partition: int
    leader_epoch: int = -1


@message
class ReadStateTopic:
    topic_id: UUID = NO_TOPIC_ID
    partitions: tuple[ReadStatePartition, ...] = ()


@message
class ReadShareGroupStateRequest:
    group_id: str
    topics: tuple[ReadStateTopic, ...] = ()
    broker_id: int = -1
    broker_epoch: int = -1
    secret: str = ""


@message
class ReadStatePartitionResult:
    partition: int
    error_code: int = 0
    error_message: str | None = None
    state_epoch: int = 0
    start_offset: int = -1
    state_batches: tuple[PersistedBatch, ...] = ()
    version: int = -1
    subscription_ms: int = 0


@message
class ReadStateResult:
    topic_id: UUID = NO_TOPIC_ID
    partitions: tuple[ReadStatePartitionResult, ...] = ()


@message
class ReadShareGroupStateResponse:
    results: tuple[ReadStateResult, ...] = ()


# WriteShareGroupState (85), versions 0-1. v1 adds how many records are done (KIP-1226).


@message
class WriteStatePartition:
    partition: int
    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = -1
    delivery_complete_count: int = -1
    state_batches: tuple[PersistedBatch, ...] = ()
    version: int = -1


@message
class WriteStateTopic:
    topic_id: UUID = NO_TOPIC_ID
    partitions: tuple[WriteStatePartition, ...] = ()


@message
class WriteShareGroupStateRequest:
    group_id: str
    topics: tuple[WriteStateTopic, ...] = ()
    broker_id: int = -1
    broker_epoch: int = -1
    secret: str = ""


@message
class WriteShareGroupStateResponse:
    results: tuple[ShareStateResult, ...] = ()


# DeleteShareGroupState (86), version 0.


@message
class DeleteStatePartition:
    partition: int
    version: int = -1


@message
class DeleteStateTopic:
    topic_id: UUID = NO_TOPIC_ID
    partitions: tuple[DeleteStatePartition, ...] = ()


@message
class DeleteShareGroupStateRequest:
    group_id: str
    topics: tuple[DeleteStateTopic, ...] = ()
    broker_id: int = -1
    broker_epoch: int = -1
    secret: str = ""


@message
class DeleteShareGroupStateResponse:
    results: tuple[ShareStateResult, ...] = ()


# ReadShareGroupStateSummary (87), versions 0-1. v1 adds how many records are done (KIP-1226).


@message
class ReadShareGroupStateSummaryRequest:
    group_id: str
    topics: tuple[ReadStateTopic, ...] = ()
    broker_id: int = -1
    broker_epoch: int = -1
    secret: str = ""


@message
class SummaryPartitionResult:
    partition: int
    error_code: int = 0
    error_message: str | None = None
    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = -1
    delivery_complete_count: int = -1
    version: int = -1
    subscription_ms: int = 0


@message
class SummaryResult:
    topic_id: UUID = NO_TOPIC_ID
    partitions: tuple[SummaryPartitionResult, ...] = ()


@message
class ReadShareGroupStateSummaryResponse:
    results: tuple[SummaryResult, ...] = ()
