"""Kafka's requests by the broker itself: answered in this process where it is the one to ask, else asked of the other.

What administers groups and offsets in a cluster is the same as on one broker then: the request that a tool would send,
to whoever coordinates the group or leads the partition.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from clarion.broker.authorizer import Principal
from clarion.groups.placement import partition_for
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.names import OFFSETS_TOPIC
from clarion.net.channel import ChannelLostError, ChannelUnusableError, LastingChannel
from clarion.wire.apis import APIS

if TYPE_CHECKING:
    from clarion.broker.broker import Broker

ANSWER_SECONDS: Final = 20.0  # altering the offsets of a thousand partitions takes some


class KafkaCalls:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._channels: dict[int, tuple[int, LastingChannel]] = {}  # by broker: its epoch, and the way to it

    def close(self) -> None:
        for _, channel in self._channels.values():
            channel.close()

    def coordinator_of(self, group_id: str) -> int:
        """The broker to ask about a group: this one where nobody has ever had a group."""
        topic = self._broker.image.topic(OFFSETS_TOPIC)
        if topic is None or self._broker.node is None:
            return self._broker.node_id
        return topic.partitions[partition_for(group_id, topic.partition_count)].leader

    async def of_group(self, group_id: str, api_key: int, request: Any, who: Principal, newest: int = 99) -> Any:
        return await self.of_broker(self.coordinator_of(group_id), api_key, request, who, newest)

    async def of_broker(
        self,
        broker_id: int,
        api_key: int,
        request: Any,
        who: Principal,
        newest: int = 99,
        *,
        seconds: float = ANSWER_SECONDS,
    ) -> Any:
        """Whether they may has to be asked before: another broker hears it from this one. KafkaError if nobody
        answers."""
        version = min(newest, APIS[api_key].max_version)
        if broker_id == self._broker.node_id:
            return await self._here(api_key, request, who, version)
        try:
            return await self._channel_to(broker_id).ask(api_key, request, newest=version, timeout_seconds=seconds)
        except (ChannelLostError, ChannelUnusableError, TimeoutError) as error:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker_id} does not answer: {error}") from error

    async def _here(self, api_key: int, request: Any, who: Principal, version: int) -> Any:
        from clarion.broker.broker import RequestContext

        api = APIS[api_key]
        handle = import_module(f"clarion.broker.apis.k{api.key:02d}_{api.snake_name}").handle
        return await handle(self._broker, request, RequestContext(version, "clarion", "127.0.0.1", 0, who))

    def _channel_to(self, broker_id: int) -> LastingChannel:
        """A broker that was started anew may have another address."""
        node, registered = self._broker.node, self._broker.image.brokers.get(broker_id)
        if node is None or registered is None:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "the broker that is to be asked is away; try again soon")
        known = self._channels.get(broker_id)
        if known is not None and known[0] == registered.epoch:
            return known[1]
        if known is not None:
            known[1].close()
        channel = node.channel_to(self._broker, broker_id)
        self._channels[broker_id] = (registered.epoch, channel)
        return channel
