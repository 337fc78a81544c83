"""Redrive: dead letters back to the topics that they come from.

Letters are read in order, written to the partition that their headers name, whoever leads it (as new messages: every
subscription of that topic gets them), and when that is committed they are deleted from the dead letter topic. A broker
that ends in between has written some and deleted none of them: the next redrive writes these again. So each is sent
back at least once, and never lost. What is in the topic and is no dead letter of this subscription is left, and so is
what cannot be sent back (its topic is no more), and all that follows it. Where the dead letter topic is deleted
meanwhile, or led by another broker, it ends: of the letters in one that has its name by then none was sent.
"""

from __future__ import annotations

from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from clarion.broker.apis.k21_delete_records import delete_before
from clarion.broker.authorizer import Operation, Principal
from clarion.broker.dead_letters import HEADER, batch_bytes_max, encode_within, lots_of
from clarion.broker.messages import topic_to_write
from clarion.broker.relaying import writing_to
from clarion.broker.share_batches import READ_BYTES_MAX, ReadBatches, read_batches
from clarion.broker.threads import in_thread
from clarion.model.errors import KafkaError
from clarion.model.subscription import Subscription
from clarion.replication import Partition
from clarion.wire.records import NewRecord, Record, iter_records
from clarion.world import event_log

if TYPE_CHECKING:
    from clarion.broker.broker import Broker

log = event_log("broker")

_PART: Final = 500  # letters that are sent back before they are deleted: so many come twice after a crash
_TIMEOUT_MS: Final = 30_000


class Redriven(NamedTuple):
    sent: int
    left: int  # letters that are still in the topic, as far as this broker leads it
    stopped_at: str | None  # what stands in the way, if something does


class Redriving:
    def __init__(self, broker: Broker, subscription: Subscription, who: Principal) -> None:
        self._broker = broker
        self._subscription = subscription
        self._who = who

    async def run(self, messages_max: int | None) -> Redriven:
        topic = self._broker.image.topic(self._subscription.dead_letters)
        if topic is None:
            return Redriven(0, 0, None)  # nothing was ever given up
        self._broker.resolver.require_topic(self._who, Operation.READ, topic.name)
        self._broker.resolver.require_topic(self._who, Operation.DELETE, topic.name)
        sent, left, obstacle = 0, 0, None
        for index in range(topic.partition_count):
            partition = self._broker.partitions.find(topic.id, index)
            if partition is None or not partition.is_leader:
                obstacle = obstacle or f"{topic.name}-{index} is led by another broker; ask it, too"
                continue
            wanted = None if messages_max is None else messages_max - sent
            count, found = await self._empty(partition, wanted)
            sent, obstacle = sent + count, obstacle or found
            if _is_here(partition):
                left += partition.high_watermark.offset - partition.start_offset
        log.info("dead_letters_redriven", subscription=self._subscription.name, sent=sent, left=left)
        return Redriven(sent, left, obstacle)

    async def _empty(self, letters: Partition, messages_max: int | None) -> tuple[int, str | None]:
        """How many were sent back, and why not all. What is given up again meanwhile is for the next redrive."""
        sent, end = 0, letters.high_watermark.offset
        while letters.start_offset < end and (messages_max is None or sent < messages_max):
            if not _is_here(letters):
                return sent, _not_here(letters)
            part = _PART if messages_max is None else min(_PART, messages_max - sent)
            read = await read_batches(letters, letters.start_offset, READ_BYTES_MAX)
            start = letters.start_offset
            records = await in_thread(lambda read=read, start=start: _letters(read, start, end))  # type: ignore[misc]
            if not read.batches:
                break
            if not records:
                await self._delete(letters, min(read.next, end))  # compaction, or a transaction, has left them empty
                continue
            own = self._own(records[:part])
            count, obstacle = await self._send(own)
            sent += count
            if count and _is_here(letters):
                await self._delete(letters, own[count - 1].offset + 1)
            if obstacle is not None:
                return sent, f"{letters.tp} has at {own[count].offset} what cannot be sent back: {obstacle}"
            if len(own) < len(records[:part]):
                stranger = records[len(own)]
                return sent, f"{letters.tp} has at {stranger.offset} what is no dead letter of it"
        return sent, None

    def _own(self, records: list[Record]) -> list[Record]:
        """Up to the first that is somebody else's."""
        own: list[Record] = []
        for record in records:
            about = _about(record)
            if about.get("subscription") != self._subscription.name or not _is_partition(about.get("partition", "")):
                break
            own.append(record)
        return own

    async def _send(self, letters: list[Record]) -> tuple[int, str | None]:
        """In order: how many are sent, and why not all. So none is sent again for the sake of one that cannot be."""
        sent = 0
        for (name, index), same in groupby(letters, _place_of):
            some = list(same)
            try:
                await self._send_to(name, index, some)
            except KafkaError as error:
                return sent, error.message or error.code.name
            sent += len(some)
        return sent, None

    async def _send_to(self, name: str, index: int, letters: list[Record]) -> None:
        topic = topic_to_write(self._broker, self._who, name)
        make = partial(self._batches, letters, batch_bytes_max(self._broker, topic))
        batches = await in_thread(make)
        async with writing_to(self._broker, topic, min(index, topic.partition_count - 1)) as write:
            for batch in batches:
                await write(batch)

    def _batches(self, letters: list[Record], bytes_max: int) -> list[bytearray]:
        """With the present time: else retention, or a time to live, would take them at once."""
        now_ms = self._broker.clock.now_ms()
        records: list[NewRecord] = [
            (one.key, one.value, [header for header in one.headers if not header[0].startswith(HEADER)], now_ms)
            for one in letters
        ]
        return [encode_within(records[part], bytes_max) for part in lots_of(records, bytes_max)]

    async def _delete(self, letters: Partition, before: int) -> None:
        try:
            await delete_before(self._broker, letters, before, _TIMEOUT_MS)
        except KafkaError as error:
            raise KafkaError(
                error.code, f"{letters.tp}: what was sent back could not be deleted, and comes again: {error.message}"
            ) from error


def _is_here(letters: Partition) -> bool:
    return letters.is_leader and not letters.is_gone


def _not_here(letters: Partition) -> str:
    return f"{letters.tp} was deleted meanwhile, or is led by another broker; redrive once more"


def _letters(read: ReadBatches, start: int, end: int) -> list[Record]:
    return [one for _, _, batch in read.contents() for one in iter_records(batch) if start <= one.offset < end]


def _place_of(letter: Record) -> tuple[str, int]:
    about = _about(letter)
    return about.get("topic", ""), int(about["partition"])


def _is_partition(text: str) -> bool:
    """Anybody may have written the letter."""
    return text.isascii() and text.isdecimal() and len(text) <= 10


def _about(letter: Record) -> dict[str, str]:
    return {
        name.removeprefix(HEADER): (value or b"").decode(errors="replace")
        for name, value in letter.headers
        if name.startswith(HEADER)
    }
