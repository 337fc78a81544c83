"""Topics: made, deleted, and found by name or by id."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

from clarion.client.arguments import milliseconds
from clarion.client.broker_links import NO_LEADER, BrokerLinks, LedTopic
from clarion.client.errors import refusal, unknown_topic
from clarion.model.errors import ErrorCode
from clarion.model.ids import NO_TOPIC_ID, topic_id_of, topic_id_text
from clarion.model.setting_texts import setting_text
from clarion.wire.apis import CREATE_TOPICS, DELETE_TOPICS
from clarion.wire.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from clarion.world import boot_seconds

_AS_THE_BROKER_DECIDES = -1
_BELIEVED_SECONDS = 30.0  # a topic gets partitions, or is deleted, seldom
_NOTHING = (None, 0.0)
_KNOWN_MAX = 10_000  # topics that are remembered; an application names a few


class CreatedTopic(NamedTuple):
    """A topic that was made: either of its names can be used from now on."""

    name: str
    id: str
    partitions: int
    replication: int


class KnownTopics:
    """For one event loop; what was found is remembered, and forgotten when something was refused."""

    def __init__(self, links: BrokerLinks) -> None:
        self._links = links
        self._found: dict[str, tuple[LedTopic, float]] = {}  # by what it was called, and until when it is believed

    async def create(
        self, name: str, partitions: int | None, replication: int | None, settings: Mapping[str, object]
    ) -> CreatedTopic:
        _check_types(name, partitions, replication)
        _check_settings(settings)
        wanted = CreatableTopic(
            name=name,
            num_partitions=_AS_THE_BROKER_DECIDES if partitions is None else partitions,
            replication_factor=_AS_THE_BROKER_DECIDES if replication is None else replication,
            assignments=(),
            configs=tuple(
                CreatableTopicConfig(name=each, value=_text(each, value)) for each, value in settings.items()
            ),
        )
        request = CreateTopicsRequest(topics=(wanted,), timeout=self._links.settings.timeout_ms, validate_only=False)
        response, is_repeated = await self._links.ask_any(CREATE_TOPICS, request)
        (made,) = response.topics
        self._found.pop(name, None)
        if made.error_code == ErrorCode.TOPIC_ALREADY_EXISTS and is_repeated:
            found = await self.find(name)  # made by the question whose answer was lost
            return CreatedTopic(found.name, topic_id_text(found.topic_id), found.partition_count, replication or 1)
        if made.error_code:
            raise refusal(made.error_code, f"create topic {name!r}", made.error_message)
        return CreatedTopic(made.name, topic_id_text(made.topic_id), made.num_partitions, made.replication_factor)

    async def delete(self, topic: str) -> None:
        found = await self.find(topic)
        self.forget(found.name)
        state = DeleteTopicState(name=None, topic_id=found.topic_id)
        request = DeleteTopicsRequest(topics=(state,), timeout=self._links.settings.timeout_ms)
        response, is_repeated = await self._links.ask_any(DELETE_TOPICS, request)
        (gone,) = response.responses
        is_gone = gone.error_code in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if gone.error_code and not (is_gone and is_repeated):
            raise refusal(gone.error_code, f"delete topic {topic!r}", gone.error_message)

    async def find(self, topic: str, *, is_fresh: bool = False) -> LedTopic:
        """By its name, or by its id where no topic has that for a name."""
        _check_types(topic, None, None)
        known = None if is_fresh else self.known(topic)
        if known is not None:
            return known
        found = (await self._links.describe([topic])).get(topic)
        topic_id = topic_id_of(topic)
        if found is None and topic_id is not None and topic_id != NO_TOPIC_ID:
            found = await self._by_id(topic_id)
        if found is None:
            raise unknown_topic(topic, await self._links.describe(None))
        if all(leader != NO_LEADER for leader, _ in found.leaders):
            if len(self._found) >= _KNOWN_MAX:
                self._found.clear()
            self._found[topic] = found, boot_seconds() + _BELIEVED_SECONDS
        return found

    def known(self, topic: str) -> LedTopic | None:
        """Without asking; for any thread."""
        found, until = self._found.get(topic, _NOTHING)
        return found if boot_seconds() < until else None

    def forget(self, name: str) -> None:
        for called in [called for called, (found, _) in self._found.items() if found.name == name]:
            del self._found[called]

    async def _by_id(self, topic_id: UUID) -> LedTopic | None:
        found = await self._links.describe([topic_id])
        return next((one for one in found.values() if one.topic_id == topic_id), None)


def _check_types(name: object, partitions: object, replication: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"a topic's name is a str, not {type(name).__name__}")
    for what, number in (("partitions", partitions), ("replication", replication)):
        if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
            raise TypeError(f"{what} is an int, not {type(number).__name__}")


def _check_settings(settings: object) -> None:
    if not isinstance(settings, Mapping):
        raise TypeError(f"settings are a dict, as {{'retention.ms': '7d'}}, not {type(settings).__name__}")


def _text(name: str, value: object) -> str:
    return setting_text(name, f"{milliseconds(value, name)}ms" if isinstance(value, timedelta) else value)
