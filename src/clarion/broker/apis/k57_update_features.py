"""UpdateFeatures v0-2: raise or lower what a cluster may do.

v0 `allow_downgrade` · v1 `upgrade_type` instead, `validate_only` · v2 no result per feature.

In a cluster `clarion.version` is the level of what brokers write into their store (`cluster.features`): it can be
raised when all of them know it. Every other feature is fixed at the level that ApiVersions tells: to ask for that level
is fine and changes nothing. What cannot be is refused, and with it the whole request, as in Kafka.
"""

from __future__ import annotations

from collections import Counter

from clarion.broker.authorizer import Operation
from clarion.broker.broker import Broker, RequestContext
from clarion.cluster.features import CLUSTER_FEATURE, check_raise
from clarion.model.errors import ErrorCode, KafkaError
from clarion.wire.api_versions import FEATURES
from clarion.wire.messages.controller import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)


async def handle(broker: Broker, request: UpdateFeaturesRequest, context: RequestContext) -> UpdateFeaturesResponse:
    broker.resolver.require_cluster(context.principal, Operation.ALTER)
    times_named = Counter(update.feature for update in request.feature_updates)
    try:
        for update in request.feature_updates:
            if times_named[update.feature] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"{update.feature[:100]} is named twice in one request")
            _check(broker, update)
        if not request.validate_only:
            await _perform(broker, request.feature_updates)
    except KafkaError as error:
        message = f"The update failed for all features since the following feature had an error: {error.message}"
        return UpdateFeaturesResponse(error_code=error.code, error_message=message)
    results = tuple(UpdatableFeatureResult(feature=update.feature) for update in request.feature_updates)
    return UpdateFeaturesResponse(results=results)


def _check(broker: Broker, update: FeatureUpdateKey) -> None:
    if broker.node is not None and update.feature == CLUSTER_FEATURE:
        return check_raise(broker.image, update.max_version_level)
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


async def _perform(broker: Broker, updates: tuple[FeatureUpdateKey, ...]) -> None:
    for update in updates:
        if broker.node is not None and update.feature == CLUSTER_FEATURE:
            await broker.node.raise_feature_level(update.max_version_level)
