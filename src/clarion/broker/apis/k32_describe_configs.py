"""DescribeConfigs v1-4: settings of topics and of this broker, with value, source and what stands behind it.

v2 same · v3 type and documentation of each setting · v4 flexible.

Every setting is listed, also those at their default: tools read all, change one and write all back. Left out: settings
of groups and of client metrics, of which there are none; log levels. The broker called "" stands for what was changed
for all brokers at run time: nothing, since that cannot be done.
"""

from __future__ import annotations

from clarion.broker.apis.config_entries import ConfigEntry, ResourceType, broker_entries, topic_entries
from clarion.broker.apis.refusals import REFUSALS, refusal_of
from clarion.broker.broker import Broker, RequestContext
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.names import check_topic_name
from clarion.wire.messages.k32_describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)


async def handle(broker: Broker, request: DescribeConfigsRequest, context: RequestContext) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(results=tuple(_describe(broker, request, one) for one in request.resources))


def _describe(broker: Broker, request: DescribeConfigsRequest, asked: DescribeConfigsResource) -> DescribeConfigsResult:
    try:
        entries = _entries(broker, asked)
    except REFUSALS as error:
        refusal = refusal_of(error, asked.resource_name)
        return DescribeConfigsResult(
            error_code=refusal.code,
            error_message=refusal.message,
            resource_type=asked.resource_type,
            resource_name=asked.resource_name,
            configs=(),
        )
    wanted = None if asked.configuration_keys is None else frozenset(asked.configuration_keys)
    return DescribeConfigsResult(
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
        configs=tuple(_told(request, entry) for entry in entries if wanted is None or entry.name in wanted),
    )


def _entries(broker: Broker, asked: DescribeConfigsResource) -> list[ConfigEntry]:
    match asked.resource_type:
        case ResourceType.TOPIC:
            check_topic_name(asked.resource_name)
            topic = broker.known_topic(asked.resource_name)
            return topic_entries(topic.overrides, broker.partitions.defaults)
        case ResourceType.BROKER:
            return _broker_entries(broker, asked.resource_name)
        case ResourceType.GROUP | ResourceType.CLIENT_METRICS if asked.resource_name:
            return []
        case ResourceType.GROUP | ResourceType.CLIENT_METRICS:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the name must not be empty")
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"resource type {asked.resource_type} has no settings here")


def _broker_entries(broker: Broker, name: str) -> list[ConfigEntry]:
    if name == "":
        return []
    if name != str(broker.node_id):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"this is broker {broker.node_id}, not {name[:100]!r}")
    return broker_entries(broker)


def _told(request: DescribeConfigsRequest, entry: ConfigEntry) -> DescribeConfigsResourceResult:
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
