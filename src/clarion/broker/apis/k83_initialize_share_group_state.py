"""InitializeShareGroupState v0: a share-partition begins, or begins anew, at an offset (KIP-932). Only brokers ask."""

from __future__ import annotations

from clarion.broker.apis.share_state_pieces import ask_each
from clarion.broker.broker import Broker, RequestContext
from clarion.queues.state_coordinator import InitializeState
from clarion.queues.state_records import ShareKey
from clarion.wire.messages.share_state import (
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    InitializeStatePartition,
    SharePartitionResult,
    ShareStateResult,
)


async def handle(
    broker: Broker, request: InitializeShareGroupStateRequest, context: RequestContext
) -> InitializeShareGroupStateResponse:
    results = await ask_each(broker, request, _asked, ShareStateResult, SharePartitionResult)
    return InitializeShareGroupStateResponse(results=results)


def _asked(key: ShareKey, one: InitializeStatePartition) -> InitializeState:
    return InitializeState(key, one.state_epoch, one.start_offset, one.subscription_ms)
