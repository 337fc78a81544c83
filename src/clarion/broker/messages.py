"""Messages written and read inside this process, without a connection: what Produce and Fetch do, and nothing less.

The same permissions are asked for, the same checks made, and what is written is committed when `write` returns. For
`clarion.testing`, and for whoever else brings messages by another way than Kafka's protocol.

    appended = await write(broker, ANONYMOUS, "orders", 0, encode_batch([(key, value, (), now_ms)]))
    found = await read(broker, ANONYMOUS, "orders", 0, offset=0, wait_ms=500)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from clarion.broker.authorizer import Operation, Principal
from clarion.broker.preparing import WaitingBatch
from clarion.broker.threads import in_thread
from clarion.broker.waiting import WaitingReplies
from clarion.cluster import Topic
from clarion.log.batch_headers import ColdRead, Reader, read_any, read_cached
from clarion.log.slices import FileSlice
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import LogPosition, TopicId
from clarion.replication import Appended, Partition
from clarion.wire.batch import HEADER_BYTES, read_header
from clarion.wire.limits import WorkBudget
from clarion.world import event_log

if TYPE_CHECKING:
    from clarion.broker.broker import Broker

log = event_log("broker")

_Found = TypeVar("_Found")

READ_BYTES_MAX: Final = 1024 * 1024  # unless told otherwise; a batch that is larger comes alone
WRITE_TIMEOUT_MS: Final = 30_000  # as clients' request.timeout.ms
_COLD_TRIES_MAX: Final = 32  # three for each segment that is touched; then the loop waits for the disk


class Batches(NamedTuple):
    """Committed batches as they lie in the log; the first may begin before the offset that was asked for."""

    batches: list[bytes]
    high_watermark: int
    start_offset: int


async def write(
    broker: Broker, who: Principal, topic: str, index: int, batch: bytearray, *, timeout_ms: int = WRITE_TIMEOUT_MS
) -> Appended:
    """Append one batch; returns when it is committed, as with acks=all. KafkaError says why it is not."""
    partition = broker.resolver.partition(topic_to_write(broker, who, topic), index)
    return await write_to(broker, partition, batch, timeout_ms=timeout_ms)


async def write_to(
    broker: Broker, partition: Partition, batch: bytearray, *, timeout_ms: int = WRITE_TIMEOUT_MS
) -> Appended:
    """The same by the broker itself, which nobody allows anything."""
    partition.check_in_sync(memoryview(batch), broker.arrival_ms())
    appended = await _append(broker, partition, memoryview(batch))
    commit = _Commit(broker.waiting_produces, timeout_ms)
    if not partition.when_committed(appended.last_offset, commit.on_commit):
        await commit.wait()
    else:
        commit.on_commit(ErrorCode.NONE)
    return appended


async def read(
    broker: Broker,
    who: Principal,
    topic: str,
    index: int,
    offset: int,
    *,
    bytes_max: int = READ_BYTES_MAX,
    wait_ms: int = 0,
) -> Batches:
    """What is committed from an offset on; where there is nothing yet, what comes within `wait_ms`."""
    partition = broker.resolver.partition(broker.resolver.topic(who, Operation.READ, topic), index)
    check_offset(partition, offset)
    if wait_ms > 0 and offset >= partition.high_watermark.offset:
        await _news(partition, offset, wait_ms)
        if partition.is_gone:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{partition.tp} has been deleted")
    slices = await slices_of(partition, offset, bytes_max)
    found = await in_thread(lambda: read_all(partition, slices)) if slices else b""
    partition.bytes_out_total += len(found)
    return Batches(list(split_batches(found)), partition.high_watermark.offset, partition.start_offset)


def topic_to_write(broker: Broker, who: Principal, name: str) -> Topic:
    """One that clients may write into."""
    if name in broker.closed_to_clients:
        broker.resolver.require_topic(who, Operation.WRITE, name)
        raise _closed(name)  # whether there is one or not
    return broker.resolver.topic(who, Operation.WRITE, name)


def topic_to_write_by_id(broker: Broker, who: Principal, topic_id: TopicId) -> Topic:
    topic = broker.resolver.topic_by_id(who, Operation.WRITE, topic_id)
    if topic.name in broker.closed_to_clients:
        raise _closed(topic.name)
    return topic


def _closed(name: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is written by the broker alone")


def check_offset(partition: Partition, offset: int) -> None:
    """Whether somebody can read on from there: not before the start, and not behind the end."""
    if not partition.start_offset <= offset <= partition.next_offset:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, _range_text(partition))


def _range_text(partition: Partition) -> str:
    return f"{partition.tp} begins at offset {partition.start_offset} and ends at {partition.next_offset}"


# Writing


async def _append(broker: Broker, partition: Partition, batch: memoryview) -> Appended:
    """What has to be looked into first is so in a thread, behind those that came before it."""
    if partition.preparation is None and not partition.preparing:
        return partition.append(batch, broker.arrival_ms())
    broker.preparing.check_room(len(batch))
    waiting = WaitingBatch(partition, batch)
    done: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()

    async def finish() -> None:
        try:
            if waiting.error is not None:
                raise waiting.error
            appended = partition.append_prepared(waiting.batch, broker.arrival_ms())
        except KafkaError as error:
            if not done.done():
                done.set_exception(error)
        else:
            if not done.done():
                done.set_result(appended)

    def fail() -> None:
        if not done.done():
            done.set_exception(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))

    broker.preparing.add([waiting], WorkBudget.for_bytes(len(batch)), finish, fail)
    return await done


class _Commit:
    """Somebody in this process who waits for a commit."""

    __slots__ = ("_done", "_waiting", "deadline")

    def __init__(self, waiting: WaitingReplies, timeout_ms: int) -> None:
        self._done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        self._waiting = waiting
        self.deadline = waiting.add(self, timeout_ms)

    async def wait(self) -> None:
        try:
            code = await self._done
        finally:
            self._waiting.discard(self)
        if code is not ErrorCode.NONE:
            raise KafkaError(code)

    def on_commit(self, code: ErrorCode) -> None:
        self._waiting.discard(self)
        if not self._done.done():
            self._done.set_result(code)

    def time_out(self) -> None:
        """Nothing is known of what is not committed by now: it may still be."""
        self.on_commit(ErrorCode.REQUEST_TIMED_OUT)


# Reading


async def slices_of(partition: Partition, offset: int, bytes_max: int) -> list[FileSlice]:
    found = await _looked_up(partition, offset, lambda reader: partition.read(offset, bytes_max, reader=reader))
    return found or []


async def slices_around(partition: Partition, offset: int, bytes_max: int) -> tuple[list[FileSlice], int, LogPosition]:
    """See `Partition.read_around`."""
    found = await _looked_up(partition, offset, lambda reader: partition.read_around(offset, bytes_max, reader=reader))
    return found or ([], offset, partition.high_watermark)


async def _looked_up(partition: Partition, offset: int, look: Callable[[Reader], _Found]) -> _Found | None:
    """Without waiting for the disk, or again when a thread has read it. None where nothing is committed."""
    for tries_left in reversed(range(_COLD_TRIES_MAX)):
        if offset >= partition.high_watermark.offset:
            return None
        try:
            return look(read_cached if tries_left else read_any)
        except ColdRead as cold:
            await in_thread(cold.warm_up)
        except OSError as error:
            raise _storage_error(partition, error) from error
        check_offset(partition, offset)  # meanwhile the log may have moved its start
    raise AssertionError("the last try waits for the disk")


def read_all(partition: Partition, slices: list[FileSlice]) -> bytes:
    try:
        return b"".join([one.read() for one in slices])
    except OSError as error:
        raise _storage_error(partition, error) from error


def _storage_error(partition: Partition, error: OSError) -> KafkaError:
    log.error("read_failed", partition=partition.tp, reason=str(error))
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)


def split_batches(records: bytes) -> Iterator[bytes]:
    """Whole batches, one by one; the last may be cut off."""
    at = 0
    while len(records) - at >= HEADER_BYTES:
        size = read_header(records, at).size_bytes
        if len(records) - at < size:
            return  # cut off by the limit
        yield records[at : at + size]
        at += size


async def _news(partition: Partition, offset: int, wait_ms: int) -> None:
    """Returns when something is committed behind the offset, when the partition has gone, or when the time is over."""
    news = _News(offset)
    partition.watchers[news] = None
    try:
        await asyncio.wait([news.done], timeout=wait_ms / 1000)
    finally:
        partition.watchers.pop(news, None)


class _News:
    """Implements `replication.Watcher`."""

    __slots__ = ("_offset", "done")

    def __init__(self, offset: int) -> None:
        self._offset = offset
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_progress(self, partition: Partition) -> None:
        if not self.done.done() and (partition.is_gone or partition.high_watermark.offset > self._offset):
            self.done.set_result(None)
