"""UpdateFeatures v0-2.

v0 `allow_downgrade` · v1 `upgrade_type` instead, `validate_only` · v2 no result per feature any more.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class FeatureUpdateKey:
    feature: str
    max_version_level: int
    upgrade_type: int = 1  # v1+
    allow_downgrade: bool = False  # v0


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateFeaturesRequest:
    timeout: int = 60000
    feature_updates: tuple[FeatureUpdateKey, ...]
    validate_only: bool = False  # v1+


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdatableFeatureResult:
    feature: str
    error_code: int = 0
    error_message: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateFeaturesResponse:
    throttle_time: int = 0
    error_code: int = 0
    error_message: str | None = None
    results: tuple[UpdatableFeatureResult, ...] = ()  # v0-1
