"""DescribeConfigs v1-4: settings of a resource, with value, source and what stands behind it.

v2 same · v3 type and documentation of each setting · v4 flexible.

Topics, this broker, what was changed for all brokers (the broker called ""), groups, subscriptions to clients'
metrics, the levels of loggers. Every setting is listed, also those at their default: tools read all, change one and
write all back. No keys, null or an empty list, mean all of them. A group or subscription that nobody has heard of has
the defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from clarion.broker.apis.config_entries import (
    ConfigEntry,
    ResourceType,
    all_brokers_entries,
    broker_entries,
    client_metrics_entries,
    group_entries,
    logger_entries,
    require_for_configs,
    topic_entries,
)
from clarion.broker.apis.refusals import REFUSALS, refusal_of
from clarion.broker.authorizer import Operation, Principal
from clarion.broker.broker import Broker, RequestContext
from clarion.broker.dynamic_settings import ALL_BROKERS
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.names import check_topic_name
from clarion.wire.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

RESOURCES_MAX: Final = 10_000  # in one request: a reply of some 30 MB
DOCUMENTED_MAX: Final = 2_000  # with documentation, which makes it four times as long

Told = tuple[DescribeConfigsResourceResult, ...]


async def handle(broker: Broker, request: DescribeConfigsRequest, context: RequestContext) -> DescribeConfigsResponse:
    description = Description(broker, request, context.principal)
    results = []
    resources_max = DOCUMENTED_MAX if request.include_documentation else RESOURCES_MAX
    async for number, asked in broker.turns.each(enumerate(dict.fromkeys(request.resources), start=1)):
        results.append(description.of(asked, resources_max if number > resources_max else None))
    return DescribeConfigsResponse(results=tuple(results))


class Description:
    """What one request is told. Resources with the same settings share them: most have none of their own."""

    def __init__(self, broker: Broker, request: DescribeConfigsRequest, who: Principal) -> None:
        self._broker = broker
        self._who = who
        self._request = request
        self._known: dict[tuple[object, ...], Told] = {}

    def of(self, asked: DescribeConfigsResource, exceeded: int | None) -> DescribeConfigsResult:
        code, message = ErrorCode.NONE, None
        told: Told = ()
        try:
            if exceeded is not None:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"at most {exceeded} resources in one request")
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
        name, dynamic = asked.resource_name, self._broker.dynamic
        require_for_configs(self._broker, self._who, Operation.DESCRIBE_CONFIGS, asked.resource_type, name)
        match asked.resource_type:
            case ResourceType.TOPIC:
                check_topic_name(name)
                overrides = self._broker.registry.known(name).overrides
                return self._tell(ResourceType.TOPIC, overrides, lambda: topic_entries(overrides, dynamic))
            case ResourceType.BROKER if name == ALL_BROKERS:
                return self._tell(ResourceType.BROKER, {}, lambda: all_brokers_entries(self._broker))
            case ResourceType.BROKER:
                self._check_node(name, "Unexpected broker id, expected {} or empty string, but received {}")
                return self._tell(ResourceType.BROKER, {"": name}, lambda: broker_entries(self._broker))
            case ResourceType.BROKER_LOGGER:
                _check_not_empty(name, "Broker id must not be empty")
                self._check_node(name, "Unexpected broker id, expected {} but received {}")
                return self._tell(ResourceType.BROKER_LOGGER, {}, logger_entries)
            case ResourceType.GROUP:
                _check_not_empty(name, "Group name must not be empty")
                return self._tell(ResourceType.GROUP, dynamic.of_group(name), lambda: group_entries(name, dynamic))
            case ResourceType.CLIENT_METRICS:
                _check_not_empty(name, "Client metrics subscription name must not be empty")
                told = dynamic.of_client_metrics(name)
                return self._tell(ResourceType.CLIENT_METRICS, told, lambda: client_metrics_entries(name, dynamic))
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"resource type {asked.resource_type} has no settings here")

    def _tell(self, kind: ResourceType, own: Mapping[str, str], entries: Callable[[], list[ConfigEntry]]) -> Told:
        key = (kind, *sorted(own.items()))
        told = self._known.get(key)
        if told is None:
            told = self._known[key] = tuple(_told(entry, self._request) for entry in entries())
        return told

    def _check_node(self, name: str, wording: str) -> None:
        node_id = str(self._broker.node_id)
        if name != node_id:
            is_number = name.isascii() and name.isdecimal()
            wrong = (
                wording.format(node_id, name[:100])
                if is_number
                else f"Broker id must be an integer, but it is: {name[:100]}"
            )
            raise KafkaError(ErrorCode.INVALID_REQUEST, wrong)


def _check_not_empty(name: str, complaint: str) -> None:
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, complaint)


def _told(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms = entry.synonyms if request.include_synonyms else ()
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=tuple(DescribeConfigsSynonym(name=one.name, value=one.value, source=one.source) for one in synonyms),
        config_type=entry.kind,
        documentation=entry.doc if request.include_documentation else None,
    )
