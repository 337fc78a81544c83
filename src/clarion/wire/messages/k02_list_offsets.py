"""ListOffsets v1-11: the offset at a time, at the start, at the end.

v2 isolation level, throttle time · v4 leader epochs · v6 flexible · v7 time -3 (largest timestamp) · v8 time -4
(earliest local) · v9 time -5 (last tiered) · v10 timeout · v11 time -6 (earliest not yet uploaded).
"""

from __future__ import annotations

from clarion.wire.messages import message


@message
class ListOffsetsPartition:
    partition_index: int
    current_leader_epoch: int = -1  # v4+
    timestamp: int


@message
class ListOffsetsTopic:
    name: str
    partitions: tuple[ListOffsetsPartition, ...]


@message
class ListOffsetsRequest:
    replica_id: int
    isolation_level: int = 0  # v2+
    topics: tuple[ListOffsetsTopic, ...]
    timeout: int = 0  # v10+


@message
class ListOffsetsPartitionResponse:
    partition_index: int
    error_code: int = 0
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1  # v4+


@message
class ListOffsetsTopicResponse:
    name: str
    partitions: tuple[ListOffsetsPartitionResponse, ...]


@message
class ListOffsetsResponse:
    throttle_time: int = 0  # v2+
    topics: tuple[ListOffsetsTopicResponse, ...]
