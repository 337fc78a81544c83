"""How long a name may be.

Kafka's record keys and classic values have 16-bit string lengths, and flexible requests do not: what could never be
written is refused at the door.
"""

from __future__ import annotations

from clarion.model.errors import ErrorCode, KafkaError

NAME_BYTES_MAX = 8 * 1024  # no honest id comes near it, and an id with a UUID behind it still fits into 32767 bytes


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


def _fits(name: str) -> bool:
    return len(name.encode()) <= NAME_BYTES_MAX
