"""AlterReplicaLogDirs (34), versions 1-2."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class AlterReplicaLogDirTopic:
    name: str
    partitions: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class AlterReplicaLogDir:
    path: str
    topics: tuple[AlterReplicaLogDirTopic, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class AlterReplicaLogDirsRequest:
    dirs: tuple[AlterReplicaLogDir, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class AlterReplicaLogDirPartitionResult:
    partition_index: int
    error_code: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class AlterReplicaLogDirTopicResult:
    topic_name: str
    partitions: tuple[AlterReplicaLogDirPartitionResult, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class AlterReplicaLogDirsResponse:
    throttle_time: int = 0
    results: tuple[AlterReplicaLogDirTopicResult, ...] = ()
