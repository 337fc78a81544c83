"""How much memory groups may take, by estimate.

What clients tell a coordinator stays in memory: ids, subscriptions, assignments, offsets with their metadata. One
ledger, shared by all shards of a broker, adds up what each group holds, and what would go beyond a limit is refused
before anything is changed. The numbers are what CPython takes, measured (`tests/groups/test_memory.py`), not exact.
"""

from __future__ import annotations

from enum import Enum

from clarion.groups.records import CommittedOffset, MemberMetadata

MEMBER_BYTES = 2_500  # its objects, timers, and dictionary entries, with nothing in them
PENDING_BYTES = 1_000
OFFSET_BYTES = 500
GROUP_BYTES = 1_500
PARTITION_BYTES = 100  # in one assignment of a KIP-848 group


class Share(Enum):
    """A group's account, in two parts: a commit must not cost a look at all members."""

    MEMBERS = "members"
    OFFSETS = "offsets"


class Ledger:
    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self._held: dict[tuple[str, Share], int] = {}

    def has_room(self, more: int) -> bool:
        return self.used + more <= self.bytes_max

    def note(self, group_id: str, share: Share, held: int) -> None:
        """What a group holds now, in place of what it held before."""
        key = (group_id, share)
        self.used += held - self._held.get(key, 0)
        if held:
            self._held[key] = held
        else:
            self._held.pop(key, None)


def weight_of_offset(offset: CommittedOffset) -> int:
    return OFFSET_BYTES + len(offset.metadata)


def weight_of_member(member: MemberMetadata) -> int:
    names = sum(map(len, member.subscribed_topic_names))
    protocols = weight_of_protocols(member.classic.protocols) if member.classic else 0
    return MEMBER_BYTES + names + len(member.subscribed_topic_regex or "") + protocols


def weight_of_protocols(protocols: tuple[tuple[str, bytes], ...]) -> int:
    return sum(len(name) + len(metadata) for name, metadata in protocols)
