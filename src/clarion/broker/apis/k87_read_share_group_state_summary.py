"""ReadShareGroupStateSummary v0-1: where a share group is in a partition (KIP-932). Only brokers ask, and fence nobody.

v1 how many records are done (KIP-1226).
"""

from __future__ import annotations

from clarion.broker.apis.share_state_pieces import ask_each
from clarion.broker.broker import Broker, RequestContext
from clarion.queues.state_coordinator import StateReply, SummarizeState
from clarion.queues.state_records import ShareKey
from clarion.wire.messages.share_state import (
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    ReadStatePartition,
    SummaryPartitionResult,
    SummaryResult,
)


async def handle(
    broker: Broker, request: ReadShareGroupStateSummaryRequest, context: RequestContext
) -> ReadShareGroupStateSummaryResponse:
    results = await ask_each(broker, request, _asked, SummaryResult, SummaryPartitionResult, _told)
    return ReadShareGroupStateSummaryResponse(results=results)


def _asked(key: ShareKey, _one: ReadStatePartition) -> SummarizeState:
    return SummarizeState(key)


def _told(reply: StateReply) -> dict[str, object]:
    return {
        "state_epoch": reply.state_epoch,
        "leader_epoch": reply.leader_epoch,
        "start_offset": reply.start_offset,
        "delivery_complete_count": reply.done_count,
        "version": reply.version,
        "subscription_ms": reply.subscription_ms,
    }
