"""/v1/topics: make, list, describe, change and delete topics, as Kafka's own requests do it."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Response

from clarion.broker.authorizer import Operation
from clarion.cluster import Topic
from clarion.gateway import schemas
from clarion.gateway.brokers import Brokers
from clarion.gateway.identity import principal
from clarion.gateway.problems import HttpProblem, raise_if_refused
from clarion.gateway.queries import CheckedRoute
from clarion.gateway.reading import MessageReader, PartitionEnds
from clarion.model.errors import KafkaError
from clarion.model.names import is_internal
from clarion.model.setting_changes import AlterOperation
from clarion.model.setting_texts import setting_text
from clarion.wire.apis import (
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
)
from clarion.wire.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    IncrementalConfigsResource,
)
from clarion.wire.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)

_TOPIC_RESOURCE: Final = 2
_DEFAULT: Final = -1  # partitions and replicas: as the broker has it
_TIMEOUT_MS: Final = 30_000
_DESCRIBED_PARTITIONS_MAX: Final = 1_000  # whose offsets are asked for; the others are listed without

TopicText = Annotated[str, Path(description="The topic's name or its id.", min_length=1, max_length=249)]


def topic_routes(brokers: Brokers) -> APIRouter:
    router = APIRouter(route_class=CheckedRoute, prefix="/v1/topics", tags=["topics"], responses=schemas.PROBLEM)
    reader = MessageReader(brokers)

    @router.post("", status_code=201, summary="Make a topic")
    async def create(topic: schemas.NewTopic, response: Response) -> schemas.TopicName:
        made = await _create(brokers, topic)
        response.headers["Location"] = f"/v1/topics/{made.name}"
        return made

    @router.get("", summary="List topics")
    async def list_all(
        internal: Annotated[bool, Query(description="Also those that the brokers keep for themselves.")] = False,
    ) -> schemas.TopicList:
        known = brokers.broker.resolver.topics(principal(), Operation.DESCRIBE)
        found = [one async for one in brokers.broker.turns.each(known)]
        return schemas.TopicList(
            topics=[_told(one) for one in sorted(found, key=_name) if internal or not is_internal(one.name)]
        )

    @router.get("/{topic}", summary="Describe a topic")
    async def describe(topic: TopicText) -> schemas.TopicDescription:
        return await _describe(brokers, reader, brokers.topic(principal(), Operation.DESCRIBE, topic))

    @router.patch("/{topic}", summary="Change a topic's settings, or give it more partitions")
    async def change(topic: TopicText, change: schemas.TopicChange) -> schemas.TopicDescription:
        found = brokers.topic(principal(), Operation.DESCRIBE, topic)
        if change.settings:
            await _configure(brokers, found, change.settings)
        if change.partitions is not None and change.partitions != found.partition_count:
            await _grow(brokers, found, change.partitions)
        return await _describe(brokers, reader, brokers.topic(principal(), Operation.DESCRIBE, str(found.id)))

    @router.delete("/{topic}", summary="Delete a topic with everything in it")
    async def delete(topic: TopicText) -> schemas.TopicName:
        found = brokers.topic(principal(), Operation.DESCRIBE, topic)
        asked = DeleteTopicsRequest(
            topics=(DeleteTopicState(name=None, topic_id=found.id),), timeout=_TIMEOUT_MS, topic_names=()
        )
        (result,) = (await brokers.ask_here(principal(), DELETE_TOPICS, asked)).responses
        raise_if_refused(result.error_code, result.error_message)
        return _told(found)

    return router


def _name(topic: Topic) -> str:
    return topic.name


def _told(topic: Topic) -> schemas.TopicName:
    return schemas.TopicName(
        name=topic.name, id=str(topic.id), partitions=topic.partition_count, is_internal=is_internal(topic.name)
    )


async def _create(brokers: Brokers, topic: schemas.NewTopic) -> schemas.TopicName:
    asked = CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions or _DEFAULT,
        replication_factor=topic.replication_factor or _DEFAULT,
        assignments=(),
        configs=tuple(
            CreatableTopicConfig(name=name, value=_text(name, value)) for name, value in topic.settings.items()
        ),
    )
    request = CreateTopicsRequest(topics=(asked,), timeout=_TIMEOUT_MS, validate_only=False)
    (result,) = (await brokers.ask_here(principal(), CREATE_TOPICS, request)).topics
    raise_if_refused(result.error_code, result.error_message)
    return schemas.TopicName(name=result.name, id=str(result.topic_id), partitions=result.num_partitions)


async def _configure(brokers: Brokers, topic: Topic, settings: dict[str, Any]) -> None:
    changes = tuple(
        IncrementalConfig(
            name=name,
            config_operation=AlterOperation.DELETE if value is None else AlterOperation.SET,
            value=None if value is None else _text(name, value),
        )
        for name, value in settings.items()
    )
    resource = IncrementalConfigsResource(resource_type=_TOPIC_RESOURCE, resource_name=topic.name, configs=changes)
    request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
    (result,) = (await brokers.ask_here(principal(), INCREMENTAL_ALTER_CONFIGS, request)).responses
    raise_if_refused(result.error_code, result.error_message)


async def _grow(brokers: Brokers, topic: Topic, partitions: int) -> None:
    asked = CreatePartitionsTopic(name=topic.name, count=partitions, assignments=None)
    request = CreatePartitionsRequest(topics=(asked,), timeout=_TIMEOUT_MS, validate_only=False)
    (result,) = (await brokers.ask_here(principal(), CREATE_PARTITIONS, request)).results
    raise_if_refused(result.error_code, result.error_message)


async def _describe(brokers: Brokers, reader: MessageReader, topic: Topic) -> schemas.TopicDescription:
    resource = DescribeConfigsResource(resource_type=_TOPIC_RESOURCE, resource_name=topic.name)
    request = DescribeConfigsRequest(resources=(resource,), include_synonyms=False)
    (settings,) = (await brokers.ask_here(principal(), DESCRIBE_CONFIGS, request)).results
    raise_if_refused(settings.error_code, settings.error_message)
    indexes = range(min(topic.partition_count, _DESCRIBED_PARTITIONS_MAX))
    ends = dict(enumerate(await asyncio.gather(*(_ends(reader, topic, index) for index in indexes))))
    return schemas.TopicDescription(
        name=topic.name,
        id=str(topic.id),
        is_internal=is_internal(topic.name),
        settings={one.name: one.value for one in settings.configs},
        overrides=dict(topic.overrides),
        partitions=[_partition(brokers, topic, index, ends.get(index)) for index in range(topic.partition_count)],
    )


async def _ends(reader: MessageReader, topic: Topic, index: int) -> PartitionEnds | None:
    try:
        return await reader.ends(principal(), topic, index)
    except KafkaError:  # its leader is away: all else can still be told
        return None


def _partition(brokers: Brokers, topic: Topic, index: int, ends: PartitionEnds | None) -> schemas.TopicPartitionState:
    state, here = topic.partitions[index], brokers.broker.node_id
    is_alone = brokers.broker.node is None
    leader = here if is_alone else state.leader
    return schemas.TopicPartitionState(
        partition=index,
        leader=leader if is_alone or leader in brokers.broker.image.brokers else None,
        replicas=[here] if is_alone else list(state.replicas),
        in_sync=[here] if is_alone else list(state.in_sync),
        start_offset=None if ends is None else ends.start_offset,
        high_watermark=None if ends is None else ends.high_watermark,
    )


def _text(name: str, value: str | int | float | bool) -> str:
    text = setting_text(name, value)
    if "\0" in text:
        raise HttpProblem(422, "a setting's value is a text without NUL", kind="invalid-config")
    return text
