"""The brokers of a cluster as the client's own requests reach them: who is there, who leads what, and who coordinates.

A question that any broker can answer goes to whichever does, again and again until the time is over: brokers restart.
What leaders and coordinators are asked goes to them alone, once; who asks sees to it what follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from clarion.client.bus_settings import BusSettings
from clarion.client.errors import NotConnected, refusal
from clarion.model.errors import ErrorCode
from clarion.net.channel import Channel, ChannelLostError, ChannelSettings, ChannelUnusableError, LastingChannel
from clarion.wire.apis import DESCRIBE_CONFIGS, FIND_COORDINATOR, METADATA
from clarion.wire.messages.configs import DescribeConfigsRequest, DescribeConfigsResource, DescribeConfigsResponse
from clarion.wire.messages.metadata import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from clarion.world import SystemRandomness

NO_LEADER: Final = -1
_PAUSE_SECONDS: Final = (0.05, 1.0)  # between two rounds of asking everybody: the first, and the longest
_GROUP: Final = 0  # of FindCoordinator's kinds of keys
BROKER_SETTINGS, GROUP_SETTINGS = 4, 32  # of DescribeConfigs' kinds of resources

Address = tuple[str, int]


class LedTopic(NamedTuple):
    """A topic and who leads its partitions."""

    name: str
    topic_id: UUID
    leaders: tuple[tuple[int, int], ...]  # by partition: the leader, or NO_LEADER, and its epoch

    @property
    def partition_count(self) -> int:
        return len(self.leaders)


class BrokerLinks:
    """For one event loop."""

    def __init__(self, settings: BusSettings) -> None:
        self.settings = settings
        self.brokers: dict[int, Address] = {}
        self._bootstrap = settings.addresses()
        self._channels: dict[Address, LastingChannel] = {}
        self._tls = settings.tls_context()

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

    # Asking

    async def greet(self) -> None:
        """Fail at once where nobody listens."""
        await self.describe([], patience_seconds=0.0)

    async def ask_any(
        self, api_key: int, request: Any, *, patience_seconds: float | None = None, newest: int | None = None
    ) -> tuple[Any, bool]:
        """The answer of whichever broker gives one, and whether an earlier one may have got the question too."""
        loop = asyncio.get_running_loop()
        patience = self.settings.timeout_ms / 1000 if patience_seconds is None else patience_seconds
        deadline, pause, is_repeated = loop.time() + patience, _PAUSE_SECONDS[0], False
        while True:
            reasons = []
            for address in self._known_addresses():
                try:
                    return await self._channel(address).ask(api_key, request, newest=newest), is_repeated
                except ChannelLostError as error:
                    is_repeated = is_repeated or not _was_never_asked(error)
                    reasons.append(str(error))
                except ChannelUnusableError as error:
                    reasons.append(str(error))
            if loop.time() + pause > deadline:
                raise NotConnected(f"no broker answers: {'; '.join(reasons)}. Is `clarion serve` running there?")
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSE_SECONDS[1])

    async def ask(self, broker: int, api_key: int, request: Any) -> Any:
        """One broker, once. ChannelLostError where it is not there."""
        return await self._channel(self._address(broker)).ask(api_key, request)

    async def open(self, broker: int) -> Channel:
        """A connection of the caller's own."""
        return await Channel.open(self._settings_of(self._address(broker)))

    # Who is there

    async def describe(
        self, topics: Sequence[str | UUID] | None, *, patience_seconds: float | None = None
    ) -> dict[str, LedTopic]:
        """These topics, by name or id, or all; those that do not exist are missing. Nothing is made by asking."""
        response: MetadataResponse
        response, _ = await self.ask_any(METADATA, metadata_request(topics), patience_seconds=patience_seconds)
        self.brokers = {one.node_id: (one.host, one.port) for one in response.brokers}
        self._forget_gone()
        return led_topics(response)

    async def coordinator(self, group: str) -> int:
        """Who coordinates a group now. Errors that pass by themselves are raised like others."""
        request = FindCoordinatorRequest(key=group, key_type=_GROUP, coordinator_keys=(group,))
        response: FindCoordinatorResponse
        response, _ = await self.ask_any(FIND_COORDINATOR, request)
        one: Any = response.coordinators[0] if response.coordinators else response
        if one.error_code:
            raise refusal(one.error_code, f"coordinator of {group!r}", one.error_message)
        node: int = one.node_id
        self.brokers.setdefault(node, (one.host, one.port))
        return node

    async def setting(self, kind: int, whose: str, name: str, *, broker: int | None = None) -> str | None:
        """Of a broker or a group, as this broker has it, or anyone; None where it has none."""
        asked = DescribeConfigsResource(resource_type=kind, resource_name=whose, configuration_keys=(name,))
        request = DescribeConfigsRequest(resources=(asked,), include_synonyms=False)
        response: DescribeConfigsResponse
        if broker is None:
            response, _ = await self.ask_any(DESCRIBE_CONFIGS, request)
        else:
            response = await self.ask(broker, DESCRIBE_CONFIGS, request)
        told = [one for result in response.results for one in result.configs]
        return next((one.value for one in told if one.name == name), None)

    # Connections

    def _known_addresses(self) -> Iterable[Address]:
        return list(dict.fromkeys([*self._channels, *self.brokers.values(), *self._bootstrap]))

    def _address(self, broker: int) -> Address:
        address = self.brokers.get(broker)
        if address is None:
            raise ChannelLostError(f"broker {broker} is not known")
        return address

    def _channel(self, address: Address) -> LastingChannel:
        if address not in self._channels:
            self._channels[address] = LastingChannel(self._settings_of(address), SystemRandomness())
        return self._channels[address]

    def _settings_of(self, address: Address) -> ChannelSettings:
        return self.settings.channel_to(address, self._tls)

    def _forget_gone(self) -> None:
        """Addresses at which nobody is any more; where it all began is kept."""
        kept = {*self.brokers.values(), *self._bootstrap}
        for address in [each for each in self._channels if each not in kept]:
            self._channels.pop(address).close()


def led_topics(response: MetadataResponse) -> dict[str, LedTopic]:
    """Those that are there, by name."""
    found = {}
    for topic in response.topics:
        if topic.error_code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID):
            continue
        if topic.error_code in (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_TOPIC_EXCEPTION):
            raise refusal(topic.error_code, f"topic {topic.name!r}")
        if topic.name is not None:
            by_index = sorted(topic.partitions, key=lambda one: one.partition_index)
            leaders = tuple((one.leader_id, one.leader_epoch) for one in by_index)
            found[topic.name] = LedTopic(topic.name, topic.topic_id, leaders)
    return found


def metadata_request(topics: Iterable[str | UUID] | None) -> MetadataRequest:
    asked = None if topics is None else tuple(_asked_topic(each) for each in topics)
    return MetadataRequest(topics=asked, allow_auto_topic_creation=False)


def _was_never_asked(error: ChannelLostError) -> bool:
    """The connection did not come about, so that nobody can have got the question."""
    return isinstance(error.__cause__, OSError) and not isinstance(error.__cause__, TimeoutError)


def _asked_topic(topic: str | UUID) -> MetadataRequestTopic:
    return MetadataRequestTopic(topic_id=topic) if isinstance(topic, UUID) else MetadataRequestTopic(name=topic)
