"""What stories about groups say to a broker: commit, committed, find the coordinator."""

import errno

from clarion.broker.config import Durability
from clarion.model.errors import ErrorCode
from clarion.wire.messages.metadata import FindCoordinatorRequest
from clarion.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
)
from tests.broker.harness import Client, Node

QUICK = {"durability": Durability.PAGE_CACHE}
NO_ROOM = OSError(errno.ENOSPC, "No space left on device")


async def find(client: Client | Node, group: str = "g"):
    return await client.ask(FindCoordinatorRequest(key=group, key_type=0), 2)


async def commit(client: Client | Node, offset: int, group: str = "g", topic: str = "t", partition: int = 0) -> int:
    asked = OffsetCommitRequestTopic(
        name=topic, partitions=(OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset),)
    )
    reply = await client.ask(OffsetCommitRequest(group_id=group, topics=(asked,)), 5)
    return reply.topics[0].partitions[0].error_code


async def committed(client: Client | Node, group: str = "g", topic: str = "t", version: int = 5, partition: int = 0):
    asked = OffsetFetchRequestTopic(name=topic, partition_indexes=(partition,))
    reply = await client.ask(OffsetFetchRequest(group_id=group, topics=(asked,)), version)
    if reply.error_code:
        return ErrorCode(reply.error_code)
    (one,) = reply.topics[0].partitions
    return ErrorCode(one.error_code) if one.error_code else one.committed_offset


def hold_loading(node: Node) -> None:
    """As if the groups were many."""
    for shard in node.server.groups.shards:
        shard._is_loaded = False
