"""What is asked of a request before its body is read: how large it may be, and whether others may follow it.

Only few requests have a reason to be large: Produce and Fetch, and what speaks for a whole group. For all others a
small limit keeps decoding short. And where a few bytes may ask for a large reply, a connection's next request waits
until that reply is on its way (Apache Kafka does so with every request): what a client that does not read can make us
hold is then one reply, and not one for each of the requests it may have in flight. So does the next request behind one
that changes something and may pause before it does: what a client asks first happens first.
"""

from __future__ import annotations

from typing import Final

from clarion.wire.apis import (
    API_VERSIONS,
    CONSUMER_GROUP_HEARTBEAT,
    FIND_COORDINATOR,
    HEARTBEAT,
    INIT_PRODUCER_ID,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_OFFSETS,
    OFFSET_COMMIT,
    OFFSET_FOR_LEADER_EPOCH,
    SHARE_ACKNOWLEDGE,
    SHARE_FETCH,
    SHARE_STATE_APIS,
    SYNC_GROUP,
)

_FOR_A_WHOLE_GROUP: Final = frozenset({JOIN_GROUP, SYNC_GROUP, OFFSET_COMMIT, CONSUMER_GROUP_HEARTBEAT})
_GROUP_FRAME_SHARE: Final = 4  # of the largest frame: 25 MB are the assignment of 100,000 partitions, many times over
_DECODED_AT_ONCE_BYTES: Final = 4 * 1024  # two milliseconds at worst, with structs of three bytes each
_SETTLED_AT_ONCE_BYTES: Final = 10 * 1024  # 500 acknowledgements, one for each record; here structs have six bytes
_ANSWERED_BRIEFLY: Final = frozenset(
    {
        API_VERSIONS,
        FIND_COORDINATOR,
        HEARTBEAT,
        INIT_PRODUCER_ID,
        JOIN_GROUP,  # waits for others, whom a heartbeat behind it must not wait for
        LEAVE_GROUP,
        LIST_OFFSETS,
        OFFSET_COMMIT,
        OFFSET_FOR_LEADER_EPOCH,
        SYNC_GROUP,
        *SHARE_STATE_APIS,  # of brokers: each is about a share-partition of its own, and waits for a commit
    }
)


def frame_bytes_max(api_key: int, small_frame_bytes_max: int, frame_bytes_max: int) -> int:
    """For every API but Produce and Fetch, which may be as large as frames may be."""
    if api_key in _FOR_A_WHOLE_GROUP:
        return max(small_frame_bytes_max, frame_bytes_max // _GROUP_FRAME_SHARE)
    return small_frame_bytes_max


def decoded_at_once_bytes(api_key: int) -> int:
    """A request that is longer is decoded in a thread, which takes longer in all, and keeps nobody else waiting."""
    return _SETTLED_AT_ONCE_BYTES if api_key in (SHARE_FETCH, SHARE_ACKNOWLEDGE) else _DECODED_AT_ONCE_BYTES


def is_answered_alone(api_key: int) -> bool:
    """Its reply may be many times as large as the request, or its handler pauses before it changes something."""
    return api_key not in _ANSWERED_BRIEFLY
