"""Reading from followers (KIP-392): whom a leader sends consumers to, and whom a follower serves.

A consumer that says its rack (`client.rack`) is sent to a replica in the same rack, where `replica.selector.class` says
so and there is one in sync. It reads there up to the watermark that the follower knows, and is sent back when the
follower is no longer in sync.

The watermark that a consumer sees does not fall when it is sent away: the follower has to know of as much as this
connection has been told, and of all that the consumer has read. Who comes back has had a reason, and is served for a
minute: librdkafka takes no second referral within one, and would wait five seconds after each.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from clarion.broker.apis.fetch_replies import Found
from clarion.broker.fetch_sessions import SessionPartition
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import TopicId
from clarion.replication import Partition
from clarion.wire.fetch import FetchRequest
from clarion.wire.fetch_response import PartitionFetched

if TYPE_CHECKING:
    from clarion.broker.broker import Broker
    from clarion.broker.session import Session

FIRST_VERSION_WITH_RACKS: Final = 11
REFERRED_AGAIN_SECONDS: Final = 65.0

Key = tuple[TopicId, int]


class RackReader:
    """Who reads over one connection, and says in which rack it is."""

    def __init__(self, broker: Broker, rack: str) -> None:
        self._broker = broker
        self.rack = rack
        self._told: dict[Key, int] = {}  # watermarks
        self._referred: dict[Key, float] = {}  # when it was sent to another broker

    @staticmethod
    def of(broker: Broker, client: Session, request: FetchRequest) -> RackReader | None:
        """None for those who read from leaders alone: nearly everybody."""
        if not request.rack_id or request.replica_id >= 0 or broker.node is None or not broker.config.reads_by_rack:
            return None
        if client.rack_reader is None or client.rack_reader.rack != request.rack_id:
            client.rack_reader = RackReader(broker, request.rack_id)
        return client.rack_reader

    def check_serves(self, partition: Partition, offset: int) -> None:
        """A leader serves, and so does a follower in sync. Until when it is, only somebody with a lease knows."""
        if partition.is_leader or not self._is_follower_in_sync(partition):
            partition.check_leads()
        elif partition.high_watermark.offset < offset <= partition.next_offset:
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, f"{partition.tp} may have it, but does not know yet")

    def referral(self, asked: SessionPartition, partition: Partition) -> PartitionFetched | None:
        """The answer of a leader that sends the consumer to another broker; None: it serves the consumer itself."""
        key, now = (partition.topic_id, asked.index), asyncio.get_running_loop().time()
        is_back = now - self._referred.get(key, float("-inf")) < REFERRED_AGAIN_SECONDS
        if not partition.is_leader or is_back or asked.next_offset < partition.start_offset:
            return None
        chosen = self._nearest(partition, max(asked.next_offset, self._told.get(key, 0)), asked.next_offset, now)
        if chosen is None:
            return None
        broker_id, watermark = chosen
        self._told[key], self._referred[key] = watermark, now
        return PartitionFetched(
            asked.index, 0, watermark, watermark, partition.start_offset, 0, preferred_replica=broker_id
        )

    def note(self, found: list[Found]) -> None:
        """What it is told."""
        for one in found:
            partition = one.asked.partition
            if not one.fetched.error_code and partition is not None:
                self._told[partition.topic_id, one.asked.index] = one.fetched.high_watermark

    def _nearest(self, partition: Partition, watermark: int, offset: int, now: float) -> tuple[int, int] | None:
        """The replica in this rack that is furthest, with the watermark that it knows; None if the leader is as near.

        Only one that knows of this watermark, has the offset, and is in sync: another one may stay behind for ever.
        """
        broker, state = self._broker, partition.state
        if state is None or self._is_here(broker.node_id):
            return None
        best: tuple[int, int, int] | None = None
        for one in state.in_sync:
            followed = broker.sessions.follower(one, partition.topic_id, partition.tp.partition, now)
            if followed is None or not self._is_here(one) or followed.start_offset > offset:
                continue
            heard = broker.sessions.heard_watermark(one, followed)
            if heard >= watermark:
                best = max(best or (-1, 0, 0), (followed.next_offset, one, heard))
        return None if best is None else best[1:]

    def _is_here(self, broker_id: int) -> bool:
        known = self._broker.image.brokers.get(broker_id)
        return known is not None and known.rack == self.rack

    def _is_follower_in_sync(self, partition: Partition) -> bool:
        state, membership = partition.state, partition.membership
        if partition.followed is None or state is None or membership is None:
            return False
        return self._broker.node_id in state.in_sync and membership.lease_is_valid()
