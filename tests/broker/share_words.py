"""A share consumer in the tests' own words: it joins, fetches, acknowledges, and keeps its session's epoch."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from clarion.broker.config import Durability
from clarion.model.errors import ErrorCode
from clarion.wire.batch import read_header
from clarion.wire.messages.share_groups import (
    AcknowledgementBatch,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    ShareAcknowledgeRequest,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareFetchTopic,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from clarion.wire.records import decode_batch, encode_batch
from tests.broker.harness import Client, Node

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
QUICK = {"durability": Durability.PAGE_CACHE}

Acks = Sequence[tuple[int, int, int] | AcknowledgementBatch]  # first, last, type


class ShareConsumer:
    def __init__(
        self, client: Client | Node, node: Node, member: str = "m", group: str = "g", topic: str = "t"
    ) -> None:
        self.client = client
        self.node = node
        self.member = member
        self.group = group
        self.topic = topic
        self.member_epoch = 0
        self.session_epoch = 0
        self.partitions: tuple[int, ...] = ()

    @property
    def topic_id(self):
        return self.node.broker.image.topics[self.topic].id

    async def beat(self, epoch: int | None = None) -> ShareGroupHeartbeatResponse:
        asked = self.member_epoch if epoch is None else epoch
        reply = await self.client.ask(
            ShareGroupHeartbeatRequest(
                group_id=self.group,
                member_id=self.member,
                member_epoch=asked,
                subscribed_topic_names=(self.topic,) if asked == 0 else None,
            ),
            1,
        )
        if not reply.error_code:
            self.member_epoch = reply.member_epoch
            if reply.assignment is not None:
                own = (one for one in reply.assignment.topic_partitions if one.topic_id == self.topic_id)
                self.partitions = tuple(at for one in own for at in one.partitions)
        return reply

    async def join(self) -> ShareConsumer:
        reply = await self.beat(0)
        while reply.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            await asyncio.sleep(0.01)
            reply = await self.beat(0)
        assert reply.error_code == ErrorCode.NONE, reply
        return self

    async def ask(self, acks: Acks = (), *, index: int = 0, epoch: int | None = None, **how) -> ShareFetchResponse:
        """ShareFetch; a new session is told all partitions, a later one only what is acknowledged."""
        asked = self.session_epoch if epoch is None else epoch
        wanted: Iterable[int] = self.partitions if asked == 0 else (index,) if acks else ()
        told = {"max_wait": 0, "max_bytes": 1 << 20, "max_records": 500, "version": 2, **how}
        version = told.pop("version")
        reply = await self.client.ask(
            ShareFetchRequest(
                group_id=self.group,
                member_id=self.member,
                share_session_epoch=asked,
                topics=_topics(self.topic_id, {at: acks if at == index else () for at in wanted}),
                **told,
            ),
            version,
        )
        if not reply.error_code and asked >= 0:
            self.session_epoch = asked + 1
        return reply

    async def fetch(self, acks: Acks = (), **how) -> dict[int, int]:
        """Offset → delivery count, of one partition."""
        reply = await self.ask(acks, **how)
        assert reply.error_code == ErrorCode.NONE, reply
        return {
            offset: run.delivery_count
            for one in _partitions(reply)
            for run in one.acquired_records
            for offset in range(run.first_offset, run.last_offset + 1)
        }

    async def acknowledge(
        self, *acks: tuple[int, int, int] | AcknowledgementBatch, index: int = 0, epoch: int | None = None, **how
    ) -> ErrorCode:
        asked = self.session_epoch if epoch is None else epoch
        version = how.pop("version", 2)
        reply = await self.client.ask(
            ShareAcknowledgeRequest(
                group_id=self.group,
                member_id=self.member,
                share_session_epoch=asked,
                topics=_topics(self.topic_id, {index: acks}) if acks else (),
                **how,
            ),
            version,
        )
        if reply.error_code:
            return ErrorCode(reply.error_code)
        self.session_epoch = asked + 1
        codes = [one.error_code for topic in reply.responses for one in topic.partitions]
        return ErrorCode(codes[0]) if codes else ErrorCode.NONE


async def earliest(node: Node, group: str = "g", **more: object) -> None:
    node.broker.groups.configure_group(group, share_auto_offset_reset="earliest", **more)


async def produce(node: Node, *contents: bytes, topic: str = "t", partition: int = 0) -> None:
    batch = encode_batch([(None, value, (), 1_000) for value in contents])
    await node.client.produce({(topic, partition): bytes(batch)})


async def joined(node: Node, member: str = "m", client=None) -> ShareConsumer:
    return await ShareConsumer(client or node, node, member).join()


async def offsets(node: Node, group: str = "g", version: int = 1):
    asked = DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None)
    (told,) = (await node.ask(DescribeShareGroupOffsetsRequest(groups=(asked,)), version)).groups
    assert told.error_code == ErrorCode.NONE, told
    return {(topic.topic_name, one.partition_index): one for topic in told.topics for one in topic.partitions}


def acknowledge_codes(reply: ShareFetchResponse) -> list[ErrorCode]:
    return [ErrorCode(one.acknowledge_error_code) for one in _partitions(reply)]


def fetch_codes(reply: ShareFetchResponse) -> list[ErrorCode]:
    return [ErrorCode(one.error_code) for one in _partitions(reply)]


def values(reply: ShareFetchResponse) -> list[bytes]:
    """Of the records that were acquired."""
    found = []
    for one in _partitions(reply):
        mine = {at for run in one.acquired_records for at in range(run.first_offset, run.last_offset + 1)}
        records, at = one.records or b"", 0
        while at < len(records):
            size = read_header(records, at).size_bytes
            found += [record.value for record in decode_batch(records[at : at + size]) if record.offset in mine]
            at += size
    return found


def acknowledgement(first: int, last: int, kind: int, **more) -> AcknowledgementBatch:
    return AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=(kind,), **more)


def _partitions(reply: ShareFetchResponse):
    return [one for topic in reply.responses for one in topic.partitions]


def _topics(topic_id, partitions: dict[int, Acks]) -> tuple[ShareFetchTopic, ...]:
    if not partitions:
        return ()
    told = tuple(
        ShareFetchPartition(
            partition_index=index,
            acknowledgement_batches=tuple(
                one if isinstance(one, AcknowledgementBatch) else acknowledgement(*one) for one in acks
            ),
        )
        for index, acks in partitions.items()
    )
    return (ShareFetchTopic(topic_id=topic_id, partitions=told),)
