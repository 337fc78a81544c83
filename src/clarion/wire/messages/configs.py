"""Settings of topics, brokers, groups and loggers: tell and alter."""

from __future__ import annotations

from clarion.wire.messages import message

# DescribeConfigs v1-4. v2 same · v3 type and documentation of each setting · v4 flexible. `configuration_keys` None
# means every setting.


@message
class DescribeConfigsResource:
    resource_type: int
    resource_name: str
    configuration_keys: tuple[str, ...] | None = None


@message
class DescribeConfigsRequest:
    resources: tuple[DescribeConfigsResource, ...]
    include_synonyms: bool
    include_documentation: bool = False  # v3+


@message
class DescribeConfigsSynonym:
    name: str
    value: str | None = None
    source: int


@message
class DescribeConfigsResourceResult:
    name: str
    value: str | None = None
    read_only: bool
    config_source: int = -1
    is_sensitive: bool
    synonyms: tuple[DescribeConfigsSynonym, ...]
    config_type: int = 0  # v3+
    documentation: str | None = None  # v3+


@message
class DescribeConfigsResult:
    error_code: int = 0
    error_message: str | None = None
    resource_type: int
    resource_name: str
    configs: tuple[DescribeConfigsResourceResult, ...]


@message
class DescribeConfigsResponse:
    throttle_time: int = 0
    results: tuple[DescribeConfigsResult, ...]


# AlterConfigs v0-2: replace all settings of a resource. v1 same · v2 flexible.


@message
class AlterableConfig:
    name: str
    value: str | None = None


@message
class AlterConfigsResource:
    resource_type: int
    resource_name: str
    configs: tuple[AlterableConfig, ...]


@message
class AlterConfigsRequest:
    resources: tuple[AlterConfigsResource, ...]
    validate_only: bool


@message
class AlterConfigsResourceResponse:
    error_code: int = 0
    error_message: str | None = None
    resource_type: int
    resource_name: str


@message
class AlterConfigsResponse:
    throttle_time: int = 0
    responses: tuple[AlterConfigsResourceResponse, ...]


# IncrementalAlterConfigs v0-1: set, delete, append to or subtract from single settings. v1 flexible.


@message
class IncrementalConfig:
    name: str
    config_operation: int
    value: str | None = None


@message
class IncrementalConfigsResource:
    resource_type: int
    resource_name: str
    configs: tuple[IncrementalConfig, ...]


@message
class IncrementalAlterConfigsRequest:
    resources: tuple[IncrementalConfigsResource, ...]
    validate_only: bool


@message
class IncrementalConfigsResourceResponse:
    error_code: int = 0
    error_message: str | None = None
    resource_type: int
    resource_name: str


@message
class IncrementalAlterConfigsResponse:
    throttle_time: int = 0
    responses: tuple[IncrementalConfigsResourceResponse, ...]


# ListConfigResources v0-1: which resources have settings. v0 asks for client metrics alone · v1 any types; an empty
# list means all.


@message
class ListConfigResourcesRequest:
    resource_types: tuple[int, ...] = ()  # v1+


@message
class ConfigResource:
    resource_name: str
    resource_type: int = 16  # v1+


@message
class ListConfigResourcesResponse:
    throttle_time: int = 0
    error_code: int = 0
    config_resources: tuple[ConfigResource, ...]
