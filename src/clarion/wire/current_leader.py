"""The broker that should have been asked, and where it listens (KIP-951): in the replies of Produce and Fetch.

Never one without the other. A broker that has come since a client last asked for metadata is unknown to it; a client
that is told to go there by its number alone fails (kafka-python 3.0 lets its application hear of it).
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from clarion.wire.fields import INT32, NO_TAGS, compact_count, compact_nullable_string, compact_string, uvarint

_LEADER_TAG = Struct(">BBiiB")  # its number, nine bytes: id, epoch, no tags


class CurrentLeader(NamedTuple):
    node_id: int
    epoch: int
    host: str
    port: int
    rack: str | None = None


def leader_tag(number: int, leader: CurrentLeader) -> bytes:
    """The tagged field of a partition that says who leads it."""
    return _LEADER_TAG.pack(number, 9, leader.node_id, leader.epoch, 0)


def endpoint_tags(leaders: Sequence[CurrentLeader]) -> bytes:
    """All tagged fields of a reply whose partitions name these leaders: where they are, each once."""
    if not leaders:
        return NO_TAGS
    nodes = {one.node_id: one for one in leaders}
    parts = [compact_count(len(nodes))]
    for one in nodes.values():
        parts += [INT32.pack(one.node_id), compact_string(one.host), INT32.pack(one.port)]
        parts += [compact_nullable_string(one.rack), NO_TAGS]
    endpoints = b"".join(parts)
    return b"\x01\x00" + uvarint(len(endpoints)) + endpoints  # one field, number 0
