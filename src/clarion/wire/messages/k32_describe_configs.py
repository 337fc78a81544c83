"""DescribeConfigs v1-4.

v2 same · v3 type and documentation of each setting · v4 flexible.

`configuration_keys` None means every setting.
"""

from __future__ import annotations

from clarion.wire.messages import message


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
