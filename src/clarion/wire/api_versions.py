"""The reply to ApiVersions: the first thing every client asks, so it is written once per version and kept.

A client that asks in a version we do not know gets a version 0 reply with UNSUPPORTED_VERSION and our ranges, and asks
again. Both parts of the feature list say `group.version` 1 and `share.version` 1: the new group protocol (KIP-848) and
share groups (KIP-932) are there and switched on. In a cluster they also say which level of its own features brokers
know, and which is in force.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final, NamedTuple

from clarion.model.errors import ErrorCode
from clarion.wire import bridge
from clarion.wire.apis import ADVERTISED, API_VERSIONS, APIS
from clarion.wire.messages.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

FEATURES: Final[dict[str, int]] = {"group.version": 1, "share.version": 1}
"""Each feature at its one level."""

_FEATURES_EPOCH: Final = 0  # without a cluster features are fixed, so their first epoch is their last
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


class ClusterLevel(NamedTuple):
    """A feature whose level can rise."""

    name: str
    known: int  # the highest that this broker knows
    in_force: int


def encode_reply(version: int, cluster: ClusterLevel | None = None) -> bytes:
    """The body for a request of `version`, known or not."""
    if not APIS[API_VERSIONS].speaks(version):
        return _encoded(0, ErrorCode.UNSUPPORTED_VERSION)
    return _encoded(version, ErrorCode.NONE, cluster)


def encode_refusal(version: int, code: ErrorCode) -> bytes:
    """A reply that says no, and still tells the ranges."""
    return _encoded(version, code)


def names_its_software(request: ApiVersionsRequest, version: int) -> bool:
    """Kafka's rule (KIP-511): from v3 on, letters, digits, and '-' and '.' between them."""
    if version < 3:
        return True
    return all(_SOFTWARE.fullmatch(word) for word in (request.client_software_name, request.client_software_version))


@cache
def _encoded(version: int, code: ErrorCode, cluster: ClusterLevel | None = None) -> bytes:
    rising = [] if cluster is None else [cluster]
    supported = [SupportedFeatureKey(name=one.name, min_version=1, max_version=one.known) for one in rising]
    finalized = [
        FinalizedFeatureKey(name=one.name, max_version_level=one.in_force, min_version_level=one.in_force)
        for one in rising
    ]
    response = ApiVersionsResponse(
        error_code=code,
        api_keys=tuple(ApiVersion(api_key=key, min_version=low, max_version=high) for key, low, high in ADVERTISED),
        supported_features=tuple(
            SupportedFeatureKey(name=name, min_version=level, max_version=level) for name, level in FEATURES.items()
        )
        + tuple(supported),
        finalized_features_epoch=_FEATURES_EPOCH if cluster is None else cluster.in_force,
        finalized_features=tuple(
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in FEATURES.items()
        )
        + tuple(finalized),
    )
    return bridge.encode(response, API_VERSIONS, version, "response")
