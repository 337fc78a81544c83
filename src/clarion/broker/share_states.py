"""The share coordinators of this broker: `__share_group_state`, and how share-partitions read and write their state.

Each partition of that topic has a coordinator (`queues.state_coordinator`), driven by `coordinator_runtime`. Only
states whose coordinator is on this broker can be asked here; a KafkaError NOT_COORDINATOR says that another broker is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from clarion.broker.broker import RequestContext
from clarion.broker.coordinator_runtime import CoordinatorRuntime, InternalTopic
from clarion.broker.coordinator_shard import CoordinatorShard, Method
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import TopicId
from clarion.model.names import SHARE_STATE_TOPIC
from clarion.queues.state_batches import Delta
from clarion.queues.state_coordinator import (
    DeleteState,
    InitializeState,
    ReadState,
    ShareStateCoordinator,
    StateReply,
    WriteState,
)
from clarion.queues.state_records import UNINITIALIZED, ShareKey
from clarion.world import event_log

if TYPE_CHECKING:
    from clarion.broker.broker import Broker

log = event_log("broker")

STATE_TOPIC_SETTINGS: Final = {
    # Nothing is deleted for its age, and nothing compacted: an update counts only together with those before it.
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "segment.bytes": "104857600",
    "compression.type": "producer",
}
_PRUNED_RECORDS_MIN: Final = 10_000  # a few hundred kilobytes: less is not worth a change of the log's start
_OURSELVES: Final = RequestContext(0, "clarion", "127.0.0.1", 0)

Shard = CoordinatorShard[ShareStateCoordinator]


class ShareStates:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        topic = InternalTopic(SHARE_STATE_TOPIC, lambda: broker.config.share_state_partitions, STATE_TOPIC_SETTINGS)
        self.runtime = CoordinatorRuntime(broker, topic, self._new_coordinator, self)
        self._pruning: set[Shard] = set()

    def start(self) -> None:
        self.runtime.start()

    async def stop(self) -> None:
        await self.runtime.stop()

    def _new_coordinator(self) -> ShareStateCoordinator:
        return ShareStateCoordinator(self._broker.config.share_updates_per_snapshot)

    async def before_load(self) -> None:
        """They know nothing of topics."""

    def after_load(self, shard: Shard) -> None:
        self._prune_if_worth(shard)

    # What share-partitions ask

    async def initialize(self, key: ShareKey, state_epoch: int, start_offset: int = UNINITIALIZED) -> None:
        await self._ask(key, ShareStateCoordinator.initialize, InitializeState(key, state_epoch, start_offset))

    async def read(self, key: ShareKey, leader_epoch: int) -> StateReply:
        return await self._ask(key, ShareStateCoordinator.read, ReadState(key, leader_epoch))

    async def write(self, key: ShareKey, state_epoch: int, leader_epoch: int, delta: Delta) -> None:
        await self._ask(key, ShareStateCoordinator.write, WriteState(key, state_epoch, leader_epoch, delta))
        shard = self.runtime.find(str(key))
        if shard is not None:
            self._prune_if_worth(shard)

    async def delete(self, key: ShareKey) -> None:
        await self._ask(key, ShareStateCoordinator.delete, DeleteState(key))

    async def summary(self, key: ShareKey) -> StateReply:
        return await self._ask(key, ShareStateCoordinator.summary, ReadState(key, -1))

    def keys_of_topic(self, topic_id: TopicId) -> list[ShareKey]:
        """Those that this broker coordinates."""
        loaded = (shard for shard in self.runtime.shards if shard.is_loaded)
        return [key for shard in loaded for key in shard.coordinator.known_keys() if key.topic_id == topic_id]

    async def _ask(self, key: ShareKey, method: Method, request: object) -> StateReply:
        shard = await self.runtime.get(str(key))
        reply: StateReply = await shard.call(method, request, _OURSELVES)
        if reply.error_code is not ErrorCode.NONE:
            raise KafkaError(reply.error_code, reply.message)
        return reply

    # The log of a shard

    def _prune_if_worth(self, shard: Shard) -> None:
        redundant = shard.coordinator.redundant_before - shard.partition.start_offset
        if redundant >= _PRUNED_RECORDS_MIN and shard not in self._pruning:
            self._pruning.add(shard)
            self._broker.turns.start(self._prune(shard), lambda: self._pruning.discard(shard))

    async def _prune(self, shard: Shard) -> None:
        """What no snapshot needs any more. Only what is committed: else the snapshot itself might be lost."""
        partition = shard.partition
        before = min(shard.coordinator.redundant_before, partition.high_watermark.offset)
        try:
            if before > partition.start_offset and partition.is_leader:
                partition.raise_start(before)
                await self._broker.checkpoints.save_now()
                if not partition.is_gone and partition.failure is None:
                    partition.drop_below_start(is_start_saved=True)
        except OSError as error:  # the next write tries again
            log.warning("share_state_not_pruned", partition=partition.tp, reason=str(error))
        finally:
            self._pruning.discard(shard)
