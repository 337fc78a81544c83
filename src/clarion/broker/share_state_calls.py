"""How a broker asks the share coordinators of other brokers: InitializeShareGroupState to ReadShareGroupStateSummary.

One share-partition in each request, and as many under way as there are. A request carries the secret of the broker's
session, as a replica's fetch does. All of them may come twice, or late: beginning again what has begun changes nothing,
and a write or a deletion says which version of the state it is about.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from clarion.cluster import BrokerRegistration
from clarion.model.errors import ErrorCode, KafkaError
from clarion.net.channel import ChannelLostError, ChannelUnusableError, LastingChannel
from clarion.queues.state_batches import StateBatch
from clarion.queues.state_coordinator import (
    ANY_VERSION,
    DeleteState,
    InitializeState,
    ReadState,
    StateReply,
    StateRequest,
    SummarizeState,
    WriteState,
)
from clarion.queues.state_records import known_state
from clarion.wire import apis
from clarion.wire.messages.share_state import (
    DeleteShareGroupStateRequest,
    DeleteStatePartition,
    DeleteStateTopic,
    InitializeShareGroupStateRequest,
    InitializeStatePartition,
    InitializeStateTopic,
    PersistedBatch,
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    ReadStatePartition,
    ReadStateTopic,
    WriteShareGroupStateRequest,
    WriteStatePartition,
    WriteStateTopic,
)

if TYPE_CHECKING:
    from clarion.broker.broker import Broker

_CONNECT_SECONDS: Final = 3.0
_ANSWER_SECONDS: Final = 6.0  # a coordinator waits for 5 s for a commit; who is silent for longer is gone
_IN_FLIGHT_MAX: Final = 256  # of one broker to another: each is a share-partition that has something to write
_BATCH_FIELDS: Final = tuple(one.name for one in fields(PersistedBatch))  # as those of `StateBatch`, in their order
_batch_values: Final = attrgetter(*_BATCH_FIELDS)


class ShareStateCalls:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._channels: dict[
            int, tuple[int, LastingChannel]
        ] = {}  # by broker: of which of its lives, and the way to it

    async def ask(self, coordinator: BrokerRegistration, request: StateRequest, seconds: float) -> StateReply:
        """COORDINATOR_NOT_AVAILABLE if no answer has come; whether it was asked is not known then."""
        api_key, message = self._message(request)
        channel = self._channel(coordinator)
        try:
            async with asyncio.timeout(max(seconds, 0)):
                answer = await channel.ask(api_key, message)
        except (ChannelLostError, ChannelUnusableError, TimeoutError) as error:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error) or "no answer in time") from error
        return _reply(answer)

    def close(self) -> None:
        for _, channel in self._channels.values():
            channel.close()

    def _channel(self, coordinator: BrokerRegistration) -> LastingChannel:
        """A broker that was started anew may have another address."""
        life, channel = self._channels.get(coordinator.id, (None, None))
        if channel is not None and life == coordinator.epoch:
            return channel
        if channel is not None:
            channel.close()
        assert self._broker.node is not None
        fresh = self._broker.node.channel_to(
            self._broker,
            coordinator.id,
            connect_seconds=_CONNECT_SECONDS,
            request_seconds=_ANSWER_SECONDS,
            in_flight_max=_IN_FLIGHT_MAX,
        )
        self._channels[coordinator.id] = (coordinator.epoch, fresh)
        return fresh

    def _message(self, request: StateRequest) -> tuple[int, Any]:
        key = request.key
        match request:
            case InitializeState():
                beginning = InitializeStatePartition(
                    partition=key.partition,
                    state_epoch=request.state_epoch,
                    start_offset=request.start_offset,
                    subscription_ms=request.subscription_ms,
                )
                topic: Any = InitializeStateTopic(topic_id=key.topic_id, partitions=(beginning,))
                return apis.INITIALIZE_SHARE_GROUP_STATE, self._signed(
                    InitializeShareGroupStateRequest, key.group_id, topic
                )
            case ReadState():
                read = ReadStatePartition(partition=key.partition, leader_epoch=request.leader_epoch)
                topic = ReadStateTopic(topic_id=key.topic_id, partitions=(read,))
                return apis.READ_SHARE_GROUP_STATE, self._signed(ReadShareGroupStateRequest, key.group_id, topic)
            case SummarizeState():
                topic = ReadStateTopic(topic_id=key.topic_id, partitions=(ReadStatePartition(partition=key.partition),))
                asked = self._signed(ReadShareGroupStateSummaryRequest, key.group_id, topic)
                return apis.READ_SHARE_GROUP_STATE_SUMMARY, asked
            case WriteState():
                topic = WriteStateTopic(topic_id=key.topic_id, partitions=(_written(request),))
                return apis.WRITE_SHARE_GROUP_STATE, self._signed(WriteShareGroupStateRequest, key.group_id, topic)
            case DeleteState():
                gone = DeleteStatePartition(partition=key.partition, version=request.version)
                topic = DeleteStateTopic(topic_id=key.topic_id, partitions=(gone,))
                return apis.DELETE_SHARE_GROUP_STATE, self._signed(DeleteShareGroupStateRequest, key.group_id, topic)

    def _signed(self, message: Any, group_id: str, topic: Any) -> Any:
        assert self._broker.node is not None
        sender = self._broker.node.identity()
        return message(
            group_id=group_id,
            topics=(topic,),
            broker_id=sender.node_id,
            broker_epoch=sender.broker_epoch,
            secret=sender.secret.decode(),
        )


def to_wire(batches: Sequence[StateBatch]) -> tuple[PersistedBatch, ...]:
    return tuple(PersistedBatch(**dict[str, Any](zip(_BATCH_FIELDS, one, strict=True))) for one in batches)


def from_wire(batches: Sequence[PersistedBatch]) -> tuple[StateBatch, ...]:
    """In states that this version knows, as they would be read from the log: the other broker may be a later one."""
    read = (StateBatch(*_batch_values(one)) for one in batches)
    return tuple(one if known_state(one.state) == one.state else _in_known_state(one) for one in read)


def _in_known_state(batch: StateBatch) -> StateBatch:
    return batch._replace(state=known_state(batch.state))


def _written(request: WriteState) -> WriteStatePartition:
    return WriteStatePartition(
        partition=request.key.partition,
        state_epoch=request.state_epoch,
        leader_epoch=request.leader_epoch,
        start_offset=request.delta.start_offset,
        delivery_complete_count=request.delta.done_count,
        state_batches=to_wire(request.delta.batches),
        version=request.version,
    )


def _reply(answer: Any) -> StateReply:
    """What was said of the one share-partition that was asked about."""
    results = [one for topic in answer.results for one in topic.partitions]
    if len(results) != 1:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{len(results)} answers to one question")
    (said,) = results
    if said.error_code:
        raise KafkaError(ErrorCode(said.error_code), said.error_message or "")
    version = getattr(said, "version", ANY_VERSION)
    if version == ANY_VERSION:
        return StateReply()
    return StateReply(
        is_known=True,
        state_epoch=said.state_epoch,
        leader_epoch=getattr(said, "leader_epoch", 0),
        start_offset=said.start_offset,
        done_count=getattr(said, "delivery_complete_count", -1),
        batches=from_wire(getattr(said, "state_batches", ())),
        version=version,
        subscription_ms=getattr(said, "subscription_ms", 0),
    )
