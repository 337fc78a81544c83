"""The share coordinators of this broker, and how share-partitions read and write their state, wherever that is.

Each partition of `__share_group_state` has a coordinator (`queues.state_coordinator`), driven by `coordinator_runtime`.
Where it is on this broker it is asked in process, else by the APIs 83 to 87 (`share_state_calls`). While it moves, is
loaded or cannot be reached it is asked again, for a while: every request may be sent twice (see there). Whoever asks
gets a KafkaError in the end: COORDINATOR_NOT_AVAILABLE says no more than that nobody knows whether it has happened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from clarion.broker.broker import RequestContext
from clarion.broker.coordinator_runtime import CoordinatorRuntime, InternalTopic
from clarion.broker.coordinator_shard import CoordinatorShard, Method
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import TopicId
from clarion.model.names import SHARE_STATE_TOPIC
from clarion.queues.state_batches import Delta
from clarion.queues.state_coordinator import (
    ANY_VERSION,
    DeleteState,
    InitializeState,
    ReadState,
    ShareStateCoordinator,
    StateReply,
    StateRequest,
    SummarizeState,
    WriteState,
)
from clarion.queues.state_records import UNINITIALIZED, ShareKey
from clarion.world import event_log

if TYPE_CHECKING:
    from clarion.broker.broker import Broker
    from clarion.broker.share_state_calls import ShareStateCalls
    from clarion.replication import Partition

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
_PATIENCE_SECONDS: Final = 15.0  # longer than another broker takes to take over, shorter than clients wait
_READ_PATIENCE_SECONDS: Final = 1.0  # who loads a share-partition keeps a fetch waiting, and asks again by itself
_AGAIN_SECONDS: Final = 0.02
_AGAIN_SECONDS_MAX: Final = 0.5
_MAY_PASS: Final = frozenset({
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,  # the other broker has yet to hear that this one has begun another life
})  # fmt: skip
_METHODS: Final[Mapping[type[StateRequest], Method]] = {
    InitializeState: ShareStateCoordinator.initialize,
    ReadState: ShareStateCoordinator.read,
    SummarizeState: ShareStateCoordinator.summary,
    WriteState: ShareStateCoordinator.write,
    DeleteState: ShareStateCoordinator.delete,
}

Shard = CoordinatorShard[ShareStateCoordinator]


class ShareStates:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        topic = InternalTopic(SHARE_STATE_TOPIC, lambda: broker.config.share_state_partitions, STATE_TOPIC_SETTINGS)
        self.runtime = CoordinatorRuntime(broker, topic, self._new_coordinator, self)
        self._calls: ShareStateCalls | None = None  # to other brokers, when the first is to be asked
        self._pruning: set[Shard] = set()

    def start(self) -> None:
        self.runtime.start()

    async def stop(self) -> None:
        if self._calls is not None:
            self._calls.close()
        await self.runtime.stop()

    def _new_coordinator(self) -> ShareStateCoordinator:
        return ShareStateCoordinator(self._broker.config.share_updates_per_snapshot)

    async def before_load(self) -> None:
        """They know nothing of topics."""

    def after_load(self, shard: Shard) -> None:
        """Topics may have been deleted while nobody coordinated what is known of them."""
        topics = self._broker.image.topics_by_id
        self.forget_later([key for key in shard.coordinator.known_keys() if key.topic_id not in topics])
        self._prune_if_worth(shard)

    # What share-partitions ask

    async def initialize(
        self, key: ShareKey, state_epoch: int, start_offset: int = UNINITIALIZED, *, subscription_ms: int = 0
    ) -> None:
        """`subscription_ms`: of the one for which it begins (`queue_rules.identity_of`), as it was found before
        anything was waited for: what begins late, behind its deletion, is then not taken for the next one's."""
        await self._ask(InitializeState(key, state_epoch, start_offset, subscription_ms), _PATIENCE_SECONDS)

    async def read(self, key: ShareKey, leader_epoch: int) -> StateReply:
        return await self._ask(ReadState(key, leader_epoch), _READ_PATIENCE_SECONDS)

    async def write(self, key: ShareKey, state_epoch: int, leader_epoch: int, version: int, delta: Delta) -> int:
        """The version that the state has now. Refused (FENCED_…) if it is no longer the one that was read or written;
        also if it was this very write, whose reply was lost: whoever reads the state anew finds out."""
        await self._ask(WriteState(key, state_epoch, leader_epoch, version, delta), _PATIENCE_SECONDS)
        return version + 1

    async def delete(self, key: ShareKey, version: int = ANY_VERSION) -> None:
        await self._ask(DeleteState(key, version), _PATIENCE_SECONDS)

    async def summary(self, key: ShareKey, patience_seconds: float = _PATIENCE_SECONDS) -> StateReply:
        return await self._ask(SummarizeState(key), patience_seconds)

    async def _ask(self, request: StateRequest, patience_seconds: float) -> StateReply:
        loop = asyncio.get_running_loop()
        deadline, wait = loop.time() + patience_seconds, _AGAIN_SECONDS
        while True:
            try:
                return await self._ask_once(request, deadline - loop.time())
            except KafkaError as error:
                if error.code not in _MAY_PASS or loop.time() + wait >= deadline:
                    raise
            await asyncio.sleep(wait)
            wait = min(2 * wait, _AGAIN_SECONDS_MAX)

    async def _ask_once(self, request: StateRequest, seconds: float) -> StateReply:
        await self._ensure_topic()
        if self.runtime.find(str(request.key)) is not None:
            return await self.ask_here(request)
        coordinator = self.runtime.coordinator_of(str(request.key))
        if coordinator is None or coordinator.id == self._broker.node_id:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"nobody coordinates {request.key} now")
        if self._calls is None:
            from clarion.broker.share_state_calls import ShareStateCalls  # most brokers are alone, and start sooner so

            self._calls = ShareStateCalls(self._broker)
        return await self._calls.ask(coordinator, request, seconds)

    async def _ensure_topic(self) -> None:
        try:
            await self.runtime.ensure_topic()
        except KafkaError as error:  # another broker may have been faster, or there are too few of them
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message or error.code.name) from error

    async def ask_here(self, request: StateRequest) -> StateReply:
        """NOT_COORDINATOR if another broker is to be asked."""
        shard = self.runtime.find(str(request.key))
        if shard is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"another broker coordinates {request.key}")
        reply: StateReply = await shard.call(_METHODS[type(request)], request, _OURSELVES)
        if reply.error_code is not ErrorCode.NONE:
            raise KafkaError(reply.error_code, reply.message)
        if isinstance(request, WriteState):
            self._prune_if_worth(shard)
        return reply

    # Topics

    def keys_of_topic(self, topic_id: TopicId) -> list[ShareKey]:
        """Those that this broker coordinates."""
        loaded = (shard for shard in self.runtime.shards if shard.is_loaded)
        return [key for shard in loaded for key in shard.coordinator.known_keys() if key.topic_id == topic_id]

    def forget_later(self, keys: list[ShareKey]) -> None:
        """Of topics that are gone."""
        if keys:
            self._broker.turns.start(self._forget(keys), lambda: None)

    async def _forget(self, keys: list[ShareKey]) -> None:
        async for key in self._broker.turns.each(keys):
            try:
                await self.delete(key)
            except KafkaError as error:  # it stays until it is loaded again, and is nobody's: ids are never used again
                log.warning("share_state_stays", share=str(key), reason=error.message or error.code.name)

    # The log of a shard

    def _prune_if_worth(self, shard: Shard) -> None:
        redundant = shard.coordinator.redundant_before - shard.partition.start_offset
        if redundant >= _PRUNED_RECORDS_MIN and shard not in self._pruning:
            self._pruning.add(shard)
            self._broker.turns.start(self._prune(shard), lambda: self._pruning.discard(shard))

    async def _prune(self, shard: Shard) -> None:
        """What no snapshot needs any more, once all of them are committed: who loses the newest one, of whichever
        share-partition, goes back to the one before it."""
        partition, before = shard.partition, shard.coordinator.redundant_before
        try:
            are_committed = await _is_committed(partition, partition.next_offset - 1)
            if are_committed and before > partition.start_offset and partition.is_leader:
                partition.raise_start(before)
                await self._broker.checkpoints.save_now()
                if not partition.is_gone and partition.failure is None:
                    partition.drop_below_start(is_start_saved=True)
        except OSError as error:  # the next write tries again
            log.warning("share_state_not_pruned", partition=partition.tp, reason=str(error))
        finally:
            self._pruning.discard(shard)


async def _is_committed(partition: Partition, offset: int) -> bool:
    """Returns when it is, or never will be."""
    told: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

    def tell(code: ErrorCode) -> None:
        if not told.done():  # whoever waited may have been cancelled
            told.set_result(code)

    return partition.when_committed(offset, tell) or await told is ErrorCode.NONE
