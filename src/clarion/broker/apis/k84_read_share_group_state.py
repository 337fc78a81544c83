"""ReadShareGroupState v0: a leader takes over what is known of a share-partition (KIP-932). Only brokers ask."""

from __future__ import annotations

from clarion.broker.apis.share_state_pieces import ask_each
from clarion.broker.broker import Broker, RequestContext
from clarion.broker.share_state_calls import to_wire
from clarion.queues.state_coordinator import ReadState, StateReply
from clarion.queues.state_records import ShareKey
from clarion.wire.messages.share_state import (
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadStatePartition,
    ReadStatePartitionResult,
    ReadStateResult,
)


async def handle(
    broker: Broker, request: ReadShareGroupStateRequest, context: RequestContext
) -> ReadShareGroupStateResponse:
    results = await ask_each(broker, request, _asked, ReadStateResult, ReadStatePartitionResult, _told)
    return ReadShareGroupStateResponse(results=results)


def _asked(key: ShareKey, one: ReadStatePartition) -> ReadState:
    return ReadState(key, one.leader_epoch)


def _told(reply: StateReply) -> dict[str, object]:
    return {
        "state_epoch": reply.state_epoch,
        "start_offset": reply.start_offset,
        "state_batches": to_wire(reply.batches),
        "version": reply.version,
        "subscription_ms": reply.subscription_ms,
    }
