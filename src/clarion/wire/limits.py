"""How much one request may ask a reader to build, whatever its bytes say."""

from __future__ import annotations

from typing import Final

from clarion.model.errors import ErrorCode, KafkaError
from clarion.wire import apis

ELEMENTS_MAX: Final = 250_000
"""Array elements and tagged fields in one message.

An element may be a single byte on the wire and a hundred in memory: 250,000 take about half a second and some tens
of megabytes. That is for replies; of requests each API takes what honest clients of it may need.
"""

_REQUEST_ELEMENTS_MAX: Final = 20_000  # as many topics, partitions or groups as anybody names at once
_PARTITIONS_MAX: Final = 50_000  # where tools name every partition of a broker
_MEMBERS_MAX: Final = 2_000  # where a client speaks of itself, or of a few others
_REQUEST_ELEMENTS_MAX_OF: Final = {
    apis.LIST_OFFSETS: _PARTITIONS_MAX,
    apis.DESCRIBE_LOG_DIRS: _PARTITIONS_MAX,
    apis.WRITE_SHARE_GROUP_STATE: _PARTITIONS_MAX,  # every record of a window may be in a state of its own
    apis.JOIN_GROUP: _MEMBERS_MAX,
    apis.LEAVE_GROUP: _MEMBERS_MAX,
}

PRODUCE_ELEMENTS_MAX: Final = 10_000  # a batch has seventy bytes at least, and a request a megabyte by default
FETCH_ELEMENTS_MAX: Final = 20_000  # once: from then on a session names what has changed


def request_elements_max(api_key: int) -> int:
    return _REQUEST_ELEMENTS_MAX_OF.get(api_key, _REQUEST_ELEMENTS_MAX)


TAGGED_FIELDS_MAX: Final = 16
"""Unknown tagged fields in one struct of a hand-written request. Kafka's own structs have at most four; a frame of
100 MB that is nothing but tagged fields must not hold the loop for seconds.
"""

# What a producer may put into one request, and what looking into it may cost. Each batch of an honest one shrinks by
# less than this factor; a request that carries more bytes has earned more work, so that large requests are no crime.
UNPACKED_BYTES_MAX: Final = 64 * 1024 * 1024  # one batch; producers fill a few megabytes before they compress
_UNPACKED_PER_BYTE: Final = 32
_UNPACKING_FAILED_BYTES: Final = UNPACKED_BYTES_MAX // 4  # nobody knows how far it came: so few failures are let pass

# A record costs a microsecond or two, a header a third of one. Clients put a few thousand records into a batch.
_STEPS: Final = 100_000
_BYTES_PER_STEP: Final = 16
_STEPS_MAX: Final = 1_000_000  # about a second of a thread


class WorkBudget:
    """How much may be unpacked and looked at, in sum over all batches of one request, or for one stored batch.

    It is charged before the work is done, wherever the amount is known before; whoever exceeds it gets a KafkaError.
    """

    __slots__ = ("steps_left", "unpacked_bytes_left")

    def __init__(self, steps: int, unpacked_bytes: int) -> None:
        self.steps_left = steps  # a record or a record's header is one step
        self.unpacked_bytes_left = unpacked_bytes

    @classmethod
    def for_bytes(cls, size: int) -> WorkBudget:
        """What `size` bytes from a client, or one stored batch of that size, may cost."""
        return cls(
            min(_STEPS + size // _BYTES_PER_STEP, _STEPS_MAX),
            UNPACKED_BYTES_MAX + size * _UNPACKED_PER_BYTE,
        )

    @property
    def batch_bytes_max(self) -> int:
        """How large the next batch may become when it is unpacked."""
        return min(self.unpacked_bytes_left, UNPACKED_BYTES_MAX)

    def spend_steps(self, count: int, what: str) -> None:
        if count > self.steps_left:
            # This error makes Kafka's own client cut the batch in two and send it again.
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"{count} {what}; where records are looked at one by one, {self.steps_left} more are taken "
                "from this request",
            )
        self.steps_left -= count

    def spend_bytes(self, count: int) -> None:
        self.unpacked_bytes_left = max(0, self.unpacked_bytes_left - count)

    def note_failed_unpacking(self) -> None:
        self.spend_bytes(_UNPACKING_FAILED_BYTES)
