"""The reply to ApiVersions: the first thing every client asks, so it is written once per version and kept.

A client that asks in a version we do not know gets a version 0 reply with UNSUPPORTED_VERSION and our ranges, and asks
again. Both parts of the feature list say `group.version` 1: the new group protocol (KIP-848) is there and switched on.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

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

FEATURES: Final[dict[str, int]] = {"group.version": 1}
"""Each feature at its one level."""

_FEATURES_EPOCH: Final = 0  # features are fixed in the code, so their first epoch is their last
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def encode_reply(version: int) -> bytes:
    """The body for a request of `version`, known or not."""
    if not APIS[API_VERSIONS].speaks(version):
        return _encoded(0, ErrorCode.UNSUPPORTED_VERSION)
    return _encoded(version, ErrorCode.NONE)


def encode_refusal(version: int, code: ErrorCode) -> bytes:
    """A reply that says no, and still tells the ranges."""
    return _encoded(version, code)


def names_its_software(request: ApiVersionsRequest, version: int) -> bool:
    """Kafka's rule (KIP-511): from v3 on, letters, digits, and '-' and '.' between them."""
    if version < 3:
        return True
    return all(_SOFTWARE.fullmatch(word) for word in (request.client_software_name, request.client_software_version))


@cache
def _encoded(version: int, code: ErrorCode) -> bytes:
    response = ApiVersionsResponse(
        error_code=code,
        api_keys=tuple(ApiVersion(api_key=key, min_version=low, max_version=high) for key, low, high in ADVERTISED),
        supported_features=tuple(
            SupportedFeatureKey(name=name, min_version=level, max_version=level) for name, level in FEATURES.items()
        ),
        finalized_features_epoch=_FEATURES_EPOCH,
        finalized_features=tuple(
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in FEATURES.items()
        ),
    )
    return bridge.encode(response, API_VERSIONS, version, "response")
