"""How long a name may be.

Ids stay in memory, in the log and in metrics, once per member or offset, and whoever knows an address may invent them.
"""

from __future__ import annotations

from uuid import UUID

from clarion.model.errors import ErrorCode, KafkaError

NAME_BYTES_MAX = 255  # as a file name or a host name; Kafka has no limit below the 32767 bytes of its strings
_UUID_BYTES = 37  # with the dash before it


def check_group_id(group_id: str) -> None:
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "a group id cannot be empty")
    check_group_id_of_offsets(group_id)


def check_group_id_of_offsets(group_id: str) -> None:
    """Consumers without a group have always been able to keep offsets under the empty id."""
    if not _fits(group_id):
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, f"a group id is longer than {NAME_BYTES_MAX} bytes")


def check_names(*names: str | None) -> None:
    for name in names:
        if name is not None and not _fits(name):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"a name is longer than {NAME_BYTES_MAX} bytes")


def new_member_id(prefix: str, uuid: UUID) -> str:
    """As Kafka makes them, from the client's id or the instance's; a long one is cut."""
    return f"{shortened(prefix, NAME_BYTES_MAX - _UUID_BYTES)}-{uuid}"


def shortened(name: str, bytes_max: int = NAME_BYTES_MAX) -> str:
    return name.encode()[:bytes_max].decode(errors="ignore")


def _fits(name: str) -> bool:
    return len(name.encode()) <= NAME_BYTES_MAX
