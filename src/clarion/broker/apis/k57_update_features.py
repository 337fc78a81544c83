"""UpdateFeatures v0-2: raise or lower what a cluster may do.

v0 `allow_downgrade` · v1 `upgrade_type` instead, `validate_only` · v2 no result per feature, one error for all.

Every feature of this broker is fixed at the level that ApiVersions tells: to ask for that level is fine and changes
nothing, any other is refused.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from clarion.broker.broker import Broker, RequestContext
from clarion.model.errors import ErrorCode, KafkaError
from clarion.wire.api_versions import FEATURES
from clarion.wire.messages.k57_update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

_FIRST_VERSION_WITH_ONE_ERROR: Final = 2


async def handle(broker: Broker, request: UpdateFeaturesRequest, context: RequestContext) -> UpdateFeaturesResponse:
    times_named = Counter(update.feature for update in request.feature_updates)
    results = [_answer(update, times_named[update.feature] > 1) for update in request.feature_updates]
    refused = next((result for result in results if result.error_code), None)
    if context.version < _FIRST_VERSION_WITH_ONE_ERROR or refused is None:
        return UpdateFeaturesResponse(results=tuple(results))
    return UpdateFeaturesResponse(
        error_code=refused.error_code, error_message=f"nothing was updated, because of one: {refused.error_message}"
    )


def _answer(update: FeatureUpdateKey, is_named_twice: bool) -> UpdatableFeatureResult:
    try:
        if is_named_twice:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{update.feature} is named twice in one request")
        _check(update)
    except KafkaError as error:
        return UpdatableFeatureResult(feature=update.feature, error_code=error.code, error_message=error.message)
    return UpdatableFeatureResult(feature=update.feature)


def _check(update: FeatureUpdateKey) -> None:
    level = FEATURES.get(update.feature)
    if level is None:
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION, f"this broker does not know the feature {update.feature[:100]!r}"
        )
    if update.max_version_level != level:
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"{update.feature} is fixed at level {level} in this broker and cannot become {update.max_version_level}",
        )
