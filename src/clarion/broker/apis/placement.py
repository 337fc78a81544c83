"""Where a client wants replicas to be, and how many. There is one node: every partition has one replica, here."""

from __future__ import annotations

from collections.abc import Sequence

from clarion.model.errors import ErrorCode, KafkaError


def check_replicas(broker_ids: Sequence[int], node_id: int) -> None:
    """Refuse an assignment that names anything but this node, once, in Kafka's words."""
    if not broker_ids:
        raise _refused("an empty replica list.")
    strange = next((one for one in broker_ids if one != node_id), None)
    if strange is not None:
        raise _refused(f"broker {strange}, but no such broker is registered.")
    if len(broker_ids) > 1:
        raise _refused(f"the broker {node_id} more than once.")


def check_total(partitions: int, most: int) -> None:
    """Refuse a request that would make more than this many in all, as Kafka does and in its words."""
    if partitions > most:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"Excessively large number of partitions per request: {partitions}; at most {most} are made by one",
        )


def _refused(what: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment includes {what}")
