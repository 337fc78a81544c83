"""ShareFetch v1-2: records for a member of a share group, which are its own until it acknowledges them (KIP-932).

v2 acquire mode (KIP-1206), renewals (KIP-1222). Acknowledgements in the same request happen first. Records come as
whole batches of the log, sent from its files as with Fetch; which of them are the member's, and how often each was
delivered, is told beside them. Both are durable before the reply, mostly by one write. Who finds nothing waits, in line
with the others (`share_leaders`), unless it has acknowledged something: that is answered at once. A client that says
more over another connection ends the wait.

Left out: there are no transactions yet, so both isolation levels read up to the watermark. The optimal size of a batch
of acquired records is not used: runs are as long as they are.
"""

from __future__ import annotations

import asyncio
from typing import Final

from clarion.broker.apis.share_pieces import (
    Member,
    acknowledge,
    check_count,
    each_partition,
    endpoints,
    give_back,
    leader_told,
    member_of,
)
from clarion.broker.broker import Broker, RequestContext
from clarion.broker.queue_rules import rules_of
from clarion.broker.share_leader import ShareFetched, ShareLeader, Waiter
from clarion.model.errors import ErrorCode, KafkaError
from clarion.queues.acquisition import AcquireMode
from clarion.queues.sessions import FINAL_EPOCH, OPENING_EPOCH, SharedPartition, ShareSession
from clarion.wire.left_out import LeftOut
from clarion.wire.messages.share_groups import (
    AcquiredRecords,
    ShareFetchPartition,
    ShareFetchPartitionData,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareFetchTopicResponse,
)

_LOADING_SECONDS: Final = 0.1  # until it is asked again whether a share-partition can be loaded by now
_MOMENT_SECONDS: Final = 0.001  # too short to wait for: a clock of floating point may never come to its end
_WAIT_MS_MAX: Final = 300_000  # nobody needs to hold a request longer


async def handle(broker: Broker, request: ShareFetchRequest, context: RequestContext) -> ShareFetchResponse:
    member = member_of(broker, request.group_id, request.member_id, context)
    broker.subscriptions.check_reader(member.group_id, is_queue=True, knows_filters=request.knows_filters)
    _check(request)
    asked = each_partition(request.topics)
    check_count(request.forgotten_topics_data)
    acknowledged = {one: what for one, what in asked.items() if what.acknowledgement_batches}
    session = broker.shares.sessions.for_fetch(
        member.group_id,
        member.member_id,
        request.share_session_epoch,
        int(asyncio.get_running_loop().time() * 1000),
        acknowledges=bool(acknowledged),
    )
    forgotten = ((one.topic_id, index) for one in request.forgotten_topics_data for index in one.partitions)
    broker.shares.sessions.change(session, asked, forgotten)
    if request.share_session_epoch == OPENING_EPOCH:
        known = [broker.shares.leaders.known(session.group_id, *one) for one in session.in_turn()]
        await broker.shares.renew(leader for leader in known if leader is not None)
    reply = _Reply(member)
    async for one, what in broker.turns.each(acknowledged.items()):
        await reply.acknowledge(one, what, may_renew=request.is_renew_ack)
    if request.share_session_epoch == FINAL_EPOCH:
        give_back(broker, session)
    elif request.max_records > 0 and not request.is_renew_ack:
        await _fetch(member, session, request, reply, context)
        if session.is_over:
            give_back(broker, session)  # what it took since the member has said good-bye
    await reply.wait_acknowledged()
    return reply.response()


def _check(request: ShareFetchRequest) -> None:
    if request.share_acquire_mode not in (AcquireMode.BATCH_OPTIMIZED, AcquireMode.RECORD_LIMIT):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"there is no acquire mode {request.share_acquire_mode}")


async def _fetch(
    member: Member, session: ShareSession, request: ShareFetchRequest, reply: _Reply, context: RequestContext
) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + min(max(request.max_wait, 0), _WAIT_MS_MAX) / 1000
    while True:
        leaders, is_loading = await _look(member, session, request, reply)
        left = deadline - loop.time()
        if reply.has_something or left < _MOMENT_SECONDS or not (leaders or is_loading):
            return
        waiter = Waiter(leaders)
        session.on_next = waiter.hurry
        try:
            await waiter.wait(min(left, _LOADING_SECONDS) if is_loading else left, context.has_left)
        finally:
            session.on_next = None
            waiter.leave()
        if waiter.is_hurried or context.has_left():
            return  # what it took now, nobody could have until the lock ends, or the client asks again


