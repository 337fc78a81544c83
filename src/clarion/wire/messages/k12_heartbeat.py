"""Heartbeat (12), versions 0–4. v3 adds static members."""

from __future__ import annotations

from clarion.wire.messages import message


@message
class HeartbeatRequest:
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None


@message
class HeartbeatResponse:
    throttle_time: int = 0
    error_code: int = 0
