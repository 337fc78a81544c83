"""Where a client wants replicas to be, and how many: only on brokers that there are."""

from __future__ import annotations

from collections.abc import Sequence, Set

from clarion.model.errors import ErrorCode, KafkaError


def check_replicas(broker_ids: Sequence[int], known: Set[int]) -> None:
    """Refuse an assignment that names anything but brokers that there are, each once, in Kafka's words."""
    if not broker_ids:
        raise _refused("an empty replica list.")
    strange = next((one for one in broker_ids if one not in known), None)
    if strange is not None:
        raise _refused(f"broker {strange}, but no such broker is registered.")
    twice = next((one for at, one in enumerate(broker_ids) if one in broker_ids[:at]), None)
    if twice is not None:
        raise _refused(f"the broker {twice} more than once.")


def check_factor(replication_factor: int, known: Set[int]) -> None:
    if replication_factor > len(known):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): The target replication factor of "
            f"{replication_factor} cannot be reached because only {len(known)} broker(s) are registered.",
        )


def check_total(partitions: int, most: int) -> None:
    """Refuse a request that would make more than this many in all, as Kafka does and in its words."""
    if partitions > most:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"Excessively large number of partitions per request: {partitions}; at most {most} are made by one",
        )


def _refused(what: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment includes {what}")
