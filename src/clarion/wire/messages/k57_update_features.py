"""UpdateFeatures v0-2.

v0 `allow_downgrade` · v1 `upgrade_type` instead, `validate_only` · v2 no result per feature any more.
"""

from __future__ import annotations

from clarion.wire.messages import message


@message
class FeatureUpdateKey:
    feature: str
    max_version_level: int
    upgrade_type: int = 1  # v1+
    allow_downgrade: bool = False  # v0


@message
class UpdateFeaturesRequest:
    timeout: int = 60000
    feature_updates: tuple[FeatureUpdateKey, ...]
    validate_only: bool = False  # v1+


@message
class UpdatableFeatureResult:
    feature: str
    error_code: int = 0
    error_message: str | None = None


@message
class UpdateFeaturesResponse:
    throttle_time: int = 0
    error_code: int = 0
    error_message: str | None = None
    results: tuple[UpdatableFeatureResult, ...] = ()  # v0-1
