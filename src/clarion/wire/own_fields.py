"""Tagged fields of Clarion's own in Kafka's messages, written as the tables of `wire.tables` write Kafka's.

Their numbers begin at 10000: Kafka's own count up from 0, and whoever does not know a tagged field passes it over.
Where one is absent, the message means what it means in Kafka.
"""

from __future__ import annotations

from typing import Final

Fields = dict[str, tuple[str, ...]]  # by the line of the table below which they stand

_ACKNOWLEDGEMENTS: Final[Fields] = {
    "acknowledgement_batches [struct]": (
        "delay_ms int64 tag 10000 = -1",  # of a release: it comes again no earlier; -1: as the group's rules say
        "reason string tag 10001",  # of a rejection
        "extend_ms int64 tag 10002",  # of a renewal: the lock ends so much later than now; 0: as the rules say
    )
}
_STATE_BATCHES: Final[Fields] = {
    "state_batches [struct]": (
        "available_at_ms int64 tag 10000",  # as in the records of `__share_group_state`
        "reason string tag 10001",
    )
}
# The one that was read, or is to be changed.
_STATE_VERSION: Final[Fields] = {"partitions [struct]": ("version int64 tag 10000 = -1",)}
# Which subscription of its name it is of: when that was made; 0: nobody has said.
_STATE_SUBSCRIPTION: Final[Fields] = {"partitions [struct]": ("subscription_ms int64 tag 10001",)}
_STATE_VERSION_AND_SUBSCRIPTION: Final[Fields] = {
    "partitions [struct]": (*_STATE_VERSION["partitions [struct]"], *_STATE_SUBSCRIPTION["partitions [struct]"])
}
_WHOLE_MESSAGE: Final = ""
# Who asks, as a replica says it that fetches: only brokers know the secret of a broker.
_SENDER: Final[Fields] = {
    _WHOLE_MESSAGE: (
        "broker_id int32 tag 10000 = -1",
        "broker_epoch int64 tag 10001 = -1",
        "secret string tag 10002",
    )
}
# Who needs how much of a partition, and since when: its oldest message that is needed was written then.
_HOLDERS: Final[Fields] = {
    "partitions [struct]": (
        "holders [struct] 2+ tag 10000",
        "  name string",
        "  is_group bool",
        "  until_acknowledged bool",
        "  from_offset int64",
        "  held_bytes int64",
        "  since_ms int64",
    )
}

# A reader that was made for subscriptions: it is not surprised that a filter keeps messages back.
_READER: Final[Fields] = {_WHOLE_MESSAGE: ("knows_filters bool tag 10000",)}

OWN_FIELDS: Final[dict[str, Fields]] = {
    "ShareGroupHeartbeatRequest": _READER,
    "ShareFetchRequest": _ACKNOWLEDGEMENTS | _READER,
    "ShareAcknowledgeRequest": _ACKNOWLEDGEMENTS,
    "DescribeLogDirsResponse": _HOLDERS,
    "InitializeShareGroupStateRequest": _SENDER | _STATE_SUBSCRIPTION,
    "ReadShareGroupStateRequest": _SENDER,
    "ReadShareGroupStateResponse": _STATE_BATCHES | _STATE_VERSION_AND_SUBSCRIPTION,
    "WriteShareGroupStateRequest": _SENDER | _STATE_BATCHES | _STATE_VERSION,
    "DeleteShareGroupStateRequest": _SENDER | _STATE_VERSION,
    "ReadShareGroupStateSummaryRequest": _SENDER,
    "ReadShareGroupStateSummaryResponse": _STATE_VERSION_AND_SUBSCRIPTION,
}


def with_own_fields(message: str, table: str) -> str:
    """The table of a message, with ours below the arrays whose elements have them, or at its end."""
    added = OWN_FIELDS.get(message)
    if added is None:
        return table
    lines = []
    for line in table.splitlines():
        lines.append(line)
        indent = len(line) - len(line.lstrip()) + 2
        lines += [" " * indent + one for one in added.get(line.strip(), ())] if line else []
    return "\n".join([*lines, *added.get(_WHOLE_MESSAGE, ())])
