"""Fetches for the partitions that follow another broker: one connection and one conversation for each leader.

fetchers = ReplicaFetchers(identity, channel_to, now_ms)
fetchers.follow(partition, leader, epoch)     after `partition.follow(state)`; until `forget`, or `follow` again
fetchers.forget(partition)
await fetchers.close()
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from clarion.net.channel import LastingChannel
from clarion.replication.catch_up import CatchUp
from clarion.replication.conversation import Conversation, OnLeader, RateOf
from clarion.replication.membership import Identity
from clarion.replication.partition import Partition
from clarion.world.tasks import start_task


class ReplicaFetchers:
    def __init__(
        self,
        identity: Callable[[], Identity],
        channel_to: Callable[[int], LastingChannel],
        now_ms: Callable[[], int],
        catch_up: CatchUp,
        rate_of: RateOf = lambda _: None,
    ) -> None:
        """`channel_to` opens a channel that nobody else uses: replies come in order, and these wait long."""
        self._identity = identity
        self._channel_to = channel_to
        self._now_ms = now_ms
        self._rate_of = rate_of
        self.on_leader: OnLeader | None = None
        self._catch_up = catch_up
        self._conversations: dict[int, Conversation] = {}  # by leader
        self._leaders: dict[Partition, int] = {}
        self._ending: dict[asyncio.Task[None], None] = {}

    def follow(self, partition: Partition, leader_id: int, leader_epoch: int) -> None:
        follower = partition.followed
        if follower is None or follower.leader_epoch != leader_epoch:
            return  # it has heard of something newer
        if self._leaders.get(partition) != leader_id:
            self.forget(partition)
        self._leaders[partition] = leader_id
        conversation = self._conversations.get(leader_id)
        if conversation is None:
            conversation = Conversation(
                leader_id, self._channel_to(leader_id), self._identity, self._now_ms, self._catch_up, self._rate_of
            )
            conversation.on_leader = self.on_leader
            self._conversations[leader_id] = conversation
        conversation.add(partition, follower)

    def forget(self, partition: Partition) -> None:
        leader = self._leaders.pop(partition, None)
        if leader is not None:
            conversation = self._conversations[leader]
            conversation.remove(partition)
            if not conversation.is_needed:  # the next one asks anew where that broker is
                del self._conversations[leader]
                ending = start_task(conversation.close(), "end of a conversation with a leader")
                self._ending[ending] = None
                ending.add_done_callback(self._ending.pop)

    async def close(self) -> None:
        conversations = list(self._conversations.values())
        self._conversations.clear()
        self._leaders.clear()
        await asyncio.gather(*(one.close() for one in conversations), *self._ending)

    def lag_of(self, partition: Partition) -> int | None:
        """How many messages the leader had more when it was last heard; None of a partition that is not fetched."""
        leader = self._leaders.get(partition)
        return None if leader is None else self._conversations[leader].lag_of(partition)
