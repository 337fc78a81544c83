"""Where a request is done: here, or by the broker that leads what it is about.

A client that knows one broker knows the cluster: what another one leads is asked of that one in Kafka's own protocol,
over a channel that stays open. While leaders move, a question is asked again for a few seconds. Answers on a channel
come in order, so nobody waits for news there: who reads from another broker asks again (`READ_AGAIN_SECONDS`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from importlib import import_module
from typing import Any, Final, TypeVar

from clarion.broker import messages
from clarion.broker.authorizer import Operation, Principal
from clarion.broker.broker import Broker, RequestContext
from clarion.broker.messages import Batches
from clarion.cluster import Endpoint, Topic
from clarion.cluster.schema import NO_LEADER
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import topic_id_of
from clarion.net.channel import ChannelLostError, ChannelUnusableError, LastingChannel
from clarion.wire import relayed
from clarion.wire.apis import APIS, FETCH, LIST_OFFSETS, PRODUCE
from clarion.wire.messages.logs import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from clarion.wire.replica_fetch import decode_reply

ASK_SECONDS: Final = 30.0  # as clients' request.timeout.ms
MOVED_SECONDS: Final = 10.0  # for a new leader: twice what an election takes at worst
_AGAIN_SECONDS: Final = 0.1
READ_AGAIN_SECONDS: Final = 0.25
_CONSUMER: Final = -1  # in place of a replica's id
_MOVED: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)

Result = TypeVar("Result")


class Brokers:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._channels: dict[int, tuple[Endpoint, LastingChannel]] = {}

    def close(self) -> None:
        for _, channel in self._channels.values():
            channel.close()

    # What is meant

    def topic(self, who: Principal, operation: Operation, text: str) -> Topic:
        """By its name or its id."""
        resolver = self.broker.resolver
        if text not in self.broker.image.topics:
            topic_id = topic_id_of(text)
            if topic_id is not None:
                return resolver.topic_by_id(who, operation, topic_id)
        return resolver.topic(who, operation, text)

    def topic_names(self, who: Principal, texts: Iterable[str]) -> list[str]:
        """Of topics that are named by their name or their id; a name that nobody has is left as it is."""
        known = self.broker.image.topics
        names = [
            text if text in known or topic_id_of(text) is None else self.topic(who, Operation.READ, text).name
            for text in texts
        ]
        return list(dict.fromkeys(names))

    def topic_to_write(self, who: Principal, text: str) -> Topic:
        return messages.topic_to_write(self.broker, who, self.topic(who, Operation.WRITE, text).name)

    # Kafka's questions

    async def ask_here(self, who: Principal, api_key: int, request: Any) -> Any:
        """As if it had come from a client of Kafka's protocol, in its newest version."""
        api = APIS[api_key]
        handler = import_module(f"clarion.broker.apis.k{api_key:02d}_{api.snake_name}").handle
        return await handler(self.broker, request, RequestContext(api.max_version, "http", "", 0, who))

    async def ask(self, who: Principal, broker_id: int, api_key: int, request: Any) -> Any:
        if broker_id in (self.broker.node_id, NO_LEADER) or self.broker.node is None:
            return await self.ask_here(who, api_key, request)
        return await self._elsewhere(
            broker_id, lambda channel: channel.ask(api_key, request, timeout_seconds=ASK_SECONDS)
        )

    async def ask_all(self, who: Principal, api_key: int, request: Any) -> list[Any]:
        """Every broker that is there."""
        known = [self.broker.node_id] if self.broker.node is None else sorted(self.broker.image.brokers)
        return list(await asyncio.gather(*(self.ask(who, one, api_key, request) for one in known)))

    # Messages

    async def write(
        self, who: Principal, topic: Topic, index: int, batch: bytearray, *, may_repeat: bool = False
    ) -> int:
        """Returns the first offset. `may_repeat`: it is known when it comes twice, so it is sent again if need be."""

        async def attempt() -> int:
            leader = self._leader(topic, index)
            if leader == self.broker.node_id:
                appended = await messages.write(self.broker, who, topic.name, index, bytearray(batch))
                return appended.base_offset
            body = relayed.produce_request(topic.id, index, batch, messages.WRITE_TIMEOUT_MS)
            answer = await self._ask_encoded(leader, PRODUCE, relayed.PRODUCE_VERSION, body, may_repeat=may_repeat)
            produced = relayed.read_produced(answer)
            if produced.error_code:
                raise KafkaError(ErrorCode(produced.error_code), produced.error_message or "")
            return produced.base_offset

        return await self.while_moving(attempt if may_repeat else _once(attempt))

    async def read(
        self, who: Principal, topic: Topic, index: int, offset: int, *, bytes_max: int = messages.READ_BYTES_MAX
    ) -> Batches:
        """What there is; nobody waits here for more."""

        async def attempt() -> Batches:
            leader = self._leader(topic, index)
            if leader == self.broker.node_id:
                return await messages.read(self.broker, who, topic.name, index, offset, bytes_max=bytes_max)
            body = relayed.fetch_request(topic.id, index, offset, bytes_max, 0)
            answer = await self._ask_encoded(leader, FETCH, relayed.FETCH_VERSION, body, may_repeat=True)
            for one in decode_reply(answer).partitions:
                if one.error_code:
                    raise KafkaError(ErrorCode(one.error_code))
                whole = list(messages.split_batches(bytes(one.records)))
                return Batches(whole, one.high_watermark, one.log_start_offset)
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic.name}-{index}")

        return await self.while_moving(attempt)

    async def offset_at(self, who: Principal, topic: Topic, index: int, timestamp_ms: int) -> int:
        """As ListOffsets finds it: -1 is the end, -2 the start, else the first at this time; -1 if there is none."""
        asked = ListOffsetsPartition(partition_index=index, timestamp=timestamp_ms)
        topics = (ListOffsetsTopic(name=topic.name, partitions=(asked,)),)

        async def attempt() -> int:
            request = ListOffsetsRequest(replica_id=_CONSUMER, topics=topics)
            answer = await self.ask(who, self._leader(topic, index), LIST_OFFSETS, request)
            (found,) = answer.topics[0].partitions
            if found.error_code:
                raise KafkaError(ErrorCode(found.error_code))
            return int(found.offset)

        return await self.while_moving(attempt)

    def is_led_here(self, topic: Topic, index: int) -> bool:
        return self._leader(topic, index) == self.broker.node_id

    def _leader(self, topic: Topic, index: int) -> int:
        """Whoever leads it now. KafkaError while nobody does, or when the topic is gone: another one of its name is not
        the one that was meant."""
        known = self.broker.image.topics_by_id.get(topic.id)
        if known is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic.name} has been deleted")
        if self.broker.node is None:
            return self.broker.node_id
        self.broker.resolver.check_exists(known, index)
        leader = known.partitions[index].leader
        if leader not in self.broker.image.brokers:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic.name}-{index} has no leader at the moment")
        return leader

    async def while_moving(self, attempt: Callable[[], Awaitable[Result]]) -> Result:
        """Leaders move within seconds, and what they refuse meanwhile was not done: it is asked again."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + MOVED_SECONDS
        while True:
            try:
                return await attempt()
            except KafkaError as error:
                if self.broker.node is None or error.code not in _MOVED or loop.time() > deadline:
                    raise
            await asyncio.sleep(_AGAIN_SECONDS)

    # Channels

    async def _ask_encoded(
        self, broker_id: int, api_key: int, newest: int, body: bytes, *, may_repeat: bool
    ) -> memoryview:
        async def ask(channel: LastingChannel) -> memoryview:
            try:
                opened = await channel.open()
            except ChannelLostError as error:  # nothing was said yet
                raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"broker {broker_id}: {error}") from error
            return await opened.ask_encoded(api_key, newest, body, timeout_seconds=ASK_SECONDS)

        return await self._elsewhere(broker_id, ask, may_repeat=may_repeat)

    async def _elsewhere(
        self, broker_id: int, ask: Callable[[LastingChannel], Awaitable[Result]], *, may_repeat: bool = False
    ) -> Result:
        try:
            return await ask(self._channel(broker_id))
        except ChannelLostError as error:
            code = ErrorCode.LEADER_NOT_AVAILABLE if may_repeat else ErrorCode.REQUEST_TIMED_OUT
            raise KafkaError(code, f"broker {broker_id} did not answer: {error}") from error
        except ChannelUnusableError as error:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker_id}: {error}") from error

    def _channel(self, broker_id: int) -> LastingChannel:
        """Where the broker listens now: one that comes back elsewhere gets another channel."""
        node, registered = self.broker.node, self.broker.image.brokers.get(broker_id)
        assert node is not None
        if registered is None:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"broker {broker_id} is away")
        place, known = self._channels.get(broker_id, (None, None))
        if known is None or place != registered.endpoint(0):
            if known is not None:
                known.close()
            known = node.channel_to(self.broker, broker_id)
            self._channels[broker_id] = registered.endpoint(0), known
        return known


def _once(write: Callable[[], Awaitable[int]]) -> Callable[[], Awaitable[int]]:
    """A leader that refuses a batch says why. One whose term ends when it has taken it tells the code alone, here and
    elsewhere: the next leader may have it, and nobody could tell a second one from it."""

    async def attempt() -> int:
        try:
            return await write()
        except KafkaError as error:
            if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER and not error.message:
                raise KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT, "another broker leads since it was taken; it may be written, or not"
                ) from error
            raise

    return attempt
