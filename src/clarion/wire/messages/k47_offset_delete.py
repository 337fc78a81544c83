"""OffsetDelete (47), version 0."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class OffsetDeleteRequestPartition:
    partition_index: int


@dataclass(frozen=True, kw_only=True, slots=True)
class OffsetDeleteRequestTopic:
    name: str
    partitions: tuple[OffsetDeleteRequestPartition, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class OffsetDeleteRequest:
    group_id: str
    topics: tuple[OffsetDeleteRequestTopic, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class OffsetDeleteResponsePartition:
    partition_index: int
    error_code: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class OffsetDeleteResponseTopic:
    name: str
    partitions: tuple[OffsetDeleteResponsePartition, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class OffsetDeleteResponse:
    error_code: int = 0
    throttle_time: int = 0
    topics: tuple[OffsetDeleteResponseTopic, ...] = ()
