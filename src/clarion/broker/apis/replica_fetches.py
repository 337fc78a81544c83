"""A follower's fetch, on its leader: who may send one, what it tells the leader, and what is read for it.

Only brokers fetch as replicas: the request carries the secret of the broker's session, and its epoch (CVE-2018-1288).
A follower reads to the log's end, committed or not. Before anything is read, and before the follower counts for the
watermark, epochs and logs are compared: who follows another term, or has a log that parts from this one, is told so.
A replica that is not in sync, and that its topic lists, gets no more bytes per second than an operator allows
(`leader.replication.throttled.rate`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from clarion.broker.apis.fetch_replies import Found, fetched_from
from clarion.broker.fetch_sessions import FetchSession, SessionPartition
from clarion.broker.messages import check_offset
from clarion.broker.resolver import check_leader_epoch
from clarion.log.batch_headers import Reader
from clarion.log.slices import FileSlice
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.setting_kinds import LONG_MAX
from clarion.replication import Partition
from clarion.replication.catch_up import is_listed
from clarion.wire.fetch import FetchRequest
from clarion.wire.fetch_response import PartitionFetched
from clarion.world import event_log

if TYPE_CHECKING:
    from clarion.broker.broker import Broker

log = event_log("broker")


def check_replica(broker: Broker, request: FetchRequest) -> None:
    is_broker, secret = broker.is_broker, request.secret.decode("ascii", "replace")
    if is_broker is None or not is_broker(request.replica_id, request.broker_epoch, secret):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "only the brokers of a cluster fetch as replicas")


def read_for_replica(
    broker: Broker, session: FetchSession, asked: SessionPartition, budget: int, reader: Reader, *, is_first: bool
) -> Found:
    partition = broker.partitions.find(asked.topic_id, asked.index)
    try:
        if partition is None:
            raise _unknown(broker, asked)
        session.watch(asked, partition)
        if asked.leader_epoch < 0:
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, "a follower says in which term it follows")
        check_leader_epoch(asked.leader_epoch, partition)
        partition.check_leads()
        diverging = partition.diverging_epoch(asked.last_fetched_epoch, asked.next_offset)
        if diverging is not None:
            return Found(asked, fetched_from(asked.index, partition, 0, diverging), [])
        check_offset(partition, asked.next_offset)
        if asked.is_fresh:
            partition.check_what_was_sent(session.replica_id, asked.next_offset, broker.clock.now_ms())
        _note(broker, session, asked, partition)
        is_held_up = _is_held_up(broker, session, partition)
        if is_held_up and _has_to_wait(broker, session, partition):
            return Found(asked, fetched_from(asked.index, partition, 0), [])
        slices = _slices(asked, partition, budget, reader, is_first=is_first)
        if is_held_up:
            size = sum([one.length for one in slices])
            rate = broker.config.leader_throttled_rate
            broker.replica_throttle.at(rate).spend(_now(), size / rate)
    except KafkaError as error:
        # Where its log begins is all that a follower needs to know that is out of range.
        start = partition.start_offset if partition is not None else -1
        return Found(asked, PartitionFetched(asked.index, int(error.code), -1, -1, start, 0), [])
    return Found(asked, fetched_from(asked.index, partition, sum([one.length for one in slices])), slices)


def _note(broker: Broker, session: FetchSession, asked: SessionPartition, partition: Partition) -> None:
    """Once for each time that it says where it is."""
    if asked.is_fresh:
        asked.is_fresh = False
        partition.on_replica_fetch(
            session.replica_id,
            asked.next_offset,
            broker.clock.now_ms(),
            flushed_offset=asked.flushed_offset,
            start_offset=asked.start_offset,
            life=session.replica_life,
        )


def _is_held_up(broker: Broker, session: FetchSession, partition: Partition) -> bool:
    state = partition.state
    if broker.config.leader_throttled_rate == LONG_MAX or state is None or session.replica_id in state.in_sync:
        return False
    listed = partition.settings.leader_replication_throttled_replicas
    return is_listed(listed, partition.tp.partition, broker.node_id)


def _has_to_wait(broker: Broker, session: FetchSession, partition: Partition) -> bool:
    """If so it is looked at again when there is room for its bytes."""
    wait = broker.replica_throttle.at(broker.config.leader_throttled_rate).wait_seconds(_now())
    if wait > 0:
        asyncio.get_running_loop().call_later(wait, session.on_appended, partition)
    return wait > 0


def _now() -> float:
    return asyncio.get_running_loop().time()


def _slices(
    asked: SessionPartition, partition: Partition, budget: int, reader: Reader, *, is_first: bool
) -> list[FileSlice]:
    if asked.next_offset >= partition.next_offset or (budget <= 0 and not is_first):
        return []
    try:
        size = min(asked.max_bytes, budget)
        return partition.read_as_replica(asked.next_offset, size, at_least_one_batch=is_first, reader=reader)
    except OSError as error:
        log.error("read_failed", partition=partition.tp, reason=str(error))
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR) from error


def _unknown(broker: Broker, asked: SessionPartition) -> KafkaError:
    topic = broker.image.topic_by_id(asked.topic_id)
    if topic is None or not 0 <= asked.index < topic.partition_count:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with the id {asked.topic_id}")
    return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{topic.name}-{asked.index} is led by another broker")
