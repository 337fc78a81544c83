"""FindCoordinator (10), versions 0–6. v1 adds the key type, v4 asks for many keys at once, v6 for share groups."""

from __future__ import annotations

from clarion.wire.messages import message


@message
class FindCoordinatorRequest:
    """Up to v3 `key`, from v4 `coordinator_keys`."""

    key: str = ""
    key_type: int = 0
    coordinator_keys: tuple[str, ...] = ()


@message
class Coordinator:
    key: str
    node_id: int
    host: str
    port: int
    error_code: int = 0
    error_message: str | None = None


@message
class FindCoordinatorResponse:
    """Up to v3 the single answer, from v4 `coordinators`."""

    throttle_time: int = 0
    error_code: int = 0
    error_message: str | None = None
    node_id: int = -1
    host: str = ""
    port: int = -1
    coordinators: tuple[Coordinator, ...] = ()
