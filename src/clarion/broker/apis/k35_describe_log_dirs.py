"""DescribeLogDirs v1-4: the data directory, the partitions in it and their size, the room that is left.

v2 flexible · v3 error code of the whole answer · v4 total and usable bytes of the disk.

There is one directory, and no replica moves between directories: no lag, no future replica. A partition that does not
exist is left out, as in Kafka. Who asks about topics by name hears in tagged fields of ours who needs how much of the
partitions that this broker leads, and since when.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from typing import Final

from clarion.broker.authorizer import THE_CLUSTER, Operation, ResourceKind
from clarion.broker.broker import Broker, RequestContext
from clarion.model.errors import ErrorCode
from clarion.replication import Partition
from clarion.wire.messages.replicas import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

_PARTITIONS_PER_TURN: Final = 50  # the first look at a partition's size asks the disk for each of its files
_UNKNOWN: Final = -1


async def handle(broker: Broker, request: DescribeLogDirsRequest, context: RequestContext) -> DescribeLogDirsResponse:
    if not broker.resolver.allows(context.principal, Operation.DESCRIBE, ResourceKind.CLUSTER, THE_CLUSTER):
        return DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, results=())
    partitions = list(_asked(broker, request))
    found = None if request.topics is None else await broker.needs.look(partitions)
    described: dict[str, list[DescribeLogDirsPartition]] = {}
    for number, partition in enumerate(partitions, start=1):
        try:
            size = partition.size_bytes
            holders = () if found is None else await broker.cleaner.holders(partition, found.of(partition) or ())
        except OSError:
            continue  # it went while we were looking
        described.setdefault(partition.tp.topic, []).append(
            DescribeLogDirsPartition(
                partition_index=partition.tp.partition,
                partition_size=size,
                offset_lag=0,
                is_future_key=False,
                holders=tuple(holders),
            )
        )
        if number % _PARTITIONS_PER_TURN == 0:
            await asyncio.sleep(0)
    topics = tuple(
        DescribeLogDirsTopic(name=name, partitions=tuple(sorted(of_topic, key=lambda one: one.partition_index)))
        for name, of_topic in described.items()
    )
    result = await asyncio.get_running_loop().run_in_executor(None, _folder, broker.config.data_dir, topics)
    return DescribeLogDirsResponse(results=(result,))


def _asked(broker: Broker, request: DescribeLogDirsRequest) -> Iterator[Partition]:
    if request.topics is None:
        yield from list(broker.partitions)
        return
    for asked in request.topics:
        topic = broker.image.topic(asked.topic)
        if topic is not None:
            found = (broker.partitions.find(topic.id, index) for index in asked.partitions)
            yield from (partition for partition in found if partition is not None)


def _folder(path: str, topics: tuple[DescribeLogDirsTopic, ...]) -> DescribeLogDirsResult:
    total, usable = _room(path)
    return DescribeLogDirsResult(log_dir=os.path.abspath(path), topics=topics, total_bytes=total, usable_bytes=usable)


def _room(folder: str) -> tuple[int, int]:
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return _UNKNOWN, _UNKNOWN
    return usage.total, usage.free
