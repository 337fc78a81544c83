"""Heartbeat (12), versions 0–4. v3 adds static members."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class HeartbeatRequest:
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class HeartbeatResponse:
    throttle_time: int = 0
    error_code: int = 0
