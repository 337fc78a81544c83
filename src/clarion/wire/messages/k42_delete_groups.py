"""DeleteGroups (42), versions 0–2."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class DeleteGroupsRequest:
    groups_names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class DeletableGroupResult:
    group_id: str
    error_code: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class DeleteGroupsResponse:
    throttle_time: int = 0
    results: tuple[DeletableGroupResult, ...] = ()
