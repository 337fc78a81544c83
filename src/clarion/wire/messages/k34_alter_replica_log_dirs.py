"""AlterReplicaLogDirs (34), versions 1-2."""

from __future__ import annotations

from clarion.wire.messages import message


@message
class AlterReplicaLogDirTopic:
    name: str
    partitions: tuple[int, ...] = ()


@message
class AlterReplicaLogDir:
    path: str
    topics: tuple[AlterReplicaLogDirTopic, ...] = ()


@message
class AlterReplicaLogDirsRequest:
    dirs: tuple[AlterReplicaLogDir, ...] = ()


@message
class AlterReplicaLogDirPartitionResult:
    partition_index: int
    error_code: int = 0


@message
class AlterReplicaLogDirTopicResult:
    topic_name: str
    partitions: tuple[AlterReplicaLogDirPartitionResult, ...] = ()


@message
class AlterReplicaLogDirsResponse:
    throttle_time: int = 0
    results: tuple[AlterReplicaLogDirTopicResult, ...] = ()
