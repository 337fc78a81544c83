"""WriteShareGroupState v0-1: what has changed in a share-partition, from its leader (KIP-932). Only brokers ask.

v1 how many records are done (KIP-1226). A write says which version of the state it rests on (a field of our own).
"""

from __future__ import annotations

from clarion.broker.apis.share_state_pieces import ask_each
from clarion.broker.broker import Broker, RequestContext
from clarion.broker.share_state_calls import from_wire
from clarion.queues.state_batches import Delta
from clarion.queues.state_coordinator import WriteState
from clarion.queues.state_records import ShareKey
from clarion.wire.messages.share_state import (
    SharePartitionResult,
    ShareStateResult,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
    WriteStatePartition,
)


async def handle(
    broker: Broker, request: WriteShareGroupStateRequest, context: RequestContext
) -> WriteShareGroupStateResponse:
    results = await ask_each(broker, request, _asked, ShareStateResult, SharePartitionResult)
    return WriteShareGroupStateResponse(results=results)


def _asked(key: ShareKey, one: WriteStatePartition) -> WriteState:
    delta = Delta(one.start_offset, one.delivery_complete_count, from_wire(one.state_batches))
    return WriteState(key, one.state_epoch, one.leader_epoch, one.version, delta)
