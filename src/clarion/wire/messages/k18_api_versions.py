"""ApiVersions v0-4: which APIs and features this broker speaks.

v1 throttle time · v3 flexible (the response header stays v0), the client's name and version, features · v4 a feature's
minimum may be 0.

Left out: `zk_migration_ready` is always false.
"""

from __future__ import annotations

from clarion.wire.messages import message


@message
class ApiVersionsRequest:
    client_software_name: str = ""  # v3+
    client_software_version: str = ""  # v3+


@message
class ApiVersion:
    api_key: int
    min_version: int
    max_version: int


@message
class SupportedFeatureKey:
    name: str
    min_version: int
    max_version: int


@message
class FinalizedFeatureKey:
    name: str
    max_version_level: int
    min_version_level: int


@message
class ApiVersionsResponse:
    error_code: int = 0
    api_keys: tuple[ApiVersion, ...]
    throttle_time: int = 0  # v1+
    supported_features: tuple[SupportedFeatureKey, ...] = ()  # v3+
    finalized_features_epoch: int = -1  # v3+
    finalized_features: tuple[FinalizedFeatureKey, ...] = ()  # v3+
    zk_migration_ready: bool = False  # v3+
