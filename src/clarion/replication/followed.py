"""One partition of a conversation, and what its leader was told of it last."""

from __future__ import annotations

from clarion.replication.catch_up import Filling
from clarion.replication.follower import Follower
from clarion.replication.partition import Partition


class Followed:
    __slots__ = ("filling", "follower", "leader_watermark", "partition", "told_start", "valid_from")

    def __init__(self, partition: Partition, follower: Follower, valid_from: int, filling: Filling | None) -> None:
        self.partition = partition
        self.follower = follower  # another one means that another term has begun
        self.valid_from = valid_from  # the first request that speaks of the log as it is: replies to others are stale
        self.leader_watermark = self.told_start = -1  # the second: where the leader knows this log to begin
        self.filling = filling  # while it may lack much, and is not in sync
