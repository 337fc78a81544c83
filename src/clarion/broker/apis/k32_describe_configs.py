"""DescribeConfigs v1-4: settings of topics and of this broker, with value, source and what stands behind it.

v2 same · v3 type and documentation of each setting · v4 flexible.

Every setting is listed, also those at their default: tools read all, change one and write all back. No keys, null or an
empty list, mean all of them. Left out: settings of groups and of client metrics, of which there are none; log levels.
The broker called "" stands for what was changed for all brokers at run time: nothing, since that cannot be done.
"""

from __future__ import annotations

import asyncio
from typing import Final

from clarion.broker.apis.config_entries import ConfigEntry, ResourceType, broker_entries, topic_entries
from clarion.broker.apis.refusals import REFUSALS, refusal_of
from clarion.broker.broker import Broker, RequestContext
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.names import check_topic_name
from clarion.wire.apis import DESCRIBE_CONFIGS
from clarion.wire.bridge import encode
from clarion.wire.messages.k32_describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

RESOURCES_MAX: Final = 10_000  # in one request; with documentation that is a reply of some 100 MB
_RESOURCES_PER_TURN: Final = 100
_ENCODED_IN_LOOP_MAX: Final = 100  # resources; more take long enough to be felt by others

Told = tuple[DescribeConfigsResourceResult, ...]


async def handle(
    broker: Broker, request: DescribeConfigsRequest, context: RequestContext
) -> DescribeConfigsResponse | bytes:
    description = Description(broker, request)
    results = []
    for number, asked in enumerate(dict.fromkeys(request.resources), start=1):
        results.append(description.of(asked, is_too_many=number > RESOURCES_MAX))
        if number % _RESOURCES_PER_TURN == 0:
            await asyncio.sleep(0)
    response = DescribeConfigsResponse(results=tuple(results))
    if len(results) <= _ENCODED_IN_LOOP_MAX:
        return response
    return await asyncio.get_running_loop().run_in_executor(
        None, encode, response, DESCRIBE_CONFIGS, context.version, "response"
    )


class Description:
    """What one request is told. Topics with the same overrides share their settings: most topics have none."""

    def __init__(self, broker: Broker, request: DescribeConfigsRequest) -> None:
        self._broker = broker
        self._request = request
        self._of_overrides: dict[tuple[tuple[str, str], ...], Told] = {}

    def of(self, asked: DescribeConfigsResource, *, is_too_many: bool) -> DescribeConfigsResult:
        code, message = ErrorCode.NONE, None
        told: Told = ()
        try:
            if is_too_many:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"at most {RESOURCES_MAX} resources in one request")
            told = self._settings(asked)
        except REFUSALS as error:
            code, message = refusal_of(error, asked.resource_name)
        wanted = frozenset(asked.configuration_keys or ())
        return DescribeConfigsResult(
            error_code=code,
            error_message=message,
            resource_type=asked.resource_type,
            resource_name=asked.resource_name,
            configs=tuple(config for config in told if config.name in wanted) if wanted else told,
        )

    def _settings(self, asked: DescribeConfigsResource) -> Told:
        match asked.resource_type:
            case ResourceType.TOPIC:
                return self._of_topic(asked.resource_name)
            case ResourceType.BROKER:
                return self._of_broker(asked.resource_name)
            case ResourceType.GROUP | ResourceType.CLIENT_METRICS if asked.resource_name:
                return ()
            case ResourceType.GROUP | ResourceType.CLIENT_METRICS:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "the name must not be empty")
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"resource type {asked.resource_type} has no settings here")

    def _of_topic(self, name: str) -> Told:
        check_topic_name(name)
        overrides = self._broker.known_topic(name).overrides
        key = tuple(sorted(overrides.items()))
        told = self._of_overrides.get(key)
        if told is None:
            told = self._of_overrides[key] = self._tell(topic_entries(overrides, self._broker.partitions.defaults))
        return told

    def _of_broker(self, name: str) -> Told:
        if name == "":
            return ()
        if name != str(self._broker.node_id):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"this is broker {self._broker.node_id}, not {name[:100]!r}")
        return self._tell(broker_entries(self._broker))

    def _tell(self, entries: list[ConfigEntry]) -> Told:
        return tuple(_told(entry, self._request) for entry in entries)


def _told(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms = entry.synonyms if request.include_synonyms else ()
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        config_source=entry.source,
        is_sensitive=False,
        synonyms=tuple(DescribeConfigsSynonym(name=one.name, value=one.value, source=one.source) for one in synonyms),
        config_type=entry.kind,
        documentation=entry.doc if request.include_documentation else None,
    )
