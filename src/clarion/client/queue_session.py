"""What a reader of a queue says to one broker: fetch, acknowledge, and once more after the connection was lost.

A share session numbers its requests. One fetch is under way at a time, and waits at the broker until there are
messages. What the application says of messages goes with the next fetch, or by itself where that would take longer
than a few milliseconds: over a connection of its own, because a broker takes a connection's requests one by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from clarion.client.broker_links import led_topics, metadata_request
from clarion.client.errors import ClarionError, Unsupported, refusal
from clarion.client.held_partition import HeldPartition, Portion
from clarion.client.queue_chunk import QueueChunk
from clarion.model.errors import ErrorCode
from clarion.net.channel import Channel, ChannelLostError, ChannelUnusableError
from clarion.net.dialogue import Backoff
from clarion.wire.apis import METADATA, SHARE_ACKNOWLEDGE, SHARE_FETCH
from clarion.wire.messages.share_groups import (
    ForgottenShareTopic,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchPartition,
    ShareFetchPartitionData,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareFetchTopic,
)
from clarion.world import SystemRandomness

if TYPE_CHECKING:
    from clarion.client.queue_reader import QueueReader

PartitionKey = tuple[UUID, int]
Words = dict[PartitionKey, tuple[HeldPartition, Portion]]

_LINGER_SECONDS: Final = 0.002  # what is said within this time travels together
_WAIT_MS: Final = 500  # at the broker, for messages; as Kafka's fetch.max.wait.ms
_AGAIN_SECONDS: Final = 0.02  # until it is said again what a broker would not hear
_FETCH_BYTES_MAX: Final = 16 * 1024 * 1024
_BACKOFF_SECONDS: Final = (0.05, 1.0)
_OPENING_EPOCH, _FINAL_EPOCH, _EPOCH_MAX = 0, -1, 2**31 - 1
_BATCHES, _RECORDS = 0, 1  # acquire modes: whole batches of the log, or never more records than asked for

_SESSION_IS_OVER: Final = {
    *(ErrorCode.SHARE_SESSION_NOT_FOUND, ErrorCode.INVALID_SHARE_SESSION_EPOCH, ErrorCode.UNKNOWN_SERVER_ERROR),
    *(ErrorCode.SHARE_SESSION_LIMIT_REACHED, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.COORDINATOR_NOT_AVAILABLE),
}
_LEADER_IS_ANOTHER: Final = {
    *(ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.FENCED_LEADER_EPOCH),
    *(ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_TOPIC_ID),
    *(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.REPLICA_NOT_AVAILABLE, ErrorCode.NOT_ENOUGH_REPLICAS),
    *(ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR),
    *(ErrorCode.REQUEST_TIMED_OUT, ErrorCode.FENCED_STATE_EPOCH, ErrorCode.UNKNOWN_SERVER_ERROR),
    *(ErrorCode.NETWORK_EXCEPTION, ErrorCode.BROKER_NOT_AVAILABLE),
}


class SessionOverError(Exception):
    """The broker does not know the session any more: another one is opened."""


class EpochRefusedError(SessionOverError):
    """Another request was to come first."""


class QueueSession:
    def __init__(self, reader: QueueReader, broker: int) -> None:
        self.broker = broker
        self.partitions: dict[PartitionKey, HeldPartition] = {}  # that this broker leads, as far as is known
        self._reader = reader
        self._told: set[PartitionKey] = set()  # what the broker thinks is fetched from it
        self._epoch = _OPENING_EPOCH
        self._has_news = asyncio.Event()
        self._has_words = asyncio.Event()
        self._turn = asyncio.Lock()
        self._is_fetching = False
        self._backoff = Backoff(*_BACKOFF_SECONDS, SystemRandomness())

    def wake(self) -> None:
        """There is room, the partitions have changed, or the end has come."""
        self._has_news.set()

    def wake_to_speak(self) -> None:
        self._has_words.set()

    @property
    def is_ending(self) -> bool:
        """Not as long as the application has messages of partitions that are others' to read by now: what it says of
        them goes this way, and who says good-bye gives them to others."""
        return self._reader.is_ending or not (self.partitions or self._reader.is_in_use_at(self.broker))

    async def run(self) -> None:
        """Until the reader ends, or nothing is left to read here."""
        while not self.is_ending or self._has_something_to_say():
            try:
                await self._once()
            except (ChannelLostError, SessionOverError):
                self._reader.look_for_leaders()
            except ChannelUnusableError as error:
                self._reader.fail(Unsupported(f"queues cannot be read here: {error}"))
                return
            except ClarionError as error:
                self._reader.fail(error)
                return
            except Exception as error:  # a mistake of ours: who reads must not wait for ever
                self._reader.fail(ClarionError(f"reading queue {self._reader.group!r} ended: {error!r}"))
                raise
            else:
                return
            if self._reader.is_leaving_in_haste:
                return
            await asyncio.sleep(self._backoff.failed())

    async def _once(self) -> None:
        channels: list[Channel] = []
        try:
            channels.append(await self._reader.links.open(self.broker))
            channels.append(await self._reader.links.open(self.broker))
            await self._learn_terms(channels[0])
            await self._open(channels[0])
            async with asyncio.TaskGroup() as talking:  # which hears of their errors
                talking.create_task(self._fetch_again_and_again(channels[0]))  # as said above
                talking.create_task(self._speak_again_and_again(channels[1]))  # as said above
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        finally:
            for channel in channels:
                channel.close()

    async def _learn_terms(self, channel: Channel) -> None:
        """From the broker itself: after its restart nothing is held any more."""
        ids = list({topic_id for topic_id, _ in [*self.partitions, *self._reader.sources_at(self.broker)]})
        self._reader.learn(led_topics(await channel.ask(METADATA, metadata_request(ids))))

    async def _open(self, channel: Channel) -> None:
        """A session begins with a fetch that can acknowledge nothing, and that need not fetch anything."""
        self._epoch = _OPENING_EPOCH
        request = ShareFetchRequest(
            group_id=self._reader.group,
            member_id=self._reader.member_id,
            share_session_epoch=self._next_epoch(),
            topics=_topics(self.partitions, {}),
            knows_filters=True,
        )
        self._told = {*self.partitions}
        await self._ask(channel, SHARE_FETCH, request, {}, 0)

    # Fetching

    async def _fetch_again_and_again(self, channel: Channel) -> None:
        while True:
            while not (self.is_ending or (self.partitions and self._reader.has_room)):
                self._has_news.clear()
                await self._has_news.wait()
            if self.is_ending:
                self.wake_to_speak()
                return
            async with self._turn:
                pass  # what is said the other way is answered first: requests have numbers
            self._is_fetching = True
            try:
                await self._fetch(channel)  # which has sent it before anybody else has a turn
            finally:
                self._is_fetching = False

    async def _fetch(self, channel: Channel) -> None:
        reader = self._reader
        said = self._portions([key for key in self.partitions if key in self._told], may_extend=False)
        wanted, is_much = reader.records_wanted()
        added = [key for key in self.partitions if key not in self._told]
        forgotten = [key for key in self._told if key not in self.partitions]
        request = ShareFetchRequest(
            group_id=reader.group,
            member_id=reader.member_id,
            share_session_epoch=self._next_epoch(),
            max_wait=_WAIT_MS,
            min_bytes=1,
            max_bytes=_FETCH_BYTES_MAX,
            max_records=wanted,
            batch_size=wanted,
            share_acquire_mode=_BATCHES if is_much else _RECORDS,
            topics=_topics([*added, *said], said),
            forgotten_topics_data=_forgotten(forgotten),
            knows_filters=True,
        )
        self._told = {*self.partitions}
        response: ShareFetchResponse = await self._ask(channel, SHARE_FETCH, request, said, _WAIT_MS)
        self._backoff.succeeded()
        answers = {
            (topic.topic_id, one.partition_index): one for topic in response.responses for one in topic.partitions
        }
        for key, (source, portion) in said.items():
            answer = answers.get(key)
            self._answered(source, portion, None if answer is None else answer.acknowledge_error_code)
        for key, one in answers.items():
            self._received(key, one, response.acquisition_lock_timeout / 1000)

    def _received(self, key: PartitionKey, data: ShareFetchPartitionData, lock_seconds: float) -> None:
        """Also of a partition that another is to read by now: nobody else gets these until their locks end."""
        source = self._reader.source_at(self.broker, key)
        if source is None or (data.error_code and key not in self.partitions):
            return
        if data.error_code in _LEADER_IS_ANOTHER:
            del self.partitions[key]  # until it is known who leads it
            self._reader.look_for_leaders()
        elif data.error_code:
            what = f"read {source.topic}-{source.partition} for {self._reader.group!r}"
            raise refusal(data.error_code, what, data.error_message)
        elif data.acquired_records and data.records:
            for run in data.acquired_records:
                source.acquired(run.first_offset, run.last_offset, run.delivery_count)
            now = asyncio.get_running_loop().time()
            self._reader.received(QueueChunk(source, data.records, data.acquired_records, now, lock_seconds))

    # Acknowledging

    async def _speak_again_and_again(self, words: Channel) -> None:
        while True:
            if not self._has_something_to_say():
                if self.is_ending:
                    await self._leave(words)
                    self.wake()  # the other one ends too
                    return
                self._has_words.clear()
                await self._has_words.wait()
                if not self.is_ending:
                    await asyncio.sleep(_LINGER_SECONDS)
            async with self._turn:
                said = self._portions(self._reader.sources_at(self.broker), may_extend=True)
                is_heard = not said or await self._speak(words, said)
            if not is_heard:
                await asyncio.sleep(_AGAIN_SECONDS)

    async def _speak(self, words: Channel, said: Words) -> bool:
        """Whether the broker has heard it. It may not have got the fetch that was sent before, the other way."""
        before = self._epoch
        request = ShareAcknowledgeRequest(
            group_id=self._reader.group,
            member_id=self._reader.member_id,
            share_session_epoch=self._next_epoch(),
            is_renew_ack=any(portion.extends for _, portion in said.values()),
            topics=_topics(said, said),
        )
        try:
            response: ShareAcknowledgeResponse = await self._ask(words, SHARE_ACKNOWLEDGE, request, said, 0)
        except EpochRefusedError:
            if not self._is_fetching:
                raise
            self._epoch = before
            return False
        codes = {
            (topic.topic_id, one.partition_index): one.error_code
            for topic in response.responses
            for one in topic.partitions
        }
        for key, (source, portion) in said.items():
            if request.is_renew_ack and codes.get(key) == ErrorCode.INVALID_REQUEST:
                self._reader.renew_no_more()
                source.not_renewed(portion)
                self._reader.was_settled()
            else:
                self._answered(source, portion, codes.get(key))
        return not any(code in _LEADER_IS_ANOTHER for code in codes.values())

    async def _leave(self, words: Channel) -> None:
        """Others may have what is still held; a fetch that waits is answered."""
        request = ShareAcknowledgeRequest(
            group_id=self._reader.group, member_id=self._reader.member_id, share_session_epoch=_FINAL_EPOCH
        )
        await words.ask(SHARE_ACKNOWLEDGE, request)

    def _answered(self, source: HeldPartition, portion: Portion, code: int | None) -> None:
        if code == ErrorCode.NONE:
            source.confirmed(portion)
        elif code is None or code in _LEADER_IS_ANOTHER:
            source.unanswered(portion, was_sent=False)
            self._reader.look_for_leaders()
        else:
            source.refused(portion)
        if source.has_something_to_say:
            self.wake_to_speak()
        self._reader.was_settled()

    # Both

    async def _ask(
        self,
        channel: Channel,
        api_key: int,
        request: Any,
        said: Words,
        wait_ms: int,
    ) -> Any:
        """The answer. What was said in a request that is not answered is said again."""
        was_sent = True
        try:
            patience = self._reader.links.settings.timeout_ms + wait_ms
            response = await channel.ask(api_key, request, timeout_seconds=patience / 1000)
            was_sent = response.error_code not in _SESSION_IS_OVER and response.error_code not in _LEADER_IS_ANOTHER
            if response.error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH:
                raise EpochRefusedError(response.error_message)
            if not was_sent:
                raise SessionOverError(response.error_message)
            if response.error_code:
                raise refusal(response.error_code, f"read queue {self._reader.group!r}", response.error_message)
        except BaseException:
            for source, portion in said.values():
                source.unanswered(portion, was_sent=was_sent)
            raise
        return response

    def _next_epoch(self) -> int:
        epoch = self._epoch
        self._epoch = 1 if epoch == _EPOCH_MAX else epoch + 1
        return epoch

    def _has_something_to_say(self) -> bool:
        sources = self._reader.sources_at(self.broker)
        return any(self._reader.sources[key].has_something_to_say for key in sources)

    def _portions(self, keys: Iterable[PartitionKey], *, may_extend: bool) -> Words:
        """What there is to say of these; renewals make a request of their own kind, which fetches nothing."""
        said: Words = {}
        for key in keys:
            source = self._reader.sources[key]
            portion = source.take() if source.has_something_to_say else None
            if portion is not None and portion.extends and not may_extend:
                source.unanswered(portion, was_sent=False)
                self.wake_to_speak()
            elif portion is not None:
                said[key] = source, portion
        return said


def _topics(keys: Iterable[PartitionKey], said: Words) -> tuple[ShareFetchTopic, ...]:
    topics: dict[UUID, list[ShareFetchPartition]] = {}
    for key in dict.fromkeys(keys):
        batches = said[key][1].batches() if key in said else ()
        partition = ShareFetchPartition(partition_index=key[1], acknowledgement_batches=batches)
        topics.setdefault(key[0], []).append(partition)
    return tuple(ShareFetchTopic(topic_id=topic, partitions=tuple(those)) for topic, those in topics.items())


def _forgotten(keys: Iterable[PartitionKey]) -> tuple[ForgottenShareTopic, ...]:
    topics: dict[UUID, list[int]] = {}
    for topic_id, index in keys:
        topics.setdefault(topic_id, []).append(index)
    return tuple(ForgottenShareTopic(topic_id=topic, partitions=tuple(those)) for topic, those in topics.items())