async def _look(
    member: Member, session: ShareSession, request: ShareFetchRequest, reply: _Reply
) -> tuple[list[ShareLeader], bool]:
    """Take what there is, partition by partition, until it is enough.

    The share-partitions that were looked at, and whether some are still loading: clients know no word for that.
    """
    broker, rules = member.broker, rules_of(member.broker, member.group_id)  # paused meanwhile, or no longer
    bytes_left = min(request.max_bytes, broker.config.limits.fetch_bytes_max)
    records_left, mode = request.max_records, AcquireMode(request.share_acquire_mode)
    leaders, is_loading = [], False
    async for one in broker.turns.each(session.in_turn()):
        if records_left <= 0 or bytes_left <= 0:
            break
        try:
            leader = await member.leader(*one)
            leaders.append(leader)
            found = await leader.fetch(member.member_id, rules, records_left, bytes_left, mode)
            if found is not None:
                await leader.wait_saved()
                session.served(one)
                records_left -= found.count
                bytes_left -= found.size_bytes
                leader.partition.bytes_out_total += found.size_bytes
                reply.found(one, found)
        except KafkaError as error:
            if error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
                is_loading = True
            else:
                reply.refused(one, error)
    return leaders, is_loading


class _Reply:
    def __init__(self, member: Member) -> None:
        self._member = member
        self._partitions: dict[SharedPartition, dict[str, object]] = {}
        self._acknowledged: list[tuple[SharedPartition, asyncio.Future[None]]] = []  # done when it is durable

    @property
    def has_something(self) -> bool:
        return bool(self._partitions)

    async def acknowledge(self, one: SharedPartition, what: ShareFetchPartition, *, may_renew: bool) -> None:
        self._partitions.setdefault(one, {})
        try:
            leader = await acknowledge(self._member, one, what, may_renew=may_renew)
        except KafkaError as error:
            self._not_acknowledged(one, error)
            return
        saved = leader.saved()
        if saved is not None:
            self._acknowledged.append((one, saved))

    async def wait_acknowledged(self) -> None:
        for one, saved in self._acknowledged:
            try:
                await asyncio.shield(saved)  # others wait for the same write
            except KafkaError as error:
                self._not_acknowledged(one, error)

    def _not_acknowledged(self, one: SharedPartition, error: KafkaError) -> None:
        told = self._partitions[one]
        told["acknowledge_error_code"] = error.code
        told["acknowledge_error_message"] = error.message or None
        told["current_leader"] = leader_told(self._member, error.code, one)

    def found(self, one: SharedPartition, fetched: ShareFetched) -> None:
        told = self._partitions.setdefault(one, {})
        told["records"] = LeftOut(fetched.size_bytes, fetched.slices)
        told["acquired_records"] = tuple(
            AcquiredRecords(first_offset=run.first, last_offset=run.last, delivery_count=run.deliveries)
            for run in fetched.acquired
        )

    def refused(self, one: SharedPartition, error: KafkaError) -> None:
        told = self._partitions.setdefault(one, {})
        told["error_code"] = error.code
        told["error_message"] = error.message or None
        told["current_leader"] = leader_told(self._member, error.code, one)

    def response(self) -> ShareFetchResponse:
        topics: dict[object, list[ShareFetchPartitionData]] = {}
        for (topic_id, index), told in self._partitions.items():
            data = ShareFetchPartitionData(partition_index=index, **{"records": b"", **told})  # type: ignore[arg-type]
            topics.setdefault(topic_id, []).append(data)
        leaders = [data.current_leader for partitions in topics.values() for data in partitions]
        return ShareFetchResponse(
            acquisition_lock_timeout=self._member.rules.limits.lock_duration_ms,
            responses=tuple(
                ShareFetchTopicResponse(topic_id=topic_id, partitions=tuple(partitions))  # type: ignore[arg-type]
                for topic_id, partitions in topics.items()
            ),
            node_endpoints=endpoints(self._member, leaders),
        )
