"""DeleteShareGroupState v0: nobody needs what is known of a share-partition any more (KIP-932). Only brokers ask."""

from __future__ import annotations

from clarion.broker.apis.share_state_pieces import ask_each
from clarion.broker.broker import Broker, RequestContext
from clarion.queues.state_coordinator import DeleteState
from clarion.queues.state_records import ShareKey
from clarion.wire.messages.share_state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
    DeleteStatePartition,
    SharePartitionResult,
    ShareStateResult,
)


async def handle(
    broker: Broker, request: DeleteShareGroupStateRequest, context: RequestContext
) -> DeleteShareGroupStateResponse:
    results = await ask_each(broker, request, _asked, ShareStateResult, SharePartitionResult)
    return DeleteShareGroupStateResponse(results=results)


def _asked(key: ShareKey, one: DeleteStatePartition) -> DeleteState:
    return DeleteState(key, one.version)
